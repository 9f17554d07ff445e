// A CUDA driver for tests: the same entry points over host memory. Streams are threads, so work of
// different streams runs in any order that their events allow; copies read their source when they
// run, and freed memory is freed at once. What a test counts or breaks is set by fake_set() and
// read by fake_get(). Needs no header of penstock, so that any test can build it.

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kNoMemory = 2, kNotInitialized = 3, kNoDevice = 101,
              kInvalidContext = 201, kInvalidHandle = 400, kNotReady = 600,
              kCaptureUnsupported = 900, kCaptureIsolation = 905;

// The device's clock: any zero, and its own rate.
double device_ms();

// One record of an event: passed once its stream has come to it.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;
  double ms = 0;  // of the device's clock, when it passed

  void pass() {
    const double now = device_ms();
    std::lock_guard lock(mutex);
    passed = true;
    ms = now;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return passed; });
  }
  bool has_passed() {
    std::lock_guard lock(mutex);
    return passed;
  }
};

struct Event {
  explicit Event(bool with_times) : timed(with_times) {}
  const bool timed;
  std::mutex mutex;
  std::shared_ptr<Record> latest;  // null: never recorded, which counts as passed
  std::shared_ptr<Record> get() {
    std::lock_guard lock(mutex);
    return latest;
  }
};

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    push(nullptr);
    thread_.join();
  }
  void push(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }
  void wait_until_idle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
  }
  std::atomic<bool> capturing{false};

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return !queue_.empty(); });
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      if (!work) return;
      busy_ = true;
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false;
  std::thread thread_;
};

struct Range {
  size_t bytes = 0;
  bool registered = false;  // else allocated here
};

struct World {
  std::mutex mutex;
  std::map<std::string, long, std::less<>> values{
      {"devices", 2}, {"device_memory", 1L << 32}, {"pinned_memory", 1L << 32}, {"copy_us", 0}};
  std::map<std::string, long, std::less<>> failing;  // calls, and the results they are to have
  std::map<Stream*, int> streams;                    // made by cuStreamCreate
  std::map<char*, size_t> memory;                    // of the device
  std::map<char*, Range> pinned;
  size_t used = 0;
  size_t pinned_bytes = 0;
  std::map<std::thread::id, Stream*> own;  // per-thread default streams
  Stream* legacy = nullptr;
  int contexts = 0;
  std::atomic<bool> started{false};  // not in a forked child
};

World& world() {
  static World& one = *new World;
  return one;
}

thread_local std::vector<void*> contexts;
thread_local int capture_mode = 0;  // 2: relaxed
std::atomic<int> captures{0};       // streams that capture, all in the global mode

// Calls that are unsafe while a stream captures: they end the capture, unless their thread is
// relaxed.
bool is_unsafe(std::string_view name) {
  for (std::string_view each :
       {"cuMemAlloc", "cuMemFree", "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister",
        "cuMemHostUnregister", "cuMemcpyDtoH", "cuStreamSynchronize", "cuEventQuery",
        "cuEventSynchronize", "cuEventElapsedTime"}) {
    if (name == each) return true;
  }
  return false;
}
int the_context[16];

long value(const char* name) {
  std::lock_guard lock(world().mutex);
  return world().values[name];
}

// REQUIRED: the world's mutex is held.
void add(std::string_view name, long more) {
  auto found = world().values.find(name);
  if (found == world().values.end()) found = world().values.emplace(name, 0).first;
  found->second += more;
}

void count(std::string_view name, long more = 1) {
  std::lock_guard lock(world().mutex);
  add(name, more);
}

// What every call does first: fails as the test has set, and demands a context.
int enter(std::string_view name, bool with_context = true) {
  World& all = world();
  std::lock_guard lock(all.mutex);
  add(name, 1);
  add("calls", 1);
  if (!all.started) return kNotInitialized;
  if (!all.failing.empty()) {
    for (std::string_view which : {std::string_view("all"), name}) {
      const auto found = all.failing.find(which);
      if (found != all.failing.end() && found->second != 0) return static_cast<int>(found->second);
    }
  }
  if (captures > 0 && capture_mode != 2 && is_unsafe(name)) {
    add("captures ended", 1);
    return kCaptureUnsupported;
  }
  return with_context && contexts.empty() ? kInvalidContext : kSuccess;
}

Stream* stream_of(void* handle) {
  World& all = world();
  std::lock_guard lock(all.mutex);
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number <= 1) {
    if (all.legacy == nullptr) all.legacy = new Stream;
    return all.legacy;
  }
  if (number == 2) {
    Stream*& own = all.own[std::this_thread::get_id()];
    if (own == nullptr) own = new Stream;
    return own;
  }
  auto* stream = static_cast<Stream*>(handle);
  return all.streams.count(stream) ? stream : nullptr;
}

