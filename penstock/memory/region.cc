#include "penstock/memory/region.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/memory/region_layout.h"

namespace penstock {
namespace {

constexpr size_t kUnit = Region::kFirstBlock;
constexpr size_t kLargestReserve = size_t{64} << 30;
constexpr size_t kSmallestReserve = size_t{64} << 20;
// Headroom that growth leaves to the rest of the machine, so that an allocation fails here before
// another process is killed.
constexpr size_t kMargin = size_t{32} << 20;

// How long a pinner waits for a discard that is under way; a killed process may have left one.
constexpr double kDiscardSeconds = 1.0;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The regions of this process by their ends. Locked over a fork, so a child can use it.
class Regions final : private ForkAware {
 public:
  Regions() { watch_forks(); }
  void add(const Region& region, std::weak_ptr<Region> weak) {
    std::lock_guard lock(mutex_);
    by_end_[region.base() + region.reserve()] = {std::move(weak), nullptr};
  }
  // Returns what was attached, so that it ends without the lock.
  std::shared_ptr<void> remove(const Region& region) {
    std::lock_guard lock(mutex_);
    auto node = by_end_.extract(region.base() + region.reserve());
    return node.empty() ? nullptr : std::move(node.mapped().attached);
  }
  std::shared_ptr<Region> holding(const void* p) {
    std::lock_guard lock(mutex_);
    const auto found = by_end_.upper_bound(static_cast<const std::byte*>(p));
    std::shared_ptr<Region> region = found == by_end_.end() ? nullptr : found->second.region.lock();
    return region != nullptr && region->contains(p) ? region : nullptr;
  }
  void attach(const Region& region, std::shared_ptr<void> attached) {
    std::lock_guard lock(mutex_);
    by_end_.at(region.base() + region.reserve()).attached.swap(attached);
  }
  std::shared_ptr<void> attached_to(const Region& region) {
    std::lock_guard lock(mutex_);
    return by_end_.at(region.base() + region.reserve()).attached;
  }

 private:
  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork_in_parent() noexcept override { mutex_.unlock(); }
  void after_fork_in_child() noexcept override { mutex_.unlock(); }

