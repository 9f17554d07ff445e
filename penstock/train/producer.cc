#include "penstock/train/producer.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/element/example_rows.h"

// A producer has no thread: each call looks for the learner, and for its end.
namespace penstock::train {
namespace {

constexpr const char* kPut = "put";
constexpr const char* kAttachChannel = "attach_channel";
constexpr uint64_t kBackChunk = uint64_t{1} << 20;

uint64_t up_to(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

uint64_t header_bytes(const ElementSpec& spec) {
  return up_to(sizeof(RecordHeader) + spec.bytes().size(), kRecordUnit);
}

// Bytes of a record. Error kInvalidArgument: it is larger than the ring.
uint64_t record_bytes(const ElementSpec& spec, uint64_t block_bytes, uint64_t capacity) {
  const uint64_t front = header_bytes(spec);
  if (block_bytes <= capacity && front + up_to(block_bytes, kRecordUnit) <= capacity) {
    return front + up_to(block_bytes, kRecordUnit);
  }
  throw Error(Code::kInvalidArgument, kPut,
              "an item of " + std::to_string(block_bytes) + " bytes and its description of " +
                  std::to_string(front) + " bytes are larger than the channel's capacity, " +
                  std::to_string(capacity) +
                  ": put smaller ones, or let the learner make the "
                  "channel with a larger capacity");
}

// Allocates pages before they are written: a full machine is an Error and no SIGBUS.
void back_pages(const ChannelMemory& memory, uint32_t row, std::byte* data, uint64_t& backed,
                uint64_t end) {
  if (end <= backed) return;
  end = std::min(up_to(end, kBackChunk), memory.capacity());
  const int error =
      os::populate_write(data + backed, end - backed, memory.fd(), memory.offset_of(row) + backed);
  if (error != 0) {
    throw Error(Code::kOutOfMemory, kPut,
                "no memory for " + std::to_string(end - backed) +
                    " more bytes of the channel: " + std::strerror(error));
  }
  backed = end;
}

constexpr int64_t kPutWaitSliceNs = 50'000'000;  // longest sleep between two checks of the learner
constexpr int64_t kLearnerAnswerNs = 250'000'000;  // least time to answer that a learner gets
constexpr uint64_t kCheckNs = 1'000'000;           // between two checks while items are put

uint64_t end_of(int64_t timeout_ns) {
  return timeout_ns < 0 ? UINT64_MAX : now_ns() + static_cast<uint64_t>(timeout_ns);
}

}  // namespace

// Tries to get exclusive access to the ring. Never waits.
class Producer::Turn {
 public:
  explicit Turn(Producer& producer) : producer_(producer) {
    uint32_t free = 0;
    taken_ = producer_.writing_.compare_exchange_strong(free, 1);
  }
  ~Turn() {
    if (!taken_) return;
    producer_.writing_.store(0);
    if (producer_.sleepers_.load() == 0) return;
    producer_.turns_.fetch_add(1);
    os::futex_wake(producer_.turns_, INT_MAX, false);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  explicit operator bool() const { return taken_; }

 private:
  Producer& producer_;
  bool taken_;
};

Producer::Attempt Producer::try_put(const ElementSpec& spec, uint64_t block_bytes,
                                    const Write& write) {
  const Turn turn(*this);
  if (!turn) return Attempt::kNotYet;
  const SessionRef mine = session();
  if (mine == nullptr) return Attempt::kNotYet;
  const ChannelMemory& memory = *mine->memory;
  Ring& ring = mine->ring;
  const uint64_t front = header_bytes(spec);
  const uint64_t bytes = record_bytes(spec, block_bytes, memory.capacity());
  if (!ring.contended() && !ring.has_space(bytes)) {
    if (always_wait_ || memory.when_full() == WhenFull::kBlock) return Attempt::kNotYet;
    mine->words().refused.fetch_add(1);
    return Attempt::kRefused;
  }
  const uint64_t end = ring.tail().at + bytes;
  back_pages(memory, mine->row, mine->mapping.data(), mine->backed,
             std::min(end, memory.capacity()));

  std::byte* to = ring.tail_data();
  if (ring.contended()) {
    staging_.resize(bytes / sizeof(uint64_t));
    to = reinterpret_cast<std::byte*>(staging_.data());
  }
  const RecordHeader header{bytes, spec.bytes().size()};
  std::memcpy(to, &header, sizeof(header));
  std::memcpy(to + sizeof(header), spec.bytes().data(), spec.bytes().size());
  write(to + front);
  if (ring.contended()) {
    ring.make_space(bytes);
    ring.write(to, bytes);
  }
  ring.put(bytes);
  memory.wake_takers();
  return Attempt::kPut;
}

void Producer::wait(const ElementSpec& spec, uint64_t block_bytes, uint64_t end_ns) {
  const SessionRef mine = session();
  if (mine == nullptr) return wait_for_learner(end_ns);
  const uint64_t bytes = record_bytes(spec, block_bytes, mine->memory->capacity());
  const int64_t left = wait_slice(end_ns);
  // Both sleeps are announced before the check that they depend on, so no wake is lost.
  sleepers_.fetch_add(1);
  const uint32_t seen = turns_.load();
  const bool taken = writing_.load() != 0;
  if (taken && left != 0) os::futex_wait(turns_, seen, left, false);
  sleepers_.fetch_sub(1);
  if (taken && left != 0) return;
  if (left == 0) {
    throw Error(Code::kTimeout, kPut,
                "the channel '" + name_ + "' is full: its learner, process " +
                    std::to_string(mine->learner.pid) + ", does not take items fast enough");
  }
  RingWords& words = mine->words();
  words.waiting.fetch_add(1);
  const uint32_t seen_space = words.space.load();
  if (!mine->ring.has_space(bytes) && mine->memory->header().closed.load() == 0 &&
      words.evicted.load() == 0) {
    os::futex_wait(words.space, seen_space, left, true);
  }
  words.waiting.fetch_sub(1);
}

bool Producer::put(const ElementSpec& spec, uint64_t block_bytes, const Write& write,
                   int64_t timeout_ns) {
  const uint64_t end = timeout_ns < 0 ? UINT64_MAX : now_ns() + static_cast<uint64_t>(timeout_ns);
  for (;;) {
    switch (try_put(spec, block_bytes, write)) {
      case Attempt::kPut:
        return true;
      case Attempt::kRefused:
        return false;
      case Attempt::kNotYet:
        wait(spec, block_bytes, end);
    }
  }
}

bool Producer::put(const Chunk& in, uint32_t row, int64_t timeout_ns) {
  const BlockLayout layout = row_layout(in, row);
  return put(
      *in.spec(), layout.bytes(), [&](std::byte* to) { write_row(in, row, layout, to); },
      timeout_ns);
}

bool Producer::put(const Example& item, int64_t timeout_ns) {
  if (item.empty()) throw Error(Code::kInvalidArgument, kPut, "the item is empty");
  Scratch scratch;
  Chunk chunk(scratch);
  chunk.reset(nullptr, 1);
  ExampleRows rows(kPut);
  if (auto error = rows.give(std::make_shared<Example>(item), chunk, 0)) {
    std::rethrow_exception(error);
  }
  return put(chunk, 0, timeout_ns);
}

Producer::Session::Session(std::shared_ptr<ChannelMemory> its_memory, uint32_t its_row)
    : memory(std::move(its_memory)),
      row(its_row),
      mapping(memory->map_ring(row)),
      ring(&memory->words(row), mapping.data(), memory->capacity(),
           memory->when_full() == WhenFull::kDropOldest) {}

Producer::Producer(std::string name, ProducerOptions options)
    : name_(std::move(name)),
      timeout_ns_(options.timeout_ns),
      reconnect_(options.reconnect),
      always_wait_(options.always_wait),
      while_waiting_(std::move(options.while_waiting)) {
  watch_forks();
  try {
    wait_for_learner(end_of(timeout_ns_));
  } catch (...) {
    ignore_forks();
    throw;
  }
}

Producer::~Producer() {
  close();
  ignore_forks();
}

Producer::SessionRef Producer::session() {
  std::lock_guard lock(mutex_);
  return current_session();
}

Producer::SessionRef Producer::current_session() {
  if (closed_) {
    throw Error(Code::kClosed, kPut, "this producer of '" + name_ + "' was closed");
  }
  if (std::exchange(inherited_, false)) {
    session_.reset();  // its parent's
    peer_.reset();
    end_reason_.reset();
  }
  if (session_ != nullptr && ended(*session_)) on_disconnect();
  if (session_ != nullptr) return session_;
  if (end_reason_ && !reconnect_) throw Error(Code::kClosed, kPut, *end_reason_);
  return connect();
}

bool Producer::ended(Session& session) {
  if (session.memory->header().closed.load() != 0 || session.words().evicted.load() != 0) {
    return true;
  }
  const uint64_t now = now_ns();
  if (now - session.checked_ns < kCheckNs) return false;
  session.checked_ns = now;
  char byte;
  const ssize_t got = recv(session.learner.fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void Producer::on_disconnect() {
  const uint64_t lost = session_->ring.queued();
  lost_.fetch_add(lost);
  end_reason_ =
      "the learner of '" + name_ + "', process " + std::to_string(session_->learner.pid) +
      (session_->words().evicted.load() != 0 ? ", got an invalid item from this producer"
                                             : ", has ended") +
      ", and " + std::to_string(lost) +
      " items that it had not taken are lost: attach again, or attach with reconnect=True";
  session_.reset();
}

// One step of connecting to a learner.
Producer::SessionRef Producer::connect() {
  if (!peer_) {
    peer_ = connect_to_name("channel", name_);
    reader_ = {};
    if (!peer_) return nullptr;
  }
  auto refuse = [&](Code code, const std::string& why) {
    const std::string who = "process " + std::to_string(peer_->pid) + ", which has the channel '";
    peer_.reset();
    return Error(code, kAttachChannel, who + name_ + "', " + why);
  };
  switch (reader_.read(peer_->fd.get())) {
    case GreetingReader::State::kMore:
      return nullptr;
    case GreetingReader::State::kEnded:
      peer_.reset();
      return nullptr;
    case GreetingReader::State::kGarbage:
      throw refuse(Code::kInvalidArgument, "is no learner, or has another version of penstock");
    case GreetingReader::State::kComplete:
      break;
  }
  if (reader_.greeting().answer == Greeting::Answer::kFull) {
    throw refuse(Code::kOutOfMemory, "accepts no more producers: there may be " +
                                         std::to_string(kProducers) +
                                         ", and each needs address space for twice its ring");
  }
  const uint32_t row = reader_.greeting().row;
  if (row >= kProducers) throw refuse(Code::kInvalidArgument, "sent an invalid greeting");
  Peer learner = std::move(*peer_);
  peer_.reset();
  auto made = std::make_shared<Session>(ChannelMemory::open(reader_.take_descriptor()), row);
  made->learner = std::move(learner);
  end_reason_.reset();
  return session_ = std::move(made);
}

// Returns when a learner is connected.
void Producer::wait_for_learner(uint64_t end_ns) {
  const uint64_t begin = now_ns();
  for (;;) {
    pollfd answer{-1, POLLIN, 0};
    bool awaits_answer = false;
    {
      std::lock_guard lock(mutex_);
      // The constructor's timeout does not apply to a learner that comes back.
      if (!end_reason_ && timeout_ns_ >= 0) {
        end_ns = std::min(end_ns, begin + static_cast<uint64_t>(timeout_ns_));
      }
      if (current_session() != nullptr) return;
      if (peer_) {
        answer.fd = peer_->fd.get();
        awaits_answer = now_ns() < begin + kLearnerAnswerNs;
      }
    }
    const int64_t left = wait_slice(end_ns);
    if (left == 0 && !awaits_answer) throw timeout_error();
    poll(&answer, 1, static_cast<int>((left == 0 ? kPutWaitSliceNs : left) / 1'000'000) + 1);
  }
}

// Nanoseconds to sleep now; 0: the time is over.
int64_t Producer::wait_slice(uint64_t end_ns) {
  if (while_waiting_) while_waiting_();
  const uint64_t now = now_ns();
  if (now >= end_ns) return 0;
  return static_cast<int64_t>(std::min<uint64_t>(end_ns - now, kPutWaitSliceNs));
}

Error Producer::timeout_error() const {
  std::lock_guard lock(mutex_);
  std::string why =
      "no process has a channel '" + name_ + "' (as this user, in this network namespace)";
  if (peer_) {
    why = "process " + std::to_string(peer_->pid) + ", which has the channel '" + name_ +
          "', does not answer: is it stopped?";
  } else if (end_reason_) {
    why = *end_reason_ + "; no other learner has come";
  }
  return {Code::kTimeout, kAttachChannel, why};
}

std::optional<Producer::ChannelShape> Producer::channel_shape() {
  std::lock_guard lock(mutex_);
  if (session_ == nullptr) return std::nullopt;
  return ChannelShape{session_->memory->capacity(), session_->memory->when_full()};
}

bool Producer::alive() {
  std::lock_guard lock(mutex_);
  return !closed_ && !inherited_ && session_ != nullptr && !ended(*session_);
}

void Producer::close() {
  SessionRef last;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    last.swap(session_);
    if (inherited_) last.reset();  // the parent's: no thread here sleeps on it
    peer_.reset();
  }
  turns_.fetch_add(1);
  os::futex_wake(turns_, INT_MAX, false);
  if (last != nullptr) last->memory->wake_producer(last->row);
}

void Producer::before_fork() noexcept { mutex_.lock(); }
void Producer::after_fork_in_parent() noexcept { mutex_.unlock(); }

void Producer::after_fork_in_child() noexcept {
  inherited_ = true;
  if (session_ != nullptr) session_->learner.fd.reset();
  if (peer_) peer_->fd.reset();
  writing_.store(0);
  sleepers_.store(0);
  mutex_.unlock();
}

}  // namespace penstock::train
