#include "penstock/online/message_queue.h"

#include <algorithm>
#include <chrono>

#include "penstock/base/clock.h"
#include "penstock/base/os.h"

namespace penstock::online {
namespace {

constexpr auto kLook = std::chrono::milliseconds(100);
constexpr uint64_t kOverhead = 128;  // bytes of a queued message beside its own

}  // namespace

MessageQueue::MessageQueue(QueueOptions options) : options_(std::move(options)) {
  if (options_.max_messages == 0 || options_.max_bytes == 0) {
    throw Error(Code::kInvalidArgument, "Online", "the queue has no space: give 1 or more");
  }
  end_ = next_ = trained_ = options_.offset;
  spooled_ = UINT64_MAX;
  if (options_.log) {
    const auto written = [this](std::span<const uint64_t> tokens, uint64_t spooled) {
      if (options_.acknowledge == Acknowledge::kSpooled) {
        acknowledge(tokens);
      } else {
        {
          std::lock_guard lock(mutex_);
          spooled_ = spooled;
        }
        acknowledge_trained();
      }
      tell_of_space();
    };
    log_ = std::make_unique<MessageLog>(*options_.log, written);
    // A snapshot flushes the log first. So a log that ends before it was replaced or removed.
    if (log_->end() < options_.offset) log_->skip_to(options_.offset);
    if (log_->begin() > options_.offset) {
      throw Error(Code::kDataLoss, "Online",
                  "the snapshot is of message " + std::to_string(options_.offset) +
                      ", but the spool " + options_.log->folder + " begins at message " +
                      std::to_string(log_->begin()) + ": restore the snapshot that belongs to it");
    }
    end_ = spooled_ = log_->end();
    ids_ = log_->ids();
    if (end_ > next_) replay_ = std::make_unique<MessageLog::Reader>(*log_, next_, end_);
    counts_.torn_bytes = log_->torn_bytes();
  }
  begun_ = end_;
  watch_forks();
}

MessageQueue::~MessageQueue() {
  ignore_forks();
  close();
  if (!inherited_.load()) return;
  // Other threads of the parent may have been changing these.
  (void)waits_.release();
  (void)replay_.release();
  (void)new std::vector<uint64_t>(std::move(received_ns_));
  (void)new std::shared_ptr<MessageSource>(std::move(source_));
}

void MessageQueue::after_fork_in_child() noexcept {
  inherited_.store(true);
  mutex_.unlock();
}

void MessageQueue::check_process() const {
  if (!inherited_.load()) return;
  throw Error(Code::kInvalidArgument, "Online",
              "the queue belongs to the process that this one was forked from; make another here");
}

void MessageQueue::close() {
  if (inherited_.load()) return;
  stop();
  std::lock_guard life(life_);
  if (log_ != nullptr) log_->close();
}

void MessageQueue::start(std::shared_ptr<MessageSource> source) {
  check_process();
  std::lock_guard life(life_);
  {
    std::lock_guard lock(mutex_);
    if (stopped_) throw Error(Code::kClosed, "Online", "the queue was stopped; make another");
    source_ = source;
  }
  try {
    source->start(*this);
  } catch (...) {
    std::lock_guard lock(mutex_);
    source_ = nullptr;  // it is another's
    throw;
  }
}

void MessageQueue::stop() {
  check_process();
  std::lock_guard life(life_);
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  waits_->arrived.notify_all();
  waits_->space.notify_all();
  const auto source = this->source();
  if (source == nullptr) return;
  try {
    sync();  // so that what is in the log is acknowledged before the source disconnects
  } catch (const Error&) {  // of the disk: nothing more is acknowledged
  }
  source->stop();
}

bool MessageQueue::over(uint64_t bytes) const {
  return messages_.size() >= options_.max_messages ||
         (!messages_.empty() && bytes_ + bytes > options_.max_bytes);
}

std::vector<MessageQueue::Entry> MessageQueue::add(StoredMessage message, uint64_t bytes,
                                                   uint64_t token) {
  std::vector<Entry> dropped;
  if (options_.when_full == WhenFull::kDropOldest) {
    while (over(bytes) && !messages_.empty()) {
      bytes_ -= messages_.front().second;
      dropped.push_back(std::move(messages_.front()));
      messages_.pop_front();
      ++counts_.dropped;
    }
  }
  if (options_.acknowledge == Acknowledge::kAfterTrain && token != 0) {
    unacknowledged_.emplace_back(message.offset + 1, token);
  }
  bytes_ += bytes;
  messages_.emplace_back(std::move(message), bytes);
  waits_->arrived.notify_one();
  return dropped;
}

bool MessageQueue::put(const Message& message) {
  check_process();
  const uint32_t crc = RecentIds::checksum(message.topic, message.payload);
  const uint64_t bytes = message.topic.size() + message.payload.size() + kOverhead;
  bool acknowledge_now = false, perhaps_trained = false;
  std::vector<Entry> dropped;  // destroyed after the lock
  {
    std::lock_guard lock(mutex_);
    if (ids_.seen(message, crc)) {
      ++counts_.duplicates;
      // Safe as soon as all that was received before is.
      if (options_.acknowledge == Acknowledge::kAfterTrain) {
        if (message.token != 0) unacknowledged_.emplace_back(end_, message.token);
        perhaps_trained = true;
      } else if (log_ != nullptr) {
        log_->acknowledge(message.token);
      } else {
        acknowledge_now = true;
      }
    } else if (options_.when_full == WhenFull::kDropNewest && over(bytes)) {
      ++counts_.received;
      ++counts_.dropped;
      return false;
    } else {
      StoredMessage stored;
      stored.bytes.reserve(message.topic.size() + message.payload.size());
      stored.bytes.append(message.topic);
      stored.bytes.append(reinterpret_cast<const char*>(message.payload.data()),
                          message.payload.size());
      stored.topic_bytes = static_cast<uint32_t>(message.topic.size());
      stored.packet_id = message.packet_id;
      stored.received_ns = message.received_ns;
      if (log_ != nullptr) {
        try {
          log_->append(message, crc);
        } catch (const Error& error) {
          if (error.code() == Code::kInvalidArgument) throw;
          // take() throws it. Nothing is acknowledged, so the broker keeps the message.
          waits_->arrived.notify_all();
          return true;
        }
      } else {
        acknowledge_now = options_.acknowledge == Acknowledge::kSpooled;
      }
      ids_.note({message.packet_id, crc});
      stored.offset = end_++;
      dropped = add(std::move(stored), bytes, message.token);
    }
    ++counts_.received;
  }
  if (acknowledge_now && message.token != 0) acknowledge(std::span(&message.token, 1));
  if (perhaps_trained) acknowledge_trained();
  return true;
}

bool MessageQueue::put_object(std::shared_ptr<void> object, uint64_t bytes) {
  check_process();
  if (log_ != nullptr) {
    throw Error(Code::kInvalidArgument, "Online",
                "a spool takes messages of bytes: let the source yield bytes or (topic, bytes)");
  }
  std::vector<Entry> dropped;  // destroyed after the lock
  std::lock_guard lock(mutex_);
  ++counts_.received;
  if (options_.when_full == WhenFull::kDropNewest && over(bytes + kOverhead)) {
    ++counts_.dropped;
    return false;
  }
  StoredMessage stored;
  stored.object = std::move(object);
  stored.received_ns = now_ns();
  stored.offset = end_++;
  dropped = add(std::move(stored), bytes + kOverhead, 0);
  return true;
}

bool MessageQueue::full() const {
  check_process();
  std::lock_guard lock(mutex_);
  if (stopped_) return false;
  const bool block = options_.when_full == WhenFull::kBlock;
  const bool is =
      (block && (messages_.size() >= options_.max_messages || bytes_ >= options_.max_bytes)) ||
      (log_ != nullptr && log_->busy());
  if (is) was_full_ = true;
  return is;
}

void MessageQueue::check() const {
  check_process();
  if (log_ != nullptr) log_->check();
}

void MessageQueue::ended(const std::string& error) {
  check_process();
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    source_error_ = error;
  }
  waits_->arrived.notify_all();
}