void pause_us(long us) {
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
}

bool is_pinned(const char* from, size_t bytes) {
  World& all = world();
  std::lock_guard lock(all.mutex);
  auto range = all.pinned.upper_bound(const_cast<char*>(from));
  if (range == all.pinned.begin()) return false;
  --range;
  return from + bytes <= range->first + range->second.bytes;
}

// Copies into device memory; counts "copies to freed memory" instead if there is none any more.
void copy_in(char* to, const char* from, size_t bytes) {
  World& all = world();
  {
    std::lock_guard lock(all.mutex);
    auto range = all.memory.upper_bound(to);
    const bool there =
        range != all.memory.begin() && (--range, to + bytes <= range->first + range->second);
    if (!there) {
      add("copies to freed memory", 1);
      return;
    }
  }
  std::memcpy(to, from, bytes);
}

// `clock_ms` moves the clock, for tests of long runs. Read for each event: without a lock.
std::atomic<long> clock_ms{0};

double device_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count() + static_cast<double>(clock_ms);
}

int allocate_pinned_bytes(size_t bytes) {
  World& all = world();
  std::lock_guard lock(all.mutex);
  if (all.pinned_bytes + bytes > static_cast<size_t>(all.values["pinned_memory"])) return kNoMemory;
  all.pinned_bytes += bytes;
  return kSuccess;
}

}  // namespace

#define ENTER(name) \
  if (int failed = enter(name)) return failed
#define ENTER_BARE(name) \
  if (int failed = enter(name, false)) return failed

// ---- for the test -------------------------------------------------------------------------------

// "fail": the result of all calls; "fail cuMemAlloc": of that one.
EXPORT void fake_set(const char* name, long to) {
  std::lock_guard lock(world().mutex);
  const std::string_view all(name);
  if (all == "fail") {
    world().failing["all"] = to;
  } else if (all.substr(0, 5) == "fail ") {
    world().failing[std::string(all.substr(5))] = to;
  } else if (all == "clock_ms") {
    clock_ms = to;
  } else {
    world().values[name] = to;
  }
}

EXPORT long fake_get(const char* name) {
  if (std::string(name) == "memory in use") {
    std::lock_guard lock(world().mutex);
    return static_cast<long>(world().used);
  }
  if (std::string(name) == "pinned in use") {
    std::lock_guard lock(world().mutex);
    return static_cast<long>(world().pinned_bytes);
  }
  if (std::string(name) == "contexts") {
    std::lock_guard lock(world().mutex);
    return world().contexts;
  }
  return value(name);
}

// A kernel: runs on the stream, after all that was enqueued there.
EXPORT void fake_launch(void* stream, void (*kernel)(void*), void* argument) {
  stream_of(stream)->push([=] { kernel(argument); });
}

// Adds work that takes so long.
EXPORT void fake_delay(void* stream, long us) {
  stream_of(stream)->push([=] { pause_us(us); });
}

// Copies device memory to the host, after all that was enqueued on the stream and `us` of work.
EXPORT void fake_read(void* stream, void* to, const void* from, size_t bytes, long us) {
  stream_of(stream)->push([=] {
    pause_us(us);
    std::memcpy(to, from, bytes);
  });
}

EXPORT void fake_finish(void* stream) { stream_of(stream)->wait_until_idle(); }

EXPORT void fake_capture(void* stream, int on) {
  if (stream_of(stream)->capturing.exchange(on != 0) != (on != 0)) captures += on != 0 ? 1 : -1;
}

// ---- the driver ---------------------------------------------------------------------------------

EXPORT int cuInit(unsigned) {
  static const int once = [] {
    world().started = true;
    return pthread_atfork(nullptr, nullptr, [] { world().started = false; });
  }();
  return once == 0 ? enter("cuInit", false) : kNotInitialized;
}

EXPORT int cuDeviceGetCount(int* devices) {
  ENTER_BARE("cuDeviceGetCount");
  *devices = static_cast<int>(value("devices"));
  return kSuccess;
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
  ENTER_BARE("cuDeviceGet");
  if (ordinal < 0 || ordinal >= value("devices")) return kNoDevice;
  *device = ordinal;
  return kSuccess;
}

EXPORT int cuDeviceGetName(char* name, int length, int device) {
  ENTER_BARE("cuDeviceGetName");
  std::strncpy(name, ("Fake " + std::to_string(device)).c_str(), static_cast<size_t>(length));
  return kSuccess;
}

EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int) {
  ENTER_BARE("cuDeviceTotalMem");
  *bytes = static_cast<size_t>(value("device_memory"));
  return kSuccess;
}

EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  ENTER_BARE("cuDevicePrimaryCtxRetain");
  *context = &the_context[device];
  std::lock_guard lock(world().mutex);
  ++world().contexts;
  return kSuccess;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int) {
  ENTER_BARE("cuDevicePrimaryCtxRelease");
  std::lock_guard lock(world().mutex);
  --world().contexts;
  return kSuccess;
}

EXPORT int cuCtxPushCurrent_v2(void* context) {
  ENTER_BARE("cuCtxPushCurrent");
  contexts.push_back(context);
  return kSuccess;
}

EXPORT int cuCtxPopCurrent_v2(void** context) {
  count("cuCtxPopCurrent");
  count("calls");
  if (contexts.empty()) return kInvalidContext;
  *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}

EXPORT int cuCtxGetCurrent(void** context) {
  ENTER_BARE("cuCtxGetCurrent");
  *context = contexts.empty() ? nullptr : contexts.back();
  return kSuccess;
}

EXPORT int cuCtxSynchronize() {
  ENTER("cuCtxSynchronize");
  std::vector<Stream*> all;
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    for (auto& [stream, ordinal] : w.streams) all.push_back(stream);
    for (auto& [thread, stream] : w.own) all.push_back(stream);
    if (w.legacy != nullptr) all.push_back(w.legacy);
  }
  for (Stream* stream : all) stream->wait_until_idle();
  return kSuccess;
}

EXPORT int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  ENTER("cuMemGetInfo");
  std::lock_guard lock(world().mutex);
  *total = static_cast<size_t>(world().values["device_memory"]);
  *free_bytes = *total - world().used;
  return kSuccess;
}

EXPORT int cuMemAlloc_v2(uint64_t* memory, size_t bytes) {
  ENTER("cuMemAlloc");
  pause_us(value("alloc_us"));
  World& all = world();
  std::lock_guard lock(all.mutex);
  if (all.used + bytes > static_cast<size_t>(all.values["device_memory"])) return kNoMemory;
  auto* made = static_cast<char*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  if (all.values["unfilled"] == 0) std::memset(made, 0xEE, bytes);
  all.used += bytes;
  all.memory[made] = bytes;
  *memory = reinterpret_cast<uint64_t>(made);
  return kSuccess;
}

EXPORT int cuMemFree_v2(uint64_t memory) {
  ENTER("cuMemFree");
  World& all = world();
  std::lock_guard lock(all.mutex);
  const auto found = all.memory.find(reinterpret_cast<char*>(memory));
  if (found == all.memory.end()) return kInvalidValue;
  all.used -= found->second;
  std::memset(found->first, 0xDD, found->second);
  std::free(found->first);
  all.memory.erase(found);
  return kSuccess;
}

EXPORT int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  ENTER("cuMemHostAlloc");
  if (int failed = allocate_pinned_bytes(bytes)) return failed;
  auto* made = static_cast<char*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
  std::lock_guard lock(world().mutex);
  world().pinned[made] = {bytes, false};
  *memory = made;
  return kSuccess;
}

EXPORT int cuMemFreeHost(void* memory) {
  ENTER("cuMemFreeHost");
  std::lock_guard lock(world().mutex);
  const auto found = world().pinned.find(static_cast<char*>(memory));
  if (found == world().pinned.end() || found->second.registered) return kInvalidValue;
  world().pinned_bytes -= found->second.bytes;
  std::free(found->first);
  world().pinned.erase(found);
  return kSuccess;
}

EXPORT int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
  ENTER("cuMemHostRegister");
  pause_us(value("pin_us_per_mib") * static_cast<long>(bytes >> 20));
  if (int failed = allocate_pinned_bytes(bytes)) return failed;
  std::lock_guard lock(world().mutex);
  world().pinned[static_cast<char*>(memory)] = {bytes, true};
  return kSuccess;
}

EXPORT int cuMemHostUnregister(void* memory) {
  ENTER("cuMemHostUnregister");
  std::lock_guard lock(world().mutex);
  const auto found = world().pinned.find(static_cast<char*>(memory));
  if (found == world().pinned.end() || !found->second.registered) return kInvalidValue;
  world().pinned_bytes -= found->second.bytes;
  world().pinned.erase(found);
  return kSuccess;
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* handle) {
  ENTER("cuMemcpyHtoDAsync");
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return kInvalidValue;
  count("bytes copied", static_cast<long>(bytes));
  const long us = value("copy_us");
  auto* target = reinterpret_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  if (is_pinned(source, bytes)) {
    stream->push([=] {
      pause_us(us);
      copy_in(target, source, bytes);
    });
    return kSuccess;
  }
  count("pageable copies");
  // The driver has read pageable memory when the call returns.
  auto staged = std::make_shared<std::vector<char>>(source, source + bytes);
  stream->push([=] {
    pause_us(us);
    copy_in(target, staged->data(), bytes);
  });
  return kSuccess;
}

