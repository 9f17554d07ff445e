#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/fork_aware.h"
#include "penstock/base/os.h"
#include "penstock/memory/tensor.h"
#include "penstock/train/named_socket.h"
#include "penstock/train/weights_memory.h"

namespace penstock::train {

// A reader's row in one learner's memory, and the connection that reserves the row. Lives as long
// as anything read through it. In a forked child, the row and its held version remain the parent's.
// Threads: any.
class Attachment final : private ForkAware {
 public:
  Attachment(std::shared_ptr<const WeightsMemory> memory, uint32_t row);
  ~Attachment();

  const WeightsMemory& memory() const { return *memory_; }
  uint32_t row() const { return row_; }
  void keep(os::Fd connection) { connection_ = std::move(connection); }  // not during a fork
  void release(uint32_t slot) const;

 private:
  void after_fork_in_child() noexcept override;

  const std::shared_ptr<const WeightsMemory> memory_;
  const uint32_t row_;
  os::Fd connection_;
  std::atomic<bool> inherited_{false};
};

// One version of a learner's weights, whole and in place: unchanged as long as a copy of this
// handle, or a tensor made from it, exists. A held version costs the learner the memory of one
// version, so release the handle soon. In a forked child, a Reading of the parent is valid only as
// long as the parent holds it. Threads: any.
class Reading {
 public:
  // `version` is held in the attachment's row; the last copy releases it.
  Reading(std::shared_ptr<const Attachment> from, WeightsMemory::Version version);

  uint64_t version() const { return hold_->version.number; }
  const Layout& layout() const { return hold_->from->memory().layout(); }
  // All floats, gaps included, as Slab::values().
  std::span<const float> values() const {
    return hold_->from->memory().values(hold_->version.slot);
  }
  // A block: float32, read-only; keeps the version. Error kNotFound.
  Tensor at(std::string_view name) const;

  const std::shared_ptr<const Attachment>& from() const { return hold_->from; }

 private:
  struct Hold {
    Hold(std::shared_ptr<const Attachment> attachment, WeightsMemory::Version held)
        : from(std::move(attachment)), version(held) {}
    ~Hold() { from->release(version.slot); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    const std::shared_ptr<const Attachment> from;
    const WeightsMemory::Version version;
  };

  std::shared_ptr<Hold> hold_;
};

struct ModelOptions {
  std::optional<Layout> like = std::nullopt;  // the layout that the weights must have; empty: any
  // To wait for the first version; < 0: no timeout, 0: one look.
  int64_t timeout_ns = 60'000'000'000;
  // Called about 10 times a second in the thread of a call that waits. May throw, which ends the
  // call.
  std::function<void()> while_waiting = nullptr;
};

// Weights that another process of this user publishes under a name (publisher.h). Attaching waits
// for the first version. Reads never wait, and the learner never waits for a reader.
//
// When the learner ends, reads return its last version, and those of the next learner of that name
// as soon as it has published. A learner with other blocks is refused: reads are an Error until it
// has ended.
//
// A forked child attaches anew in its first call. Readings outlive the Model.
//
// Threads: any, and each call may be made by many.
class Model final : private ForkAware {
 public:
  // Waits for the first version. Errors: kTimeout, kInvalidArgument (the name; blocks other than
  // `like`; the process with that name is not a learner, or another user's), kOutOfMemory (address
  // space; the learner has its maximum of readers), kSystem.
  explicit Model(std::string name, ModelOptions options = {});
  ~Model();

  const std::string& name() const { return name_; }
  const Layout& layout() const { return *layout_; }

  // The newest version. With max_lag > 0: the version of the last such read, if it is at most
  // max_lag versions old; the Model holds that version. Takes a microsecond or less; waits only in
  // a forked child's first call. Errors: kClosed, kInvalidArgument (a new learner with other
  // blocks).
  Reading read(uint64_t max_lag = 0);
  // Sleeps until the version is at least `version`. Also waits for a new learner, which counts from
  // 0, to get there. False after the timeout (< 0: none). Errors as read().
  bool wait(uint64_t version, int64_t timeout_ns = -1);

  uint64_t version();       // the newest; errors as read()
  bool would_wait() const;  // whether read() would wait now
  bool alive() const;       // whether a learner is connected now
  void close();             // ends all waits; later calls throw kClosed. Idempotent

 private:
  using AttachmentRef = std::shared_ptr<const Attachment>;
  // Objects to destroy after mutex_ is unlocked: an Attachment's end waits for a fork in progress,
  // and a fork waits for mutex_.
  struct Retired {
    AttachmentRef attached, next, mine;
    std::optional<Reading> last;
  };

  struct Refusal {  // the parts of an Error: an Error object is not thrown in several threads
    Code code;
    std::string text;
  };

  void before_fork() noexcept override;
  void after_fork_in_parent() noexcept override;
  void after_fork_in_child() noexcept override;

  // The attachment to read from. Waits for it as long as the options say.
  AttachmentRef attachment();
  bool wait_for(const AttachmentRef& with, uint32_t seen, uint64_t version, uint64_t end_ns);
  Error timeout_error();

  // With mutex_ held:
  AttachmentRef newest(Retired& retired);
  void check();
  void start();
  void reattach(Retired& retired);
  void notify();

  // The thread that looks for learners:
  void run() noexcept;
  void follow_learner();
  bool read_greeting(int fd, GreetingReader& reader);
  void check_layout(const Layout& layout);
  bool readable(int fd) const;
  void refuse(const Error& error);  // with mutex_ held

  const std::string name_;
  const int64_t timeout_ns_;
  const std::function<void()> while_waiting_;

  mutable std::mutex mutex_;
  std::optional<Layout> layout_;  // set once, before the constructor returns
  AttachmentRef attached_;        // has published a version
  AttachmentRef next_;            // a new learner's, possibly without a version yet
  std::optional<Reading> last_;   // of the last read with a max_lag
  std::optional<Refusal> refused_;
  std::optional<Peer> peer_;  // connected, greeting not yet received
  bool searched_ = false;     // the first search for a learner has ended
  bool alive_ = false;
  bool closed_ = false;
  bool inherited_ = false;  // forked since the last call
  os::Fd stop_;
  std::unique_ptr<std::thread> thread_;
  std::atomic<uint32_t> changes_{0};  // incremented when a member above changes
};

}  // namespace penstock::train
