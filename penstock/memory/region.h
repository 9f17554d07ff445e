#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "penstock/base/fork_aware.h"
#include "penstock/base/os.h"
#include "penstock/memory/ledger.h"
#include "penstock/memory/ref.h"

namespace penstock {

struct RegionHeader;  // region_layout.h
struct BlockHeader;

// A stretch of memory that grows up to a reserved size and never moves. kShared: an anonymous file,
// mapped once here and by every process that opens its descriptor. kPrivate: this process's own
// anonymous memory. Nothing has a name, so nothing is left once everyone has died.
//
// One Allocator, in the process that created the region, decides what lies where. Everyone else
// only reads and writes blocks they hold leases on.
//
// A forked child keeps a private copy of all its parent's regions: what it writes is seen by no
// one else, and its leases return nothing. To share with its parent it opens fd() anew.
//
// Threads: any, but for extend().
class Region final : private ForkAware {
  struct Token {};  // only create() and open() can construct

 public:
  enum class Kind : uint32_t { kShared = 1, kPrivate = 2 };

  // The first bytes of every region are its header; blocks start here.
  static constexpr size_t kFirstBlock = size_t{64} << 10;

  // Reserves address space, and no memory but one page. `reserve` is rounded up to 64 KiB; 0 means
  // as much as fits: 64 GiB, halved until the system agrees (RLIMIT_AS), at least 64 MiB.
  // Error kOutOfMemory (address space or the first page), kSystem (descriptors).
  static std::shared_ptr<Region> create(Kind kind, size_t reserve = 0);

  // Maps a region of another process (or of before a fork); takes a dup of `fd`, the caller keeps
  // its own. Where not all of it can be reserved here, at least what is committed now is.
  // Error kInvalidArgument if `fd` is no region, of another version or truncated.
  static std::shared_ptr<Region> open(int fd);

  Region(Token, Kind kind, os::Fd fd, std::byte* base, size_t reserve, bool creator);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  Kind kind() const { return kind_; }
  int fd() const { return fd_.get(); }  // -1 for kPrivate
  std::byte* base() const { return base_; }
  size_t reserve() const { return reserve_; }  // bytes of address space mapped in this process
  size_t committed() const noexcept;  // bytes from base() that may be touched without SIGBUS
  bool contains(const void* p) const noexcept {
    return static_cast<size_t>(static_cast<const std::byte*>(p) - base_) < reserve_;
  }
  uint64_t offset_of(const void* p) const {
    return static_cast<uint64_t>(static_cast<const std::byte*>(p) - base_);
  }

  // Allocator's side. Makes the region at least this long, which costs nothing: the new pages come
  // with back(), or at the first touch. False, with nothing changed, past reserve() or a limit on
  // file size. Not from two threads at a time.
  bool extend(size_t up_to) noexcept;
  // Faults in the pages of a stretch within committed(); contents do not change. False where there
  // is no memory, or less headroom than the rest of the machine is to keep; some of the pages may
  // be there then: give_back() those that hold nothing. Whole pages.
  bool back(size_t offset, size_t bytes) noexcept;
  // Gives a stretch's pages back to the system; they read as zero in every process until backed.
  void give_back(size_t offset, size_t bytes) noexcept;

  // Reader's side. Maps pages of a stretch that this process has not yet seen, in one go instead of
  // one fault per touch. Cheap when there is nothing to do; failing is harmless.
  void prefault(size_t offset, size_t bytes) noexcept;

  // Gives one lease on a block back: any thread of any process, once per Ref. Lock-free, no memory
  // needed. The last one puts the block on the return stack, from where its allocator takes it. A
  // Ref that is stale, was given back already or makes no sense is counted and otherwise ignored.
  void return_lease(const Ref& ref) noexcept;
  uint64_t stale_returns() const noexcept;  // in all processes

  // Allocator's side: takes the whole return stack. The offset of its first header, 0 if none; each
  // header's `next` leads on. Nothing in it is to be trusted before it was checked.
  uint64_t take_returns() noexcept;
  bool has_returns() const noexcept;

  // Where the end of a block's last lease is counted. Before there is a lease that may end here.
  void count_in(BlocksInUse in_use) { in_use_ = std::move(in_use); }

  // The block header at an offset, or nullptr where there cannot be one.
  BlockHeader* header_at(uint64_t offset) const noexcept;

  // Bytes of memory that the system holds for a shared region (0 if unknown). For tests and stats.
  uint64_t backed_bytes() const noexcept;

  // True in a child forked after the region was mapped: this is a private copy.
  bool inherited() const noexcept { return inherited_.load(std::memory_order_relaxed); }

 private:
  void after_fork_in_child() noexcept override;
  RegionHeader* header() const noexcept;
  bool headroom_for(size_t bytes) noexcept;

  Kind kind_;
  os::Fd fd_;
  std::byte* base_;
  size_t reserve_;
  BlocksInUse in_use_;
  std::atomic<bool> inherited_{false};
  std::atomic<size_t> headroom_credit_{0};   // bytes that may be backed before looking again
  std::vector<std::atomic<uint64_t>> seen_;  // one bit per kFirstBlock bytes; empty: all seen
};

}  // namespace penstock