EXPORT int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  ENTER("cuMemcpyDtoH");
  std::memcpy(to, reinterpret_cast<const char*>(from), bytes);
  return kSuccess;
}

EXPORT int cuStreamCreate(void** handle, unsigned) {
  ENTER("cuStreamCreate");
  auto* made = new Stream;
  std::lock_guard lock(world().mutex);
  world().streams[made] = 0;
  *handle = made;
  return kSuccess;
}

EXPORT int cuStreamDestroy_v2(void* handle) {
  ENTER("cuStreamDestroy");
  auto* stream = static_cast<Stream*>(handle);
  {
    std::lock_guard lock(world().mutex);
    if (world().streams.erase(stream) == 0) return kInvalidValue;
  }
  delete stream;
  return kSuccess;
}

EXPORT int cuStreamSynchronize(void* handle) {
  ENTER("cuStreamSynchronize");
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return kInvalidValue;
  stream->wait_until_idle();
  return kSuccess;
}

EXPORT int cuStreamIsCapturing(void* handle, int* status) {
  ENTER("cuStreamIsCapturing");
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return kInvalidValue;
  *status = stream->capturing ? 1 : 0;
  return kSuccess;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
  ENTER_BARE("cuThreadExchangeStreamCaptureMode");
  std::swap(*mode, capture_mode);
  return kSuccess;
}

EXPORT int cuStreamWaitEvent(void* handle, void* event, unsigned) {
  ENTER("cuStreamWaitEvent");
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return kInvalidValue;
  if (stream->capturing) return kCaptureIsolation;
  auto record = static_cast<Event*>(event)->get();
  if (record != nullptr) stream->push([record] { record->wait(); });
  return kSuccess;
}

EXPORT int cuEventCreate(void** event, unsigned flags) {
  ENTER("cuEventCreate");
  *event = new Event((flags & 2) == 0);
  count("events");
  return kSuccess;
}

EXPORT int cuEventDestroy_v2(void* event) {
  ENTER("cuEventDestroy");
  delete static_cast<Event*>(event);
  count("events", -1);
  return kSuccess;
}

EXPORT int cuEventRecord(void* event, void* handle) {
  ENTER("cuEventRecord");
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return kInvalidValue;
  if (stream->capturing) {  // a node of the graph; the event says nothing about work before
    count("captured events");
    auto* recorded = static_cast<Event*>(event);
    std::lock_guard lock(recorded->mutex);
    recorded->latest = nullptr;
    return kSuccess;
  }
  auto record = std::make_shared<Record>();
  {
    auto* recorded = static_cast<Event*>(event);
    std::lock_guard lock(recorded->mutex);
    recorded->latest = record;
  }
  stream->push([record] { record->pass(); });
  return kSuccess;
}

EXPORT int cuEventQuery(void* event) {
  ENTER("cuEventQuery");
  auto record = static_cast<Event*>(event)->get();
  return record == nullptr || record->has_passed() ? kSuccess : kNotReady;
}

EXPORT int cuEventSynchronize(void* event) {
  ENTER("cuEventSynchronize");
  auto record = static_cast<Event*>(event)->get();
  if (record != nullptr) record->wait();
  return kSuccess;
}

EXPORT int cuEventElapsedTime(float* ms, void* from, void* to) {
  ENTER("cuEventElapsedTime");
  double at[2] = {};
  int i = 0;
  for (void* each : {from, to}) {
    auto* event = static_cast<Event*>(each);
    auto record = event->get();
    if (!event->timed || record == nullptr) return kInvalidHandle;
    if (!record->has_passed()) return kNotReady;
    at[i++] = record->ms;
  }
  *ms = static_cast<float>(at[1] - at[0]);
  return kSuccess;
}

EXPORT int cuGetErrorName(int result, const char** name) {
  static const std::map<int, const char*> names{
      {1, "CUDA_ERROR_INVALID_VALUE"},    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {3, "CUDA_ERROR_NOT_INITIALIZED"},  {4, "CUDA_ERROR_DEINITIALIZED"},
      {101, "CUDA_ERROR_INVALID_DEVICE"}, {201, "CUDA_ERROR_INVALID_CONTEXT"},
      {719, "CUDA_ERROR_LAUNCH_FAILED"}};
  const auto found = names.find(result);
  if (found == names.end()) return kInvalidValue;
  *name = found->second;
  return kSuccess;
}

EXPORT int cuGetErrorString(int, const char** text) {
  *text = "as the test has set";
  return kSuccess;
}
