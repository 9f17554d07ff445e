#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/fork_aware.h"
#include "penstock/observe/live.h"
#include "penstock/observe/snapshot.h"
#include "penstock/online/message.h"
#include "penstock/online/message_log.h"

namespace penstock::online {

enum class WhenFull : uint8_t { kBlock, kDropOldest, kDropNewest };
enum class Acknowledge : uint8_t { kSpooled, kAfterTrain };

struct QueueOptions {
  uint64_t max_messages = 65'536;
  uint64_t max_bytes = uint64_t{64} << 20;  // of topics and payloads
  WhenFull when_full = WhenFull::kBlock;
  // Without a log, kSpooled acknowledges a message when it is in the queue.
  Acknowledge acknowledge = Acknowledge::kSpooled;
  std::optional<LogOptions> log = std::nullopt;
  // The next message to take is this one of the log: that of the snapshot. The log's messages from
  // here on are taken first.
  uint64_t offset = 0;
  // Called about 10 times a second in a thread that waits. May throw, which ends the wait.
  std::function<void()> while_waiting = nullptr;
};

// received + replayed = taken + queued + dropped + duplicates.
struct QueueCounts {
  uint64_t received = 0, dropped = 0, duplicates = 0, taken = 0, replayed = 0;
  uint64_t queued = 0, queued_bytes = 0;
  uint64_t spooled = 0;     // received messages that are in the log
  uint64_t torn_bytes = 0;  // cut off the log when it was opened
  uint64_t batches = 0, largest_batch = 0;
  BatchSizes batch_sizes{};
  LatencyHistogram ages;  // of messages when their predictions were made
};

// Messages between a source's thread and one consumer, in bounded memory. Each message has an
// offset, its number in the log; without a log, since the queue was made.
//
// 1. Messages are taken in the order of their offsets. A message that was dropped keeps its offset.
// 2. With a log, a message is acknowledged when it is in the log, flushed by policy, also if it was
//    dropped from the queue. With kAfterTrain, when trained() has passed it, too.
// 3. A redelivered message that is in the log, or was received by this queue, is not taken twice.
//
// Threads: take(), next_offset(), aged(), trained() by the consumer's; others any. In a forked
// child the queue is the parent's: close() and the destructor do nothing, others throw
// kInvalidArgument.
class MessageQueue : public MessageSink, private ForkAware {
 public:
  // Errors: those of MessageLog; kDataLoss: the log begins behind `offset`.
  explicit MessageQueue(QueueOptions options);
  ~MessageQueue() override;

  // REQUIRED: once. Errors: that of the source's start(), after which another may be started;
  // kClosed: after stop().
  void start(std::shared_ptr<MessageSource> source);
  // Stops the source. What is queued can still be taken. Idempotent.
  void stop();
  // stop(), and closes the log: another queue may open it, and a take() throws kClosed. Idempotent.
  void close();

  // After a failed write of the log it stores nothing, and take() throws that error. Error
  // kInvalidArgument: with a log, the message is larger than 1 GiB.
  bool put(const Message& message) override;
  // The same for a source of objects: `bytes` are its share of max_bytes. REQUIRED: no log.
  bool put_object(std::shared_ptr<void> object, uint64_t bytes);
  bool full() const override;
  void check() const override;
  void ended(const std::string& error) override;
  // Waits until the queue is not full. False: stopped, or after the timeout.
  bool wait_for_space(int64_t timeout_ns);

  // All messages that are there, at most `most` (> 0). Waits for one, then up to max_wait_ns from
  // its arrival for `least`. Empty: the source has ended, the queue was stopped, or after the
  // timeout (< 0: none). Errors: that of the log; kClosed, with what the source said when it gave
  // up.
  std::vector<StoredMessage> take(uint64_t most, uint64_t least = 1, int64_t max_wait_ns = 0,
                                  int64_t timeout_ns = -1);
  bool finished() const;         // ended or stopped, and nothing is left
  uint64_t next_offset() const;  // of the message that take() returns next

  // The ages of the messages taken last, in ns. The first call after a take() counts them.
  std::vector<uint64_t> aged();
  // All messages below this offset were trained on.
  void trained(uint64_t offset);
  // Flushes the log. A snapshot is written after it, so that no offset in a snapshot is missing in
  // the log.
  void sync();
  // A snapshot with this offset is on the disk: the log forgets the messages below.
  void trim(uint64_t offset);

  QueueCounts counts() const;
  // For report_html(): the model's time, ages, and batch sizes over time. The caller may add title,
  // batch_size (the most messages of a batch) and facts.
  Snapshot snapshot() const;
  std::shared_ptr<MessageSource> source() const;

 private:
  using Entry = std::pair<StoredMessage, uint64_t>;  // with its bytes

  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork_in_parent() noexcept override { mutex_.unlock(); }
  void after_fork_in_child() noexcept override;
  void check_process() const;

  std::vector<StoredMessage> take_ready(uint64_t most, uint64_t least, int64_t max_wait_ns,
                                        int64_t timeout_ns);
  // Returns the dropped ones, for the caller to destroy without mutex_: an object may need a lock.
  std::vector<Entry> add(StoredMessage message, uint64_t bytes, uint64_t token);  // with mutex_
  bool over(uint64_t bytes) const;                                                // with mutex_
  std::vector<StoredMessage> replayed(uint64_t most);
  void tell_of_space();
  void acknowledge(std::span<const uint64_t> tokens);
  void acknowledge_trained();  // those of unacknowledged_ that are safe now

  // Destroying them waits for threads, which a forked child does not have: it leaks them.
  struct Waits {
    std::condition_variable arrived, space;
  };

  const QueueOptions options_;
  std::atomic<bool> inherited_{false};  // in a forked child
  std::mutex life_;                     // of start(), stop() and close(); locked first

  mutable std::mutex mutex_;  // locked before the log's; guards all below, but what says otherwise
  std::unique_ptr<Waits> waits_ = std::make_unique<Waits>();
  std::shared_ptr<MessageSource> source_;
  std::deque<Entry> messages_;
  // With kAfterTrain: tokens, each with the offset below which all must be trained on and spooled.
  std::deque<std::pair<uint64_t, uint64_t>> unacknowledged_;
  uint64_t trained_ = 0, spooled_ = 0;  // the messages below are
  RecentIds ids_;
  uint64_t bytes_ = 0;
  uint64_t end_ = 0;               // the next message's offset
  uint64_t next_ = 0;              // take() has passed the offsets below
  uint64_t begun_ = 0;             // end_ when the queue was made
  mutable bool was_full_ = false;  // the source waits for space()
  bool ended_ = false, stopped_ = false;
  std::string source_error_;
  std::vector<uint64_t> received_ns_;  // of the messages taken last; of the consumer
  bool aged_ = false;                  // of the consumer
  QueueCounts counts_;
  LiveCounts live_;

  std::unique_ptr<MessageLog::Reader> replay_;  // of the consumer, which locks mutex_ to set it
  std::unique_ptr<MessageLog> log_;  // last: its thread uses the members above; not set again
};

}  // namespace penstock::online
