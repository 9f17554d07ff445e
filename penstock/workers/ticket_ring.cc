#include "penstock/workers/ticket_ring.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "penstock/base/error.h"

namespace penstock {

namespace {
constexpr uint64_t kTicketRingMagic = 0x35676e72'6b6e7370;  // "psnkrng5"
constexpr uint32_t kMaxPoisoned = 65536;                    // calls of an entry
constexpr size_t up_to(size_t n, size_t to) { return (n + to - 1) / to * to; }
// `base` is nullptr while the bytes are only counted.
template <class T>
T* at_offset(std::byte* base, size_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(base) + bytes);
}

}  // namespace

// ---- the memory --------------------------------------------------------------------------------

size_t TicketRing::lay_out_lane(std::byte* base, size_t at) {
  header_ = at_offset<LaneHeader>(base, at);
  at += up_to(sizeof(LaneHeader), 4096);
  task_ring_ = at_offset<Task>(base, at);
  at += up_to(sizeof(Task) * entries_ * granules_, 4096);
  poisoned_ring_ = at_offset<Poisoned>(base, at);
  at += up_to(sizeof(Poisoned) * size_t{entries_} * granules_ * max_poisoned_, 4096);
  entry_ring_ = at_offset<BatchEntry>(base, at);
  return at + up_to(sizeof(BatchEntry) * entries_, 4096);
}

void TicketRing::lay_out(std::byte* base) {
  size_t at = up_to(sizeof(RingHeader), 4096);
  ring_ = reinterpret_cast<RingHeader*>(base);
  places_ = at_offset<WorkerPlace>(base, at);
  at = lay_out_lane(base, at + up_to(sizeof(WorkerPlace) * workers_, 4096));
  for (auto& lane : inner_) {
    lane->ring_ = ring_;
    lane->places_ = places_;
    at = lane->lay_out_lane(base, at);
  }
  bytes_ = at;
}

void TicketRing::shape_lanes(std::span<const uint32_t> inner) {
  for (uint32_t entries : inner) {
    std::unique_ptr<TicketRing> lane(new TicketRing);
    lane->lane_ = static_cast<uint32_t>(inner_.size()) + 1;
    lane->entries_ = entries;
    lane->granules_ = 1;
    lane->workers_ = workers_;
    inner_.push_back(std::move(lane));
  }
  lay_out(nullptr);
}

void TicketRing::map() {
  void* mapped = os::reserve_mapping(fd(), bytes_, shared());
  if (mapped == nullptr) throw Error::from_errno(errno, "Loader", "map the ring");
  base_ = {static_cast<std::byte*>(mapped), [bytes = bytes_](void* at) { os::unmap(at, bytes); }};
  lay_out(base_.get());
  sleepers_ = std::make_shared<SleepingWorkers>(*ring_, places_, workers_, shared());
  for (auto& lane : inner_) {
    if (file_) lane->file_ = os::duplicate(file_.get(), "Loader");
    lane->sleepers_ = sleepers_;
  }
  for (uint32_t l = 0; l < lanes(); ++l) {
    lane(l).head_ = &lane(l).header_->head;
    lane(l).posted_ = &lane(l).header_->posted;
  }
}

void TicketRing::keep_own() {
  own_ = std::make_unique<Own>();
  own_->entries = std::vector<PostedEntry>(entries_);
  head_ = &own_->head;
  posted_ = &own_->posted;
}

bool TicketRing::reserve(void* from, size_t bytes) {
  auto* base = reinterpret_cast<std::byte*>(ring_);
  const size_t page = os::page_size(), at = static_cast<std::byte*>(from) - base;
  const size_t begin = at / page * page, end = up_to(at + bytes, page);
  return os::populate_write(base + begin, end - begin, fd(), begin) == 0;
}

// Reserves the memory that every ticket writes, so that an error comes now and not half-way.
void TicketRing::populate() {
  bool there = reserve(ring_, sizeof(RingHeader));
  for (uint32_t l = 0; l < lanes(); ++l) {
    TicketRing& of = lane(l);
    there = there && reserve(of.header_, sizeof(LaneHeader) - sizeof(TraceRing)) &&
            reserve(of.task_ring_, sizeof(Task) * of.entries_ * of.granules_);
  }
  if (!there) {
    throw Error(Code::kOutOfMemory, "Loader", "no space for the ring of tickets in flight");
  }
}

