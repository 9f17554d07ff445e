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

namespace penstock {

// A reference to a leased block, valid in every process that maps the region. Sent between
// processes instead of the payload: trivially copyable, no padding.
//
// Every Ref represents exactly one lease: construct one Lease from it (lease.h), otherwise the
// block stays allocated as long as its region lives.
struct Ref {
  uint64_t offset = 0;      // of the block's header in the region; the data is Lease::data()
  uint64_t bytes = 0;       // of data, as requested
  uint32_t generation = 0;  // of the block when it was shared; a reused block has another
  uint32_t reserved = 0;

  friend bool operator==(const Ref&, const Ref&) = default;
};
static_assert(sizeof(Ref) == 24);

struct RegionHeader;  // region_layout.h
struct BlockHeader;

// A stretch of memory that grows up to a reserved size and never moves. kShared: an anonymous file,
// mapped once here and by every process that opens its descriptor. kPrivate: anonymous memory of
// this process. Neither has a name, so nothing is left once all processes have died.
//
// One Allocator, in the process that created the region, places the blocks. Other processes only
// read and write blocks on which they hold leases.
//
// A forked child has a private copy of its parent's regions: its writes are not seen by other
// processes, and its leases return nothing. To share memory with its parent, it opens fd() again.
//
// Threads: any, but for extend().
class Region final : private ForkAware {
  struct Token {};  // makes the constructor private to create() and open()

 public:
  enum class Kind : uint32_t { kShared = 1, kPrivate = 2 };

  // The first bytes of every region are its header; blocks start here.
  static constexpr size_t kFirstBlock = size_t{64} << 10;

  // Reserves address space, and the memory of one page. `reserve` is rounded up to 64 KiB. 0: as
  // much as possible, that is 64 GiB, halved until the system accepts it (RLIMIT_AS), at least 64
  // MiB. Error kOutOfMemory (address space or the first page), kSystem (descriptors).
  static std::shared_ptr<Region> create(Kind kind, size_t reserve = 0);

  // Maps a region of another process, or of the parent before a fork. Duplicates `fd`. If the
  // address space does not suffice for all of it, maps at least the bytes committed now. Error
  // kInvalidArgument if `fd` is not a region, of another version, or truncated.
  static std::shared_ptr<Region> open(int fd);

  Region(Token, Kind kind, os::Fd fd, std::byte* base, size_t reserve, bool creator);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  Kind kind() const { return kind_; }
  int fd() const { return fd_.get(); }  // -1 for kPrivate
  std::byte* base() const { return base_; }
  size_t reserve() const { return reserve_; }  // bytes of address space mapped in this process
  // Bytes from base() that may be touched without SIGBUS, whatever another process writes into the
  // region's header.
  size_t committed() const noexcept;
  bool contains(const void* p) const noexcept {
    return static_cast<size_t>(static_cast<const std::byte*>(p) - base_) < reserve_;
  }
  uint64_t offset_of(const void* p) const {
    return static_cast<uint64_t>(static_cast<const std::byte*>(p) - base_);
  }

  // For the allocator. Makes the region at least this long, without allocating pages: populate() or
  // the first access does that. False, with nothing changed, beyond reserve() or a limit on file
  // size. One thread at a time.
  bool extend(size_t up_to) noexcept;
  // Faults in the pages of a stretch within committed(); contents do not change. False: no memory,
  // or less headroom than penstock leaves to the rest of the machine. Some of the pages may be
  // present then: discard() the unused ones. Whole pages.
  bool populate(size_t offset, size_t bytes) noexcept;
  // Returns the pages of a stretch to the system; they read as zero in every process until
  // populated.
  void discard(size_t offset, size_t bytes) noexcept;

  // For readers. Maps the pages of a stretch that this process has not accessed yet, in one call
  // instead of one fault per page. Cheap if there are none; a failure is harmless.
  void prefault(size_t offset, size_t bytes) noexcept;

  // Returns one lease: any thread of any process, once per Ref. Lock-free, allocates nothing. The
  // last lease pushes the block on the return stack, from which its allocator reclaims it. A Ref
  // that is stale, already returned or invalid is counted and otherwise ignored.
  void return_lease(const Ref& ref) noexcept;
  uint64_t stale_returns() const noexcept;  // in all processes

  // For the allocator: takes the whole return stack. Returns the offset of its first header, 0:
  // empty; each header's `next` is the following one. Other processes can write them, so check
  // every value.
  uint64_t take_returns() noexcept;
  bool has_returns() const noexcept;

  // The counter that the return of a block's last lease updates. REQUIRED: no lease exists yet that
  // may end in this process.
  void set_in_use_counter(BlocksInUse in_use) { in_use_ = std::move(in_use); }

  // The block header at an offset, or nullptr where there cannot be one.
  BlockHeader* header_at(uint64_t offset) const noexcept;

  // Bytes of memory that a shared region uses (0: unknown). For tests and stats.
  uint64_t backed_bytes() const noexcept;

  // True in a child forked after the region was mapped, which has a private copy.
  bool inherited() const noexcept { return inherited_.load(std::memory_order_relaxed); }

 private:
  static std::shared_ptr<Region> make(Kind kind, os::Fd fd, void* base, size_t reserve,
                                      bool creator);
  void after_fork_in_child() noexcept override;
  RegionHeader* header() const noexcept;
  bool headroom_for(size_t bytes) noexcept;
  size_t learn_committed(size_t announced) const noexcept;

  Kind kind_;
  os::Fd fd_;
  std::byte* base_;
  size_t reserve_;
  const bool creator_;
  // Bytes that are known to be in the file. The creator's is the truth; elsewhere it follows
  // RegionHeader::committed.
  mutable std::atomic<size_t> known_{0};
  BlocksInUse in_use_;
  std::atomic<bool> inherited_{false};
  std::atomic<size_t> headroom_credit_{0};   // bytes that may be populated before checking again
  std::vector<std::atomic<uint64_t>> seen_;  // one bit per kFirstBlock bytes; empty: all seen
};

// For drivers of devices, which read the pages of a region where they were when they were pinned.
// Threads: any, but for attach().

// The region mapped in this process in which an address lies, or nullptr.
std::shared_ptr<Region> region_holding(const void* p);

// Pages below `up_to` are not discarded any more, in any process: they stay allocated. False: the
// region belongs to the parent of this fork, or a process that discards pages does not come to an
// end.
bool keep_pages(Region& region, size_t up_to) noexcept;

// An object that ends with the mapping, before the memory is unmapped; and the one that is there.
// One thread at a time.
void attach(const Region& region, std::shared_ptr<void> attached);
std::shared_ptr<void> attached_to(const Region& region);

}  // namespace penstock
