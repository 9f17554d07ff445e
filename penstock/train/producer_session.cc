#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/train/producer.h"

// How a Producer finds a learner, and notices its end. There is no thread: whoever puts looks.
namespace penstock::train {
namespace {

constexpr const char* kAttachChannel = "attach_channel";
constexpr const char* kPut = "put";
constexpr int64_t kSessionPatienceNs = 50'000'000;    // between two looks while it waits
constexpr int64_t kSessionFirstLookNs = 250'000'000;  // for a learner to answer, at the least
constexpr uint64_t kLookNs = 1'000'000;               // between two looks while it puts

uint64_t end_of(int64_t timeout_ns) {
  return timeout_ns < 0 ? UINT64_MAX : now_ns() + static_cast<uint64_t>(timeout_ns);
}

}  // namespace

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
  return now();
}

Producer::SessionRef Producer::now() {
  if (closed_) {
    throw Error(Code::kClosed, kPut, "this producer of '" + name_ + "' was closed");
  }
  if (std::exchange(inherited_, false)) {
    session_.reset();  // its parent's
    peer_.reset();
    over_.reset();
  }
  if (session_ != nullptr && ended(*session_)) mourn();
  if (session_ != nullptr) return session_;
  if (over_ && !reconnect_) throw Error(Code::kClosed, kPut, *over_);
  return connect();
}

bool Producer::ended(Session& session) {
  if (session.memory->header().closed.load() != 0 || session.words().banished.load() != 0) {
    return true;
  }
  const uint64_t now = now_ns();
  if (now - session.looked_ns < kLookNs) return false;
  session.looked_ns = now;
  char byte;
  const ssize_t got = recv(session.learner.fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void Producer::mourn() {
  const uint64_t lost = session_->ring.queued();
  lost_.fetch_add(lost);
  over_ = "the learner of '" + name_ + "', process " + std::to_string(session_->learner.pid) +
          (session_->words().banished.load() != 0 ? ", was given what is no item by this producer"
                                                  : ", is gone") +
          ", and " + std::to_string(lost) +
          " items that it had not taken are lost: attach again, or attach with reconnect";
  session_.reset();
}

// One step towards a learner.
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
      throw refuse(Code::kInvalidArgument, "is no learner, or one of another version of penstock");
    case GreetingReader::State::kComplete:
      break;
  }
  if (reader_.greeting().answer == Greeting::Answer::kFull) {
    throw refuse(Code::kOutOfMemory,
                 "can have no more producers: " + std::to_string(kProducers) +
                     " are the most, and each needs address space there for twice its ring");
  }
  const uint32_t row = reader_.greeting().row;
  if (row >= kProducers) throw refuse(Code::kInvalidArgument, "says what cannot be");
  Peer learner = std::move(*peer_);
  peer_.reset();
  auto made = std::make_shared<Session>(ChannelMemory::open(reader_.take_descriptor()), row);
  made->learner = std::move(learner);
  over_.reset();
  return session_ = std::move(made);
}

// Returns once there is one.
void Producer::wait_for_learner(uint64_t end_ns) {
  const uint64_t begin = now_ns();
  for (;;) {
    pollfd answer{-1, POLLIN, 0};
    bool patient = false;
    {
      std::lock_guard lock(mutex_);
      // A learner that comes back may take its time.
      if (!over_ && timeout_ns_ >= 0) {
        end_ns = std::min(end_ns, begin + static_cast<uint64_t>(timeout_ns_));
      }
      if (now() != nullptr) return;
      if (peer_) {
        answer.fd = peer_->fd.get();
        patient = now_ns() < begin + kSessionFirstLookNs;
      }
    }
    const int64_t left = patience(end_ns);
    if (left == 0 && !patient) throw nobody();
    poll(&answer, 1, static_cast<int>((left == 0 ? kSessionPatienceNs : left) / 1'000'000) + 1);
  }
}

// How long to sleep now; 0: it is over.
int64_t Producer::patience(uint64_t end_ns) {
  if (while_waiting_) while_waiting_();
  const uint64_t now = now_ns();
  if (now >= end_ns) return 0;
  return static_cast<int64_t>(std::min<uint64_t>(end_ns - now, kSessionPatienceNs));
}

Error Producer::nobody() const {
  std::lock_guard lock(mutex_);
  std::string why =
      "nobody has a channel '" + name_ + "' (as this user, in this network namespace)";
  if (peer_) {
    why = "process " + std::to_string(peer_->pid) + ", which has the channel '" + name_ +
          "', does not answer: is it stopped?";
  } else if (over_) {
    why = *over_ + "; no other has come";
  }
  return {Code::kTimeout, kAttachChannel, why};
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
    if (inherited_) last.reset();  // its parent's: nobody here sleeps on it
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