  std::mutex mutex_;
  struct Known {
    std::weak_ptr<Region> region;
    std::shared_ptr<void> attached;
  };
  std::map<const std::byte*, Known> by_end_;
};

Regions& all_regions() {
  static Regions& one = *new Regions;  // never destroyed: regions may end after static objects
  return one;
}

// Reserves `bytes` of address space, or if there are fewer, half of them and so on down to `least`;
// `bytes` becomes what was reserved. nullptr: there are fewer than `least`.
void* reserve_mapping(const os::Fd& fd, size_t& bytes, size_t least, bool shared) {
  void* base = os::reserve_mapping(fd.get(), bytes, shared);
  while (base == nullptr && bytes > least) {
    bytes = std::max(round_up(bytes / 2, kUnit), least);
    base = os::reserve_mapping(fd.get(), bytes, shared);
  }
  return base;
}

}  // namespace

// Owns the mapping from the start: it is unmapped if there is no memory for the Region.
std::shared_ptr<Region> Region::make(Kind kind, os::Fd fd, void* base, size_t reserve,
                                     bool creator) {
  try {
    return std::make_shared<Region>(Token{}, kind, std::move(fd), static_cast<std::byte*>(base),
                                    reserve, creator);
  } catch (...) {
    os::unmap(base, reserve);
    throw;
  }
}

std::shared_ptr<Region> Region::create(Kind kind, size_t reserve) {
  bool shared = kind == Kind::kShared;
  os::Fd fd;
  if (shared) fd = os::memory_file("penstock", kUnit);
  size_t bytes = reserve == 0 ? kLargestReserve : std::max(round_up(reserve, kUnit), 2 * kUnit);
  size_t least = reserve == 0 ? kSmallestReserve : bytes;
  void* base = reserve_mapping(fd, bytes, least, shared);
  if (base == nullptr) {
    throw Error::from_errno(
        errno, "Region::create",
        "cannot reserve " + std::to_string(bytes) + " bytes of address space (see ulimit -v)");
  }
  std::shared_ptr<Region> region = make(kind, std::move(fd), base, bytes, true);
  if (int error_number = os::populate_write(base, os::page_size(), region->fd(), 0)) {
    throw Error(Code::kOutOfMemory, "Region::create",
                "no memory for the first page: " + std::to_string(error_number));
  }
  auto* header = new (base) RegionHeader{};
  header->version = RegionHeader::kVersion;
  header->kind = static_cast<uint32_t>(kind);
  header->reserve = bytes;
  header->committed.store(kUnit, std::memory_order_relaxed);
  header->magic = RegionHeader::kMagic;
  all_regions().add(*region, region);
  return region;
}

std::shared_ptr<Region> Region::open(int fd) {
  auto refuse = [](const char* why) { return Error(Code::kInvalidArgument, "Region::open", why); };
  os::Fd own = os::duplicate(fd, "Region::open");
  struct stat file {};
  auto length = [&] {
    if (fstat(own.get(), &file) != 0) throw Error::from_errno(errno, "Region::open", "fstat");
    return file.st_size < 0 ? 0 : static_cast<size_t>(file.st_size);
  };
  if (length() < kUnit || !S_ISREG(file.st_mode)) throw refuse("the descriptor is no region");

  void* probe = os::reserve_mapping(own.get(), os::page_size(), true);
  if (probe == nullptr) throw Error::from_errno(errno, "Region::open", "cannot map the header");
  const auto* header = static_cast<const RegionHeader*>(probe);
  uint64_t magic = header->magic;
  uint32_t version = header->version;
  uint32_t kind = header->kind;
  uint64_t reserve = header->reserve;
  uint64_t committed = header->committed.load(std::memory_order_acquire);
  os::unmap(probe, os::page_size());
  size_t file_bytes = length();  // read after `committed`: the allocator may be growing the region
  if (magic != RegionHeader::kMagic) throw refuse("the descriptor is no region");
  if (version != RegionHeader::kVersion) throw refuse("a region of another version of penstock");
  if (kind != static_cast<uint32_t>(Kind::kShared) || reserve % kUnit != 0 ||
      committed > file_bytes || committed < kUnit || reserve < committed) {
    throw refuse("a region with a damaged header");
  }

  size_t bytes = reserve;
  void* base = reserve_mapping(own, bytes, committed, true);
  if (base == nullptr) {
    throw Error::from_errno(errno, "Region::open",
                            "cannot map " + std::to_string(committed) + " bytes (see ulimit -v)");
  }
  std::shared_ptr<Region> region = make(Kind::kShared, std::move(own), base, bytes, false);
  all_regions().add(*region, region);
  return region;
}

std::shared_ptr<Region> region_holding(const void* p) { return all_regions().holding(p); }

void attach(const Region& region, std::shared_ptr<void> attached) {
  all_regions().attach(region, std::move(attached));
}

std::shared_ptr<void> attached_to(const Region& region) {
  return all_regions().attached_to(region);
}

Region::Region(Token, Kind kind, os::Fd fd, std::byte* base, size_t reserve, bool creator)
    : kind_(kind),
      fd_(std::move(fd)),
      base_(base),
      reserve_(reserve),
      creator_(creator),
      known_(kUnit),
      seen_(creator ? 0 : (reserve / kUnit + 63) / 64) {
  watch_forks();
}

Region::~Region() {
  ignore_forks();
  all_regions().remove(*this).reset();
  os::unmap(base_, reserve_);
}

RegionHeader* Region::header() const noexcept { return reinterpret_cast<RegionHeader*>(base_); }

size_t Region::committed() const noexcept {
  const size_t known = known_.load(std::memory_order_acquire);
  if (creator_) return known;
  const size_t announced = header()->committed.load(std::memory_order_acquire);
  return announced <= known ? known : learn_committed(announced);
}

size_t Region::learn_committed(size_t announced) const noexcept {
  struct stat file {};
  const size_t bytes =
      fstat(fd_.get(), &file) == 0 && file.st_size > 0 ? static_cast<size_t>(file.st_size) : 0;
  atomic_max(known_, std::min({announced, bytes, reserve_}));
  return known_.load(std::memory_order_acquire);
}

bool Region::extend(size_t up_to) noexcept {
  up_to = round_up(up_to, kUnit);
  if (up_to > reserve_ || inherited()) return false;
  if (up_to <= committed()) return true;
  if (fd_) {
    try {
      os::resize_file(fd_.get(), up_to);
    } catch (...) {
      return false;
    }
  }
  known_.store(up_to, std::memory_order_release);
  header()->committed.store(up_to, std::memory_order_release);
  return true;
}

bool Region::populate(size_t offset, size_t bytes) noexcept {
  if (inherited() || offset + bytes > committed()) return false;
  if (!headroom_for(bytes)) return false;
  os::collapse_huge_pages(base_ + offset, bytes);
  return os::populate_write(base_ + offset, bytes, fd_.get(), offset) == 0;
}

void Region::discard(size_t offset, size_t bytes) noexcept {
  if (inherited()) return;
  header()->discarding.fetch_add(1);
  const size_t from = std::clamp<size_t>(header()->pinned.load(), offset, offset + bytes);
  if (from < offset + bytes) os::discard(fd_.get(), base_ + from, from, offset + bytes - from);
  header()->discarding.fetch_sub(1);
}

bool keep_pages(Region& region, size_t up_to) noexcept {
  if (region.inherited()) return false;
  auto* header = reinterpret_cast<RegionHeader*>(region.base());
  std::atomic<uint64_t>& pinned = header->pinned;
  uint64_t before = pinned.load();
  while (before < up_to && !pinned.compare_exchange_weak(before, up_to)) {
  }
  for (Deadline deadline(kDiscardSeconds); header->discarding.load() != 0;) {
    if (deadline.passed()) return false;
    std::this_thread::yield();
  }
  return true;
}

// Reading the limits takes tens of microseconds, so one check covers an eighth of the headroom
// found.
bool Region::headroom_for(size_t bytes) noexcept {
  size_t left = headroom_credit_.load(std::memory_order_relaxed);
  while (left >= bytes) {
    if (headroom_credit_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed))
      return true;
  }
  uint64_t headroom = os::memory_headroom();
  if (headroom < kMargin || headroom - kMargin < bytes) return false;
  headroom_credit_.store(std::min<size_t>((headroom - kMargin - bytes) / 8, size_t{64} << 20),
                         std::memory_order_relaxed);
  return true;
}

