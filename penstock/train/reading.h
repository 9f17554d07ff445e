#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "penstock/base/fork_aware.h"
#include "penstock/base/os.h"
#include "penstock/memory/tensor.h"
#include "penstock/train/weights_memory.h"

namespace penstock::train {

// A reader's share in one learner's memory: its row, and the connection whose end gives the row to
// somebody else. It lasts as long as anything of it is held. A forked child has none of that: the
// row and what it holds remain its parent's. Threads: any.
class Attachment final : private ForkAware {
 public:
  Attachment(std::shared_ptr<const WeightsMemory> memory, uint32_t row);
  ~Attachment();

  const WeightsMemory& memory() const { return *memory_; }
  uint32_t row() const { return row_; }
  void keep(os::Fd connection) { connection_ = std::move(connection); }  // not while it forks
  void release(uint32_t slot) const;

 private:
  void after_fork_in_child() noexcept override;

  const std::shared_ptr<const WeightsMemory> memory_;
  const uint32_t row_;
  os::Fd connection_;
  std::atomic<bool> inherited_{false};
};

// One version of a learner's weights, whole and in place: nobody writes to it as long as a copy of
// this handle, or a tensor made from one, is there. What is held costs the learner the memory of
// one version, so let go of it soon. In a forked child, one that the parent had is the parent's,
// and only good as long as that holds it. Threads: any.
class Reading {
 public:
  // `version` is held in the attachment's row, and released by the last copy.
  Reading(std::shared_ptr<const Attachment> from, WeightsMemory::Version version);

  uint64_t version() const { return hold_->version.number; }
  const Layout& layout() const { return hold_->from->memory().layout(); }
  // Everything, gaps included, as Slab::values().
  std::span<const float> values() const {
    return hold_->from->memory().values(hold_->version.slot);
  }
  // A block; float32, read-only, a share in the version. Error kNotFound.
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

}  // namespace penstock::train
