#include "penstock/train/server/shard_memory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock::train {
namespace {

constexpr const char* kShard = "shard";
constexpr uint64_t kMagic = 0x31647261687370;    // "pshard1"
constexpr size_t kCopyPiece = size_t{16} << 20;  // floats
constexpr int kReasonAttempts = 100;
constexpr int64_t kHoldPollNs = 10'000'000;

size_t pages(size_t bytes) {
  const size_t page = os::page_size();
  return (bytes + page - 1) / page * page;
}
size_t slab_bytes(const ShardMemory::Shape& shape) { return pages(shape.floats * sizeof(float)); }
size_t records_bytes() { return pages(2 * sizeof(ShardRecord)); }
size_t mapped_bytes(const ShardMemory::Shape& shape) {
  return os::page_size() + records_bytes() + shape.copies * (1 + shape.states) * slab_bytes(shape);
}

Error no_memory(const ShardMemory::Shape& shape, const char* why) {
  return Error(Code::kOutOfMemory, kShard,
               "no memory for " + std::to_string(mapped_bytes(shape)) + " bytes: " + why);
}

}  // namespace

struct ShardMemory::Header {
  uint64_t magic;
  Shape shape;
  std::atomic<uint64_t> current{};  // version << 2 | record << 1 | copy
  std::atomic<uint32_t> death{};    // CrashPoint
  std::atomic<uint32_t> port{};
  std::atomic<uint32_t> served{};
  std::atomic<uint32_t> begun{};
  std::atomic<uint64_t> commits{};
  std::atomic<uint64_t> saved_version{};
  std::atomic<uint64_t> saved_commits{};
  // A change and a hold each set their own word before they read the other's, so that at least one
  // of the two sees the other.
  std::atomic<uint32_t> changing{};
  std::atomic<uint32_t> held{};
  std::atomic<uint64_t> held_until_ns{};
  // Odd while the reason is written.
  std::atomic<uint32_t> reason_edition{};
  std::array<std::atomic<uint64_t>, kMaxReasonBytes / sizeof(uint64_t)> reason{};
};

ShardMemory::ShardMemory(Token, os::Fd fd, std::byte* base, const Shape& shape)
    : fd_(std::move(fd)), base_(base), shape_(shape) {}
ShardMemory::~ShardMemory() { os::unmap(base_, mapped_bytes(shape_)); }

std::shared_ptr<ShardMemory> ShardMemory::make(const Shape& shape, float initial_state) {
  const size_t bytes = mapped_bytes(shape);
  if (os::memory_headroom() < bytes) throw no_memory(shape, "the machine, or a limit, is full");
  os::Fd fd = os::memory_file("penstock-shard", bytes);
  void* base = os::reserve_mapping(fd.get(), bytes, true);
  if (base == nullptr) throw no_memory(shape, "no address space (see ulimit -v)");
  auto memory =
      std::make_shared<ShardMemory>(Token(), std::move(fd), static_cast<std::byte*>(base), shape);
  os::prefer_huge_pages(base, bytes, memory->fd());
  if (int error = os::populate_write(base, bytes, memory->fd(), 0); error != 0) {
    throw no_memory(shape, std::strerror(error));
  }
  for (uint32_t copy = 0; copy < shape.copies; ++copy) {
    for (uint32_t i = 0; i < shape.states; ++i) {
      std::ranges::fill(memory->state(copy, i), initial_state);
    }
  }
  new (base) Header{.magic = kMagic, .shape = shape, .saved_commits = Saved().commits};
  return memory;
}

