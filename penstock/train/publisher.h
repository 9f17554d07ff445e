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
#include <utility>
#include <vector>

#include "penstock/train/named_socket.h"
#include "penstock/train/slab.h"
#include "penstock/train/weights_memory.h"

namespace penstock::train {

// Chooses the slot of each version: one that no reader holds. A slot gets memory when all slots
// with memory are held. After every kWindow versions, slots beyond the maximum needed by one of
// these versions lose their memory.
//
// Threads: one at a time.
class SlotWriter {
 public:
  static constexpr uint64_t kWindow = 64;

  explicit SlotWriter(std::shared_ptr<const WeightsMemory> memory) : memory_(std::move(memory)) {}

  // Lets `write` write all floats of a version, and makes them current. Never waits for a reader.
  // False, with nothing changed: all slots are held, or there is no memory for one more. What
  // `write` throws is thrown, with nothing changed.
  using Write = std::function<void(std::span<float>)>;
  bool publish(const Write& write, uint64_t version);

  uint32_t backed() const;  // slots that have memory
  // Sleepers at the last version: the result of WeightsMemory::announce().
  uint32_t sleepers() const { return sleepers_; }

 private:
  int choose(uint64_t held);  // -1: no slot
  bool allocate(uint32_t slot);
  void release(uint64_t held, uint32_t surplus);

  const std::shared_ptr<const WeightsMemory> memory_;
  uint64_t published_ = 0;  // versions so far
  uint64_t file_end_ = 0;   // the file's length
  uint64_t backed_ = 0;     // a bit for each slot with memory
  uint32_t sleepers_ = 0;
  uint32_t max_needed_ = 0;  // largest number of slots needed by a version of this window
};

// Publishes weights under a name: every process of this user that attaches to it (model.h) sees the
// newest version, whole and in place. publish() copies the weights and never waits for a reader. A
// reader that is killed leaves nothing behind.
//
// The name belongs to this object until it is destroyed; readers then keep their last version and
// continue with the next publisher of the name. In a forked child publish() is an Error: the name,
// the readers and the memory remain the parent's.
//
// Threads: any.
class Publisher final : private NamedServer::Handler {
 public:
  // Errors: kInvalidArgument (the name, or another process has it), kOutOfMemory, kSystem.
  Publisher(std::string name, Layout layout);

  const std::string& name() const { return name_; }
  const Layout& layout() const { return memory_->layout(); }

  // Makes these weights the newest version and returns its number: the parameters' version, or the
  // last number + 1 if that is larger. The parameters should not change meanwhile; concurrent
  // writes (Hogwild) are in this version or in the next. Errors: kInvalidArgument (another layout;
  // a forked child), kOutOfMemory (readers hold all slots, or there is no memory for one more slot;
  // the text has the readers' pids).
  uint64_t publish(const Parameters& parameters);

  // The same for weights that are elsewhere, such as on a device: `write` writes them, in the given
  // layout, into the version's memory, which it may not use later. `version`: theirs; numbers are
  // as above. What `write` throws is thrown, and no version was made.
  uint64_t publish(const SlotWriter::Write& write, uint64_t version = 0);

  size_t readers() const;
  std::vector<pid_t> holders() const;  // pids of processes that hold a version, ascending
  uint32_t slots() const;              // slots with memory now; 0 in a forked child

 private:
  void check_ours() const;
  std::optional<int> on_connect(uint32_t row, pid_t pid) override;
  void on_disconnect(uint32_t row) override;
  void on_timer() override;
  void update_rows_used();

  const std::string name_;
  const std::shared_ptr<WeightsMemory> memory_;

  mutable std::mutex publishing_;
  SlotWriter writer_;
  std::optional<uint64_t> last_;
  std::atomic<uint32_t> late_wakes_left_{0};  // further calls of wake_late() after the last version

  std::vector<bool> taken_;  // rows with a reader; used by the server's thread only
  NamedServer server_;       // last: it calls the members above
};

}  // namespace penstock::train
