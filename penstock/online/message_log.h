#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/fork_aware.h"
#include "penstock/base/os.h"
#include "penstock/io/folder_lock.h"
#include "penstock/online/message.h"
#include "penstock/online/recent_ids.h"

namespace penstock::online {

// A message as the queue and the log keep it.
struct StoredMessage {
  std::string bytes;  // topic, then payload
  uint32_t topic_bytes = 0;
  uint16_t packet_id = 0;
  uint64_t received_ns = 0;                // now_ns()
  uint64_t offset = 0;                     // its number among all messages of the log
  std::shared_ptr<void> object = nullptr;  // of a source without bytes; never in a log

  std::string_view topic() const { return std::string_view(bytes).substr(0, topic_bytes); }
  std::string_view payload() const { return std::string_view(bytes).substr(topic_bytes); }
};

struct LogOptions {
  std::string folder;                           // made if it does not exist; one process at a time
  int64_t fsync_ns = 10'000'000;                // between two flushes to disk; 0: each; < 0: none
  uint64_t segment_bytes = uint64_t{64} << 20;  // of a file, after which the next one begins
  uint64_t max_pending = uint64_t{16} << 20;    // bytes that may wait to be written
};

// An append-only log of messages in files of a folder, numbered from 0. A thread of the log writes
// what was appended, flushes it by policy, and then hands over its tokens: a message is
// acknowledged when it is in the log, and not before. README.md has the bytes.
//
// After a failed write, for example on a full disk, the log is cut behind its last whole message,
// hands over no more tokens, and every member that appends or flushes throws that error.
//
// Threads: any. In a forked child the log is the parent's: the destructor and close() do nothing,
// and members that append or flush throw kInvalidArgument.
class MessageLog final : private ForkAware {
 public:
  // The tokens that are safe now, and the offset below which all messages are.
  using Tokens = std::function<void(std::span<const uint64_t>, uint64_t)>;

  // Opens the folder's log. A torn end of the last file, left by a crash, is cut off. `spooled` is
  // called by the log's thread after each write, without locks. Errors: kInvalidArgument (another
  // process has the log), kDataLoss (a damaged message with whole ones behind it), kSystem.
  MessageLog(LogOptions options, Tokens spooled);
  ~MessageLog();
  // Writes and flushes what was appended; another log of the folder may be opened. Later members
  // that append or flush throw kClosed. Idempotent; one thread.
  void close();

  uint64_t begin() const;                               // the oldest message's offset
  uint64_t end() const;                                 // the next message's offset
  uint64_t spooled() const;                             // messages below are flushed by policy
  uint64_t torn_bytes() const { return torn_bytes_; }   // that were cut off when it was opened
  const RecentIds& ids() const { return opened_ids_; }  // when it was opened
  // More than max_pending bytes wait, or a write has failed: append() would store nothing.
  bool busy() const;

  // An empty log begins at `offset`. REQUIRED: nothing was appended; offset >= end().
  void skip_to(uint64_t offset);
  // Queues a message, and returns its offset. Errors: that of a failed write; kInvalidArgument (the
  // message is larger than 1 GiB).
  uint64_t append(const Message& message, uint32_t crc);
  // Hands over this token when all that was appended so far is in the log.
  void acknowledge(uint64_t token);
  // Waits until all that was appended is on the disk, under any policy, and its tokens were handed
  // over. REQUIRED: not called by the log's thread.
  void sync();
  // Removes files whose messages are all below `offset`.
  void trim(uint64_t offset);
  // Throws the error of a failed write.
  void check() const;

  // Reads messages of a range of offsets, in order.
  class Reader {
   public:
    Reader(const MessageLog& log, uint64_t from, uint64_t to);
    bool done() const { return next_ >= to_; }
    // Errors: kDataLoss, kSystem.
    StoredMessage next();

   private:
    const MessageLog& log_;
    uint64_t next_, to_;
    os::Fd fd_;
    std::string path_;
    uint64_t segment_ = 0, segment_end_ = 0;  // offsets
    std::string buffer_;
    uint64_t at_ = 0, file_at_ = 0;
    bool fill(uint64_t bytes);
  };

 private:
  struct Segment {
    uint64_t first = 0, end = 0;  // offsets
    uint64_t bytes = 0;
    std::string path;
  };

  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork_in_parent() noexcept override { mutex_.unlock(); }
  void after_fork_in_child() noexcept override;
  void check_process() const;

  void open();
  void scan(Segment& segment, bool last);
  void begin_segment(uint64_t first);
  void run();
  void write_out(std::span<const std::byte> bytes);
  void flush();

  const LogOptions options_;
  const Tokens hand_over_;
  std::optional<FolderLock> lock_;
  uint64_t torn_bytes_ = 0;
  RecentIds opened_ids_;

  // A forked child leaks it: destroying a condition or a thread waits for threads, and the log's
  // thread may have been changing the rest.
  struct Writer {
    std::condition_variable changed, progress;
    std::thread thread;
    os::Fd fd;      // of the last segment; of the thread
    RecentIds ids;  // of the messages that are written, and no others; of the thread
  };
  std::unique_ptr<Writer> writer_ = std::make_unique<Writer>();
  std::atomic<bool> inherited_{false};  // in a forked child

  mutable std::mutex mutex_;      // guards all below, but what only the thread uses
  std::deque<Segment> segments_;  // the last one is written to
  std::string pending_;
  std::vector<RecentIds::Id> pending_ids_;
  std::vector<uint64_t> pending_tokens_;
  uint64_t appended_ = 0, written_ = 0, spooled_ = 0, synced_ = 0;  // offsets
  uint64_t sync_until_ = 0;                                         // sync() waits for this offset
  std::optional<Error> error_;
  bool stop_ = false;
};

}  // namespace penstock::online
