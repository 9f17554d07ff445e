#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "penstock/base/error.h"
#include "penstock/base/fork_aware.h"
#include "penstock/base/os.h"
#include "penstock/train/named_socket.h"
#include "penstock/train/reading.h"

namespace penstock::train {

struct ModelOptions {
  std::optional<Layout> like = std::nullopt;  // what the weights must look like; empty: anything
  int64_t timeout_ns = 60'000'000'000;        // for the first version; < 0: for ever, 0: one look
  // Called from time to time in the thread of a call that waits. May throw, which ends the call.
  std::function<void()> while_waiting = nullptr;
};

// Weights that another process of this user publishes under a name (publisher.h). Attaching and
// reading wait for nobody but for the first version; the learner never waits for a reader.
//
// When the learner dies, reads go on with its last version, and with those of the next learner of
// that name as soon as there are any. One whose blocks are others is refused: reads are an Error,
// until it is gone.
//
// A forked child attaches anew in its first call. Readings outlive the Model.
//
// Threads: any, and each call may be made by many.
class Model final : private ForkAware {
 public:
  // Waits for the first version. Errors: kTimeout, kInvalidArgument (the name; the blocks are not
  // those of `like`; who has the name is no learner, or another user's), kOutOfMemory (address
  // space; the learner has as many readers as it can have), kSystem.
  explicit Model(std::string name, ModelOptions options = {});
  ~Model();

  const std::string& name() const { return name_; }
  const Layout& layout() const { return *layout_; }

  // The newest version; or that of the last read with a max_lag once more, if it is at most max_lag
  // behind. For that the Model holds the version. A microsecond or less; waits only in a forked
  // child's first call. Errors: kClosed, kInvalidArgument (a new learner with other blocks).
  Reading read(uint64_t max_lag = 0);
  // Sleeps until there is this version, or a later one: of a new learner that counts from the
  // start, until it gets there. False after the timeout (< 0: for ever). Same errors.
  bool wait(uint64_t version, int64_t timeout_ns = -1);

  uint64_t version();       // the newest; same errors as read()
  bool would_wait() const;  // read() would, now
  bool alive() const;       // there is a learner now
  void close();             // ends all waits; calls after that are kClosed. Idempotent

 private:
  using Shared = std::shared_ptr<const Attachment>;
  // What is no longer needed, to be let go of after mutex_: an Attachment's end waits for a fork
  // in progress, and that for mutex_.
  struct Trash {
    Shared attached, next, mine;
    std::optional<Reading> last;
  };

  struct Refusal {  // what an Error says: one object is not thrown in several threads
    Code code;
    std::string text;
  };

  void before_fork() noexcept override;
  void after_fork_in_parent() noexcept override;
  void after_fork_in_child() noexcept override;

  // What reads are of. Waits for it as long as the options say.
  Shared now();
  bool wait_for(const Shared& with, uint32_t seen, uint64_t version, uint64_t end_ns);
  Error nobody();

  // With mutex_:
  Shared newest(Trash& trash);
  void check();
  void start();
  void revive(Trash& trash);
  void notify();

  // The thread that looks for learners.
  void run() noexcept;
  void visit();
  bool greet(int fd, GreetingReader& reader);
  void check_layout(const Layout& layout);
  bool readable(int fd) const;
  void refuse(const Error& error);  // mutex_ is held

  const std::string name_;
  const int64_t timeout_ns_;
  const std::function<void()> while_waiting_;

  mutable std::mutex mutex_;
  std::optional<Layout> layout_;  // set once, before the constructor returns
  Shared attached_;               // has a version
  Shared next_;                   // a new learner's, that perhaps has none yet
  std::optional<Reading> last_;   // of the last read with a max_lag
  std::optional<Refusal> refused_;
  std::optional<Peer> peer_;  // connected, and nothing more yet
  bool looked_ = false;       // it is known whether there is a learner
  bool alive_ = false;
  bool closed_ = false;
  bool inherited_ = false;  // this process was forked, and has called nothing since
  os::Fd stop_;
  std::unique_ptr<std::thread> thread_;
  std::atomic<uint32_t> changes_{0};  // goes on whenever something above changed
};

}  // namespace penstock::train