bool MessageQueue::wait_for_space(int64_t timeout_ns) {
  const uint64_t until = timeout_ns < 0 ? UINT64_MAX : now_ns() + static_cast<uint64_t>(timeout_ns);
  while (full()) {
    const uint64_t now = now_ns();
    if (now >= until) return false;
    std::unique_lock lock(mutex_);
    if (!was_full_) continue;  // there was space since
    waits_->space.wait_for(
        lock, std::min<std::chrono::nanoseconds>(kLook, std::chrono::nanoseconds(until - now)));
    lock.unlock();
    if (options_.while_waiting) options_.while_waiting();
  }
  std::lock_guard lock(mutex_);
  return !stopped_;
}

std::vector<StoredMessage> MessageQueue::take(uint64_t most, uint64_t least, int64_t max_wait_ns,
                                              int64_t timeout_ns) {
  check_process();
  {
    std::lock_guard lock(mutex_);
    live_.asked(now_ns());
  }
  std::vector<StoredMessage> taken = take_ready(most, least, max_wait_ns, timeout_ns);
  uint64_t bytes = 0;
  for (const StoredMessage& message : taken) bytes += message.bytes.size();
  std::lock_guard lock(mutex_);
  live_.given(now_ns(), taken.size(), bytes);
  return taken;
}