std::shared_ptr<ShardMemory> ShardMemory::open(int fd, Access access) {
  auto refuse = [](const char* why) { return Error(Code::kInvalidArgument, kShard, why); };
  os::Fd own = os::duplicate(fd, kShard);
  struct stat file {};
  if (access == Access::kWrite) {
    try {
      os::forbid_shrinking(own.get());
    } catch (const Error&) {
      throw refuse("this descriptor is no shard's memory");
    }
  }
  if (fstat(own.get(), &file) != 0 || !S_ISREG(file.st_mode) ||
      file.st_size < static_cast<off_t>(os::page_size())) {
    throw refuse("this descriptor is no shard's memory");
  }
  const int protection = PROT_READ | (access == Access::kWrite ? PROT_WRITE : 0);
  auto map = [&](size_t bytes) {
    void* base = os::map_for_huge_pages(bytes, protection, MAP_SHARED, own.get());
    if (base == nullptr) throw Error::from_errno(errno, kShard, "cannot map a shard's memory");
    return base;
  };
  void* first = map(os::page_size());
  const Header& header = *static_cast<const Header*>(first);
  const uint64_t magic = header.magic;
  const Shape shape = header.shape;
  os::unmap(first, os::page_size());
  if (magic != kMagic || shape.floats == 0 || shape.floats > UINT64_C(1) << 48 ||
      shape.states > 2 || shape.copies < 1 || shape.copies > 2 ||
      mapped_bytes(shape) != static_cast<uint64_t>(file.st_size)) {
    throw refuse("this descriptor is no shard's memory");
  }
  void* base = map(mapped_bytes(shape));
  // Fill the page tables now instead of fault by fault; a failure changes no result.
  if (access == Access::kRead) os::populate_read(base, mapped_bytes(shape));
  return std::make_shared<ShardMemory>(Token(), std::move(own), static_cast<std::byte*>(base),
                                       shape);
}

os::Fd ShardMemory::read_only() const {
  const std::string path = "/proc/self/fd/" + std::to_string(fd());
  os::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw Error::from_errno(errno, kShard, "cannot open " + path);
  return fd;
}

ShardMemory::Current ShardMemory::current() const {
  const uint64_t word = header().current.load(std::memory_order_acquire);
  return {word >> 2, static_cast<uint32_t>(word >> 1 & 1),
          static_cast<uint32_t>(word & 1) % shape_.copies};
}

void ShardMemory::set_current(const Current& current) const {
  header().current.store(current.version << 2 | current.record << 1 | current.copy,
                         std::memory_order_release);
}

ShardRecord& ShardMemory::record(uint32_t which) const {
  return reinterpret_cast<ShardRecord*>(base_ + os::page_size())[which];
}

std::span<float> ShardMemory::floats(uint32_t copy, uint32_t slab) const {
  std::byte* first = base_ + os::page_size() + records_bytes();
  first += (copy * (1 + shape_.states) + slab) * slab_bytes(shape_);
  return {reinterpret_cast<float*>(first), shape_.floats};
}

std::unique_ptr<ShardCheckpoint> ShardMemory::checkpoint(
    const std::function<void()>& progress) const {
  auto made = std::make_unique<ShardCheckpoint>();
  const uint32_t copy = current().copy;
  made->record = record();
  made->commits = commits();
  auto copy_of = [&](std::span<const float> values) {
    std::vector<float> into;
    into.reserve(values.size());
    while (!values.empty()) {
      const auto piece = values.first(std::min(values.size(), kCopyPiece));
      into.insert(into.end(), piece.begin(), piece.end());
      values = values.subspan(piece.size());
      if (progress) progress();
    }
    return into;
  };
  made->weights = copy_of(weights(copy));
  for (uint32_t i = 0; i < shape_.states; ++i) made->states.push_back(copy_of(state(copy, i)));
  return made;
}

void ShardMemory::load(const ShardCheckpoint& checkpoint) const {
  const Change change(*this);
  const uint32_t copy = current().copy;
  std::ranges::copy(checkpoint.weights, weights(copy).begin());
  for (uint32_t i = 0; i < shape_.states; ++i) {
    std::ranges::copy(checkpoint.states[i], state(copy, i).begin());
  }
  change.commit(copy, [&](ShardRecord& next) { next = checkpoint.record; });
}