std::unique_ptr<TicketRing> TicketRing::create(const Shape& shape, bool shared) {
  if (shape.workers > kMaxWorkers) {
    throw Error(Code::kInvalidArgument, "Loader", "at most 256 workers");
  }
  if (shape.inner.size() >= kMaxLanes) {
    throw Error(Code::kInternal, "Loader", "a ring of too many lanes");
  }
  std::unique_ptr<TicketRing> ring(new TicketRing);
  ring->entries_ = std::bit_ceil(std::max(shape.entries, 2u));
  ring->granules_ = std::max(shape.granules, 1u);
  ring->workers_ = std::max(shape.workers, 1u);
  ring->max_poisoned_ = std::clamp(shape.rows, kMaxGranuleRows,
                                   std::max(kMaxPoisoned / ring->granules_, kMaxGranuleRows));
  std::vector<uint32_t> inner;
  for (uint32_t entries : shape.inner) inner.push_back(std::bit_ceil(std::max(entries, 2u)));
  ring->shape_lanes(inner);
  if (shared) ring->file_ = os::memory_file("penstock-ring", ring->bytes_);
  ring->map();
  ring->populate();
  for (uint32_t l = 0; l < ring->lanes(); ++l) ring->lane(l).keep_own();
  RingHeader* h = ring->ring_;
  h->entries = ring->entries_;
  h->granules = ring->granules_;
  h->workers = ring->workers_;
  h->max_poisoned = ring->max_poisoned_;
  h->lanes = ring->lanes();
  std::copy(inner.begin(), inner.end(), h->inner);
  h->active.store(ring->workers_, std::memory_order_relaxed);
  h->magic = kTicketRingMagic;
  return ring;
}

std::unique_ptr<TicketRing> TicketRing::open(int fd) {
  std::unique_ptr<TicketRing> ring(new TicketRing);
  ring->file_ = os::duplicate(fd, "worker");
  const size_t bytes = up_to(sizeof(RingHeader), 4096);
  void* first = os::reserve_mapping(ring->fd(), bytes, true);
  if (first == nullptr) throw Error::from_errno(errno, "worker", "map the ring");
  const auto* header = static_cast<const RingHeader*>(first);
  const bool known =
      header->magic == kTicketRingMagic && header->lanes >= 1 && header->lanes <= kMaxLanes;
  ring->entries_ = header->entries;
  ring->granules_ = header->granules;
  ring->workers_ = header->workers;
  ring->max_poisoned_ = header->max_poisoned;
  std::vector<uint32_t> inner;
  if (known) inner.assign(header->inner, header->inner + header->lanes - 1);
  os::unmap(first, bytes);
  if (!known) throw Error(Code::kDataLoss, "worker", "the descriptor is no ring of this version");
  ring->shape_lanes(inner);
  ring->map();
  return ring;
}

TicketRing::~TicketRing() = default;

// ---- counters ----------------------------------------------------------------------------------

Ledger TicketRing::ledger(uint32_t worker, uint32_t arena) {
  return {&places_[0].memory,    sizeof(WorkerPlace), workers_, worker,
          in_use(worker, arena), &ring_->most_live};
}

BlocksInUse TicketRing::in_use(uint32_t worker, uint32_t arena) {
  return {std::shared_ptr<std::atomic<uint64_t>>(base_, &places_[worker].memory.in_use), arena};
}

void TicketRing::expect_in_use(uint64_t bytes) { atomic_max(ring_->most_live, bytes); }

WorkerFigures TicketRing::figures(uint32_t worker) {
  WorkerPlace& place = places_[worker];
  WorkerFigures figures{};
  // A wait that ends meanwhile would be counted twice or not at all. Its worker may die in between.
  for (int tries = 0; tries < 100; ++tries) {
    const uint64_t since = place.waiting_since.load(std::memory_order_acquire);
    figures = figures_of(place.counters);
    const uint64_t last = consumer().last_ns.get();
    std::atomic_thread_fence(std::memory_order_acquire);
    if (since == WorkerPlace::kCounting || since != place.waiting_since.load()) continue;
    if (since != 0 && last > since) figures.wait_ticket_ns += last - since;
    break;
  }
  return figures;
}

// ---- entries and tasks -------------------------------------------------------------------------

void TicketRing::set_head(uint64_t head) {
  own_->head.store(head, std::memory_order_seq_cst);
  header_->head.store(head, std::memory_order_seq_cst);
}

void TicketRing::set_posted(uint64_t posted) {
  own_->posted.store(posted, std::memory_order_seq_cst);
  header_->posted.store(posted, std::memory_order_seq_cst);
}