void Region::prefault(size_t offset, size_t bytes) noexcept {
  if (seen_.empty() || bytes == 0) return;
  size_t end = std::min(offset + bytes, committed());
  if (offset >= end) return;
  size_t last = (end - 1) / kUnit;
  for (size_t unit = offset / kUnit; unit <= last;) {
    auto take = [this](size_t u) {
      uint64_t bit = uint64_t{1} << (u % 64);
      std::atomic<uint64_t>& word = seen_[u / 64];
      if (word.load(std::memory_order_relaxed) & bit) return false;
      return (word.fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
    };
    size_t first = unit;
    while (unit <= last && take(unit)) ++unit;
    if (unit > first) {
      os::populate_read(base_ + first * kUnit, (unit - first) * kUnit, fd_.get(), first * kUnit);
    } else {
      ++unit;
    }
  }
}

BlockHeader* Region::header_at(uint64_t offset) const noexcept {
  if (offset < kFirstBlock || offset % sizeof(BlockHeader) != 0 ||
      offset > committed() - sizeof(BlockHeader)) {
    return nullptr;
  }
  return reinterpret_cast<BlockHeader*>(base_ + offset);
}

void Region::return_lease(const Ref& ref) noexcept {
  if (inherited()) return;
  BlockHeader* block = header_at(ref.offset);
  int64_t left = -1;
  if (block != nullptr && block->magic == (BlockHeader::kMagic ^ ref.offset)) {
    left = block->drop(ref.generation);
  }
  if (left < 0) {
    header()->stale_returns.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (left > 0) return;
  // Subtract before the push: afterwards the allocator may reuse the block and count it again.
  in_use_.subtract(block->counted.load(std::memory_order_relaxed));
  std::atomic<uint64_t>& top = header()->returned;
  uint64_t below = top.load(std::memory_order_relaxed);
  do {
    block->next.store(below, std::memory_order_relaxed);
  } while (!top.compare_exchange_weak(below, ref.offset, std::memory_order_acq_rel,
                                      std::memory_order_relaxed));
}

uint64_t Region::stale_returns() const noexcept {
  return header()->stale_returns.load(std::memory_order_relaxed);
}

uint64_t Region::take_returns() noexcept {
  return header()->returned.exchange(0, std::memory_order_acq_rel);
}

bool Region::has_returns() const noexcept {
  return header()->returned.load(std::memory_order_relaxed) != 0;
}

uint64_t Region::backed_bytes() const noexcept {
  struct stat file {};
  if (!fd_ || fstat(fd_.get(), &file) != 0) return 0;
  return static_cast<uint64_t>(file.st_blocks) * 512;
}

void Region::after_fork_in_child() noexcept {
  inherited_.store(true, std::memory_order_relaxed);
  if (!fd_) return;  // fork() itself copied the private memory
  // Replaces the shared pages by copy-on-write ones at the same address. If that fails, the child
  // still neither allocates nor returns anything, but its own stores are visible to the parent.
  mmap(base_, reserve_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, fd_.get(),
       0);
}

}  // namespace penstock