uint32_t ShardMemory::port() const { return header().port.load(); }
void ShardMemory::set_port(uint32_t port) const { header().port.store(port); }
uint32_t ShardMemory::served() const { return header().served.load(); }
void ShardMemory::count_served() const { header().served.fetch_add(1); }

bool ShardMemory::begun() const { return header().begun.load() != 0; }
void ShardMemory::set_begun() const { header().begun.store(1); }

uint64_t ShardMemory::commits() const { return header().commits.load(std::memory_order_relaxed); }
void ShardMemory::count_commit() const { header().commits.fetch_add(1, std::memory_order_relaxed); }

ShardMemory::Saved ShardMemory::saved() const {
  return {header().saved_version.load(), header().saved_commits.load()};
}
void ShardMemory::set_saved(const Saved& saved) const {
  header().saved_version.store(saved.version);
  header().saved_commits.store(saved.commits);
}

std::string ShardMemory::saving_failed() const {
  std::array<uint64_t, kMaxReasonBytes / sizeof(uint64_t)> words{};
  for (int attempt = 0; attempt < kReasonAttempts; ++attempt) {
    const uint32_t edition = header().reason_edition.load();
    for (size_t i = 0; i < words.size(); ++i) words[i] = header().reason[i].load();
    if (edition % 2 == 0 && header().reason_edition.load() == edition) break;
  }
  const auto* text = reinterpret_cast<const char*>(words.data());
  return {text, strnlen(text, kMaxReasonBytes)};
}

void ShardMemory::set_saving_failed(const std::string& why) const {
  std::array<uint64_t, kMaxReasonBytes / sizeof(uint64_t)> words{};
  std::memcpy(words.data(), why.data(), std::min(why.size(), kMaxReasonBytes));
  header().reason_edition.fetch_add(1);
  for (size_t i = 0; i < words.size(); ++i) header().reason[i].store(words[i]);
  header().reason_edition.fetch_add(1);
}

// ---- changes and snapshots ----------------------------------------------------------------------

ShardMemory::Change::Change(const ShardMemory& memory) : memory_(memory) {
  Header& header = memory.header();
  for (;;) {
    header.changing.store(1);
    if (header.held.load() == 0) return;
    const uint64_t until = header.held_until_ns.load(), now = now_ns();
    if (now >= until) return;
    header.changing.store(0);
    os::futex_wake(header.changing, 1, true);
    os::futex_wait(header.held, 1, static_cast<int64_t>(until - now), true);
  }
}

ShardMemory::Change::~Change() { memory_.abandon_change(); }

void ShardMemory::abandon_change() const {
  header().changing.store(0);
  if (header().held.load() != 0) os::futex_wake(header().changing, 1, true);
}

ShardMemory::Hold::Hold(const ShardMemory& memory) : memory_(memory) {
  (void)renew();
  memory_.header().held.store(1);
}

ShardMemory::Hold::~Hold() {
  memory_.header().held.store(0);
  os::futex_wake(memory_.header().held, 1, true);
}

bool ShardMemory::Hold::wait(const Deadline& deadline) const {
  Header& header = memory_.header();
  while (header.changing.load() != 0) {
    if (deadline.passed()) return false;
    os::futex_wait(header.changing, 1, kHoldPollNs, true);
  }
  return true;
}

bool ShardMemory::Hold::renew() {
  const uint64_t before = until_ns_;
  until_ns_ = now_ns() + static_cast<uint64_t>(kHoldS * 1e9);
  memory_.header().held_until_ns.store(until_ns_);
  return now_ns() < before;  // after the store: no moment was without a hold
}

// ---- for tests ----------------------------------------------------------------------------------

void ShardMemory::crash_at(CrashPoint place) const {
  header().death.store(static_cast<uint32_t>(place));
}

void ShardMemory::crash_if(CrashPoint place) const {
  auto wanted = static_cast<uint32_t>(place);
  if (header().death.load(std::memory_order_relaxed) != wanted) return;
  if (!header().death.compare_exchange_strong(wanted, 0)) return;
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

}  // namespace penstock::train