// The consumer may change the counts meanwhile. It writes its own first, so the shared word that
// was read before is never newer.
void TicketRing::repair_counts() {
  const auto repair = [](std::atomic<uint64_t>& shared, const std::atomic<uint64_t>& own) {
    uint64_t seen = shared.load(std::memory_order_seq_cst);
    const uint64_t right = own.load(std::memory_order_seq_cst);
    if (seen != right) shared.compare_exchange_strong(seen, right);
  };
  repair(header_->head, own_->head);
  repair(header_->posted, own_->posted);
  const uint64_t hint = header_->hint.load(std::memory_order_relaxed);
  if (hint / granules_ > posted()) header_->hint.store(0, std::memory_order_relaxed);
}

uint64_t TicketRing::oldest() const {
  const uint64_t end = posted();
  return end > entries_ ? end - entries_ : 0;
}

bool TicketRing::ready(uint64_t seq) const {
  for (uint32_t g = 0, end = granules_at(seq); g < end; ++g) {
    const uint64_t word = task_at(seq, g).word.load(std::memory_order_seq_cst);
    if (Task::state_of(word) != TaskState::kDone || Task::seq_of(word) != seq) return false;
  }
  return true;
}

bool TicketRing::idle(uint64_t seq) const {
  for (uint32_t g = 0, end = granules_at(seq); g < end; ++g) {
    const uint64_t word = task_at(seq, g).word.load(std::memory_order_acquire);
    if (Task::state_of(word) != TaskState::kIdle) return false;
  }
  return true;
}

void TicketRing::set_layout_state(uint64_t seq, LayoutState state, bool awaited) {
  std::atomic<uint32_t>& word = entry_at(seq).layout_state;
  word.store(layout_word(seq, state), std::memory_order_seq_cst);
  if (awaited) os::futex_wake(word, 1 << 20, shared());
}

// ---- a claimed task ----------------------------------------------------------------------------

TicketRing::Claim TicketRing::claim_in(uint64_t seq, uint32_t granule, uint64_t word) const {
  return {&entry_at(seq),
          &task_at(seq, granule),
          seq,
          granule,
          Task::worker_of(word),
          Task::losses_of(word),
          Task::with_state(word, TaskState::kClaimed),
          lane_};
}

bool TicketRing::begin_result(const Claim& claim) {
  uint64_t word = claim.word;
  return claim.task->word.compare_exchange_strong(word,
                                                  Task::with_state(word, TaskState::kWriting));
}

void TicketRing::finish(const Claim& claim) {
  claim.task->worker = claim.worker;
  claim.task->word.store(Task::with_state(claim.word, TaskState::kDone), std::memory_order_seq_cst);
  uint64_t wants = header_->wants.load(std::memory_order_seq_cst);
  if (wants == 0) return;
  const bool awaited = wants == claim.seq + 1 || wants == kAnySeq + 1;
  if (awaited && (claim.seq < head() || ready(claim.seq))) {
    if (header_->wants.compare_exchange_strong(wants, 0)) {
      header_->consumer_event.fetch_add(1, std::memory_order_seq_cst);
      os::futex_wake(header_->consumer_event, 1, shared());
    }
  }
}

std::span<Poisoned> TicketRing::poisoned_of(const Claim& claim) const {
  const auto task = static_cast<size_t>(claim.task - task_ring_);
  return {poisoned_ring_ + task * max_poisoned_, max_poisoned_};
}

std::optional<TicketRing::Ending> TicketRing::ending(const Claim& claim, const Call& call) const {
  const std::span<Poisoned> list = poisoned_of(claim);
  const uint32_t count = claim.task->poisoned.load(std::memory_order_acquire);
  for (const Poisoned& each : list.first(std::min<size_t>(count, list.size()))) {
    if (each.call.load(std::memory_order_relaxed) != call.word()) continue;
    const uint64_t ending = each.ending.load(std::memory_order_relaxed);
    return Ending{static_cast<uint32_t>(ending >> 8), static_cast<ResultKind>(ending & 0xff)};
  }
  return std::nullopt;
}

// ---- any thread --------------------------------------------------------------------------------

void TicketRing::nudge_consumer() {
  header_->wants.store(0, std::memory_order_relaxed);
  header_->consumer_event.fetch_add(1, std::memory_order_seq_cst);
  os::futex_wake(header_->consumer_event, 1 << 20, shared());
}

void TicketRing::close() {
  ring_->closed.store(1, std::memory_order_seq_cst);
  sleepers_->rouse_all();
  for (uint32_t l = 0; l < lanes(); ++l) {
    TicketRing& of = lane(l);
    for (uint32_t p = 0; p < of.entries_; ++p) {
      os::futex_wake(of.entry_ring_[p].layout_state, 1 << 20, shared());
    }
    of.nudge_consumer();
  }
}

}  // namespace penstock
