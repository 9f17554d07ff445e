#include "penstock/train/shared_counters.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "penstock/base/error.h"

namespace penstock::train {
namespace {

// Adds to a counter with one writer, so without a read-modify-write.
template <typename T>
void bump(std::atomic<T>& count, T by) {
  count.store(count.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

constexpr double kRecent = 0.01;

}  // namespace

// Words that all workers write have cache lines of their own.
struct SharedCounters::Head {
  static constexpr uint64_t kMagic = 0x64726177676F6853;  // "Shogward"

  uint64_t magic;
  uint64_t workers;
  uint64_t bytes;
  std::atomic<uint32_t> stopped;
  std::atomic<uint64_t> limit;
  alignas(64) std::atomic<uint64_t> taken;
  alignas(64) std::atomic<uint64_t> updates;
};

struct alignas(64) SharedCounters::Row {
  std::atomic<uint64_t> steps, begun, applied, non_finite, skipped, copied, losses;
  std::atomic<double> loss_sum, recent_loss;
  std::atomic<uint64_t> staleness[kBuckets];
};

struct SharedCounters::Memory {
  Memory(os::Fd its_fd, void* mapped, size_t its_bytes, size_t its_workers)
      : fd(std::move(its_fd)),
        base(static_cast<std::byte*>(mapped)),
        bytes(its_bytes),
        workers(its_workers) {}
  ~Memory() { os::unmap(base, bytes); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  const os::Fd fd;
  std::byte* const base;
  const size_t bytes;
  const size_t workers;  // checked once: a worker that crashes may write anything into the head
};

SharedCounters SharedCounters::make(size_t workers, bool shared) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  static_assert(std::atomic<double>::is_always_lock_free);
  const size_t page = os::page_size();
  const size_t bytes = (sizeof(Head) + workers * sizeof(Row) + page - 1) / page * page;
  os::Fd fd;
  if (shared) fd = os::memory_file("penstock-hogwild", bytes);
  void* base = os::reserve_mapping(fd.get(), bytes, shared);
  if (base == nullptr) {
    throw Error(Code::kOutOfMemory, "Hogwild", "no address space for the workers' counters");
  }
  auto memory = std::make_shared<Memory>(std::move(fd), base, bytes, workers);
  if (int error = os::populate_write(base, bytes, memory->fd.get(), 0); error != 0) {
    throw Error(Code::kOutOfMemory, "Hogwild",
                std::string("no memory for the workers' counters: ") + std::strerror(error));
  }
  new (base) Head{Head::kMagic, workers, bytes, 0, 0, 0, 0};
  SharedCounters counters(std::move(memory));
  for (size_t worker = 0; worker < workers; ++worker) new (&counters.row(worker)) Row{};
  return counters;
}

SharedCounters SharedCounters::open(int fd) {
  auto refuse = [] {
    return Error(Code::kInvalidArgument, "Hogwild", "this descriptor has no Hogwild counters");
  };
  os::Fd own = os::duplicate(fd, "Hogwild");
  try {
    os::forbid_shrinking(own.get());
  } catch (const Error&) {
    throw refuse();
  }
  // Sealed before its size is read: afterwards it cannot shrink.
  struct stat file {};
  if (fstat(own.get(), &file) != 0) throw Error::from_errno(errno, "Hogwild", "fstat");
  if (!S_ISREG(file.st_mode) || file.st_size < static_cast<off_t>(os::page_size())) throw refuse();
  const auto bytes = static_cast<size_t>(file.st_size);
  void* base = os::reserve_mapping(own.get(), bytes, true);
  if (base == nullptr) throw Error::from_errno(errno, "Hogwild", "cannot map the counters");
  const auto& head = *static_cast<const Head*>(base);
  const size_t workers = std::atomic_ref(const_cast<uint64_t&>(head.workers)).load();
  auto memory = std::make_shared<Memory>(std::move(own), base, bytes, workers);
  if (head.magic != Head::kMagic || head.bytes != bytes ||
      workers > (bytes - sizeof(Head)) / sizeof(Row)) {
    throw refuse();
  }
  return SharedCounters(std::move(memory));
}

SharedCounters::Head& SharedCounters::head() const {
  return *reinterpret_cast<Head*>(memory_->base);
}
SharedCounters::Row& SharedCounters::row(size_t worker) const {
  return reinterpret_cast<Row*>(memory_->base + sizeof(Head))[worker];
}
int SharedCounters::fd() const { return memory_->fd.get(); }
size_t SharedCounters::workers() const { return memory_->workers; }

void SharedCounters::begin(uint64_t steps, uint64_t updates) const {
  head().limit = steps;
  head().taken = 0;
  head().updates = updates;
  head().stopped = 0;
}

bool SharedCounters::claim_step() const {
  if (stopped()) return false;
  uint64_t taken = head().taken.load(std::memory_order_relaxed);
  do {
    if (taken >= head().limit.load(std::memory_order_relaxed)) return false;
  } while (!head().taken.compare_exchange_weak(taken, taken + 1, std::memory_order_relaxed));
  return true;
}

void SharedCounters::return_step() const { head().taken.fetch_sub(1, std::memory_order_relaxed); }
void SharedCounters::stop() const { head().stopped.store(1, std::memory_order_release); }
bool SharedCounters::stopped() const { return head().stopped.load(std::memory_order_acquire) != 0; }

uint64_t SharedCounters::add_updates(uint64_t n) const {
  return head().updates.fetch_add(n, std::memory_order_relaxed);
}
uint64_t SharedCounters::updates() const { return head().updates.load(std::memory_order_relaxed); }

SharedCounters::Counts SharedCounters::counts(size_t worker) const {
  const Row& from = row(worker);
  Counts counts;
  counts.steps = from.steps.load(std::memory_order_relaxed);
  counts.begun = from.begun.load(std::memory_order_relaxed);
  counts.applied = from.applied.load(std::memory_order_relaxed);
  counts.non_finite = from.non_finite.load(std::memory_order_relaxed);
  counts.skipped = from.skipped.load(std::memory_order_relaxed);
  counts.copied = from.copied.load(std::memory_order_relaxed);
  counts.losses = from.losses.load(std::memory_order_relaxed);
  counts.loss_sum = from.loss_sum.load(std::memory_order_relaxed);
  counts.recent_loss = from.recent_loss.load(std::memory_order_relaxed);
  for (size_t i = 0; i < kBuckets; ++i) {
    counts.staleness[i] = from.staleness[i].load(std::memory_order_relaxed);
  }
  return counts;
}

void SharedCounters::note_begun(size_t worker, uint64_t n) const { bump(row(worker).begun, n); }

void SharedCounters::note_applied(size_t worker, uint64_t n, uint64_t staleness) const {
  bump(row(worker).applied, n);
  bump(row(worker).staleness[bucket(staleness)], uint64_t{1});
}

void SharedCounters::note_non_finite(size_t worker, bool skipped) const {
  bump(row(worker).non_finite, uint64_t{1});
  if (skipped) bump(row(worker).skipped, uint64_t{1});
}

void SharedCounters::note_copied(size_t worker, uint64_t bytes) const {
  bump(row(worker).copied, bytes);
}

void SharedCounters::note_loss(size_t worker, double loss) const {
  Row& mine = row(worker);
  const double recent = mine.recent_loss.load(std::memory_order_relaxed);
  const auto before = static_cast<double>(mine.losses.load(std::memory_order_relaxed));
  const double weight = std::max(kRecent, 1 / (before + 1));  // the mean of all losses at first
  mine.recent_loss.store(recent + weight * (loss - recent), std::memory_order_relaxed);
  bump(mine.loss_sum, loss);
  bump(mine.losses, uint64_t{1});
}

void SharedCounters::note_step(size_t worker) const { bump(row(worker).steps, uint64_t{1}); }

}  // namespace penstock::train
