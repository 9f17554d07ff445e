#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "penstock/train/named_server.h"
#include "penstock/train/parameters.h"
#include "penstock/train/slot_writer.h"
#include "penstock/train/weights_memory.h"

namespace penstock::train {

// Publishes weights under a name: every process of this user that attaches to it (model.h) sees the
// newest version, whole and in place. publish() copies the weights and never waits for a reader,
// whatever readers do; a reader that is killed leaves nothing behind.
//
// The name is this object's until it goes; readers then keep their last version and go on with
// whoever publishes under the name next. A forked child does not publish: there, publish() is an
// Error, and the name, the readers and the memory remain its parent's.
//
// Threads: any.
class Publisher final : private NamedServer::Rows {
 public:
  // Errors: kInvalidArgument (the name, or another process has it), kOutOfMemory, kSystem.
  Publisher(std::string name, Layout layout);

  const std::string& name() const { return name_; }
  const Layout& layout() const { return memory_->layout(); }

  // Readers see these weights from now on. Returns their version: that of the parameters, or one
  // more than the last where that is not larger. Nobody writes to the parameters meanwhile; what is
  // written all the same (Hogwild) is in this version or in the next.
  // Errors: kInvalidArgument (another layout; a forked child), kOutOfMemory if readers hold so many
  // versions that there is no slot or no memory for one more, with their processes.
  uint64_t publish(const Parameters& parameters);

  size_t readers() const;
  std::vector<pid_t> holders() const;  // processes that hold a version, each once, ascending
  uint32_t slots() const;              // that have memory now; 0 in a forked child

 private:
  std::optional<int> came(uint32_t row, pid_t pid) override;
  void left(uint32_t row) override;
  void due() override;
  void count_rows();

  const std::string name_;
  const std::shared_ptr<WeightsMemory> memory_;

  mutable std::mutex publishing_;
  SlotWriter writer_;
  std::optional<uint64_t> last_;
  std::atomic<uint32_t> looks_left_{0};  // for sleepers that nobody has woken

  std::vector<bool> taken_;  // rows that have readers; the server's thread's
  NamedServer server_;       // last: it calls the above
};

}  // namespace penstock::train