std::vector<StoredMessage> MessageQueue::take_ready(uint64_t most, uint64_t least,
                                                    int64_t max_wait_ns, int64_t timeout_ns) {
  const uint64_t until = timeout_ns < 0 ? UINT64_MAX : now_ns() + static_cast<uint64_t>(timeout_ns);
  received_ns_.clear();
  aged_ = false;
  if (replay_ != nullptr) return replayed(most);
  std::vector<StoredMessage> taken;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (log_ != nullptr) log_->check();
    const uint64_t now = now_ns();
    uint64_t wake = until;
    if (!messages_.empty()) {
      const uint64_t wait = max_wait_ns > 0 ? static_cast<uint64_t>(max_wait_ns) : 0;
      const uint64_t due = messages_.front().first.received_ns + wait;
      if (messages_.size() >= std::min(least, options_.max_messages) || ended_ || stopped_ ||
          bytes_ >= options_.max_bytes || now >= due) {
        break;
      }
      wake = std::min(wake, due);
    } else if (ended_ || stopped_) {
      if (!source_error_.empty()) throw Error(Code::kClosed, "Online", source_error_);
      return taken;
    }
    if (now >= until) return taken;
    waits_->arrived.wait_for(
        lock, std::min<std::chrono::nanoseconds>(
                  kLook, std::chrono::nanoseconds(std::min<uint64_t>(wake - now, 1'000'000'000))));
    if (options_.while_waiting) {
      lock.unlock();
      options_.while_waiting();
      lock.lock();
    }
  }
  const uint64_t count = std::min<uint64_t>(most, messages_.size());
  taken.reserve(count);
  received_ns_.reserve(count);
  while (taken.size() < count) {
    bytes_ -= messages_.front().second;
    taken.push_back(std::move(messages_.front().first));
    messages_.pop_front();
    received_ns_.push_back(taken.back().received_ns);
  }
  counts_.taken += count;
  next_ = taken.back().offset + 1;
  lock.unlock();
  tell_of_space();
  return taken;
}

// The log's own thread has nothing older to write: these messages are in files.
std::vector<StoredMessage> MessageQueue::replayed(uint64_t most) {
  std::vector<StoredMessage> taken;
  try {
    while (taken.size() < most && !replay_->done()) taken.push_back(replay_->next());
  } catch (const Error&) {
    if (taken.empty()) throw;  // the next call throws it: what was read is not lost
  }
  for (const StoredMessage& each : taken) received_ns_.push_back(each.received_ns);
  std::lock_guard lock(mutex_);
  if (replay_->done()) replay_ = nullptr;
  counts_.replayed += taken.size();
  counts_.taken += taken.size();
  if (!taken.empty()) next_ = taken.back().offset + 1;
  return taken;
}

void MessageQueue::tell_of_space() {
  std::shared_ptr<MessageSource> source;
  {
    std::lock_guard lock(mutex_);
    if (!was_full_) return;
    was_full_ = false;
    source = source_;
  }
  waits_->space.notify_all();
  if (source != nullptr) source->space();
}

std::shared_ptr<MessageSource> MessageQueue::source() const {
  check_process();
  std::lock_guard lock(mutex_);
  return source_;
}

void MessageQueue::acknowledge(std::span<const uint64_t> tokens) {
  if (tokens.empty()) return;
  if (const auto to = source()) to->acknowledge(tokens);
}

void MessageQueue::acknowledge_trained() {
  std::vector<uint64_t> tokens;
  {
    std::lock_guard lock(mutex_);
    const uint64_t safe = std::min(trained_, spooled_);
    while (!unacknowledged_.empty() && unacknowledged_.front().first <= safe) {
      tokens.push_back(unacknowledged_.front().second);
      unacknowledged_.pop_front();
    }
  }
  acknowledge(tokens);
}

bool MessageQueue::finished() const {
  check_process();
  std::lock_guard lock(mutex_);
  return (ended_ || stopped_) && messages_.empty() && replay_ == nullptr;
}

uint64_t MessageQueue::next_offset() const {
  check_process();
  std::lock_guard lock(mutex_);
  return next_;
}

std::vector<uint64_t> MessageQueue::aged() {
  check_process();
  const uint64_t now = now_ns();
  std::vector<uint64_t> ages;
  ages.reserve(received_ns_.size());
  for (const uint64_t received : received_ns_) {
    ages.push_back(now > received ? now - received : 0);
  }
  std::lock_guard lock(mutex_);
  if (!aged_) live_.predicted(ages);
  aged_ = true;
  return ages;
}

void MessageQueue::trained(uint64_t offset) {
  check_process();
  {
    std::lock_guard lock(mutex_);
    trained_ = std::max(trained_, offset);
  }
  acknowledge_trained();
}

void MessageQueue::sync() {
  check_process();
  if (log_ != nullptr) log_->sync();
}

void MessageQueue::trim(uint64_t offset) {
  check_process();
  if (log_ != nullptr) log_->trim(offset);
}

QueueCounts MessageQueue::counts() const {
  check_process();
  std::lock_guard lock(mutex_);
  QueueCounts counts = counts_;
  counts.queued = messages_.size();
  counts.queued_bytes = bytes_;
  counts.batches = live_.figures().delivered;
  counts.largest_batch = live_.largest_batch();
  counts.batch_sizes = live_.batch_sizes();
  counts.ages = live_.ages();
  if (log_ != nullptr) counts.spooled = log_->spooled() - std::min(begun_, log_->spooled());
  return counts;
}

Snapshot MessageQueue::snapshot() const {
  check_process();
  Snapshot snapshot;
  snapshot.mode = "live";
  snapshot.cores = os::usable_cores();
  snapshot.taken_ns = now_ns();
  std::lock_guard lock(mutex_);
  snapshot.queue_size = options_.max_messages;
  snapshot.max_bytes = options_.max_bytes;
  snapshot.consumer = live_.figures();
  snapshot.consumer_trace = live_.trace();
  snapshot.live = LiveSnapshot{.received = counts_.received + counts_.replayed,
                               .dropped = counts_.dropped,
                               .queued = messages_.size(),
                               .ages = live_.ages(),
                               .batch_sizes = live_.batch_sizes(),
                               .largest_batch = live_.largest_batch(),
                               .history = live_.history()};
  return snapshot;
}

}  // namespace penstock::online
