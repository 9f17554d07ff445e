#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "penstock/base/os.h"
#include "penstock/train/layout.h"

namespace penstock::train {

struct WeightsHeader;  // weights_layout.h
struct ReaderRow;

// One mapping of the memory that a learner publishes in: what both ends do with its words, but for
// the choice of slots (slot_writer.h). docs/training.md, section 5, has the protocol and why it
// holds. Threads: any.
class WeightsMemory {
  struct Token {};  // only make() and open() can construct

 public:
  struct Version {
    uint64_t number = 0;
    uint32_t slot = 0;
  };
  static constexpr uint64_t kMostVersion = (uint64_t{1} << 57) - 1;

  // The learner's: nothing is published. Error kOutOfMemory, kSystem (descriptors).
  static std::shared_ptr<WeightsMemory> make(Layout layout);
  // A reader's, of a descriptor that it got; does not keep it. The slots are mapped read-only.
  // Error kInvalidArgument if it is no such memory; kOutOfMemory (address space).
  static std::shared_ptr<WeightsMemory> open(os::Fd fd);

  WeightsMemory(Token, Layout layout, os::Fd fd, void* base, size_t slots_at, size_t slot_bytes,
                size_t mapped);
  ~WeightsMemory();
  WeightsMemory(const WeightsMemory&) = delete;
  WeightsMemory& operator=(const WeightsMemory&) = delete;

  const Layout& layout() const { return layout_; }
  int fd() const { return fd_.get(); }  // the learner's; else -1
  // Those of a slot; all of layout().floats(). A reader reads only slots that it holds.
  std::span<float> values(uint32_t slot) const;

  // What is current; nothing before the first was published.
  std::optional<Version> newest() const;
  // The same, held in this row until release(): nobody writes to it. Never waits.
  std::optional<Version> hold(uint32_t row) const;
  void release(uint32_t row, uint32_t slot) const;
  // Sleeps until something changes, wake(), or the timeout (< 0: for ever), unless `done` says that
  // there is nothing to wait for. May return early.
  template <typename Done>
  void sleep(uint32_t row, int64_t timeout_ns, Done done) const {
    announce_sleeper(row, 1);
    const uint32_t seen = changes();
    if (!done()) sleep_while(seen, timeout_ns);
    announce_sleeper(row, -1);
  }
  // Wakes all sleepers, of all processes.
  void wake() const;
  // Wakes those that have not been told of the last change yet.
  void wake_late() const;

  // The learner's side. REQUIRED: one thread at a time for each of the two groups.
  // -- which slots some row holds, a bit each; then which one is current from now on. Wakes one
  // sleeper, who wakes the others. Says how many there were: if they are several, wake_late() must
  // be called soon, for one that is woken may be stopped, or killed.
  uint64_t held() const;
  bool holds_any(uint32_t row) const;
  uint32_t announce(Version version) const;
  // -- rows of readers: clears one; says how many from the first one on have a reader.
  void clear(uint32_t row) const;
  void use_rows(uint32_t count) const;

  // Where a slot's pages are, for who backs them: offset in the file, and bytes.
  uint64_t offset_of(uint32_t slot) const;
  size_t slot_bytes() const;

 private:
  WeightsHeader& header() const;
  ReaderRow& row_at(uint32_t row) const;
  uint32_t changes() const;
  void announce_sleeper(uint32_t row, int change) const;
  void sleep_while(uint32_t seen, int64_t timeout_ns) const;
  void wake_older(int how_many) const;

  const Layout layout_;
  const os::Fd fd_;
  std::byte* const base_;
  const size_t mapped_;
  const size_t slots_at_;  // not read from shared memory again
  const size_t slot_bytes_;
};

}  // namespace penstock::train
