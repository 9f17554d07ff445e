// The memory of a TicketRing: its layout, creation, and opening in another process.
#include <algorithm>
#include <bit>
#include <cerrno>

#include "penstock/base/error.h"
#include "penstock/workers/ticket_ring_header.h"

namespace penstock {

namespace {
constexpr uint64_t kTicketRingMagic = 0x34676e72'6b6e7370;  // "psnkrng4"
constexpr uint32_t kMaxPoisoned = 65536;                    // calls of an entry
constexpr size_t up_to(size_t n, size_t to) { return (n + to - 1) / to * to; }
}  // namespace

size_t TicketRing::lay_out_rings(std::byte* base, size_t at) {
  task_ring_ = reinterpret_cast<Task*>(base + at);
  at += up_to(sizeof(Task) * entries_ * granules_, 4096);
  poisoned_ring_ = reinterpret_cast<Poisoned*>(base + at);
  at += up_to(sizeof(Poisoned) * size_t{entries_} * granules_ * max_poisoned_, 4096);
  entry_ring_ = reinterpret_cast<BatchEntry*>(base + at);
  return at + up_to(sizeof(BatchEntry) * entries_, 4096);
}

void TicketRing::lay_out(std::byte* base) {
  size_t at = up_to(sizeof(Header), 4096);
  header_ = common_ = reinterpret_cast<Header*>(base);
  places_ = reinterpret_cast<WorkerPlace*>(base + at);
  at += up_to(sizeof(WorkerPlace) * workers_, 4096);
  at = lay_out_rings(base, at);
  for (auto& lane : inner_) {
    lane->header_ = reinterpret_cast<Header*>(base + at);
    lane->common_ = common_;
    lane->places_ = places_;
    at = lane->lay_out_rings(base, at + up_to(sizeof(Header), 4096));
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
  void* mapped = os::reserve_mapping(file_ ? file_.get() : -1, bytes_, static_cast<bool>(file_));
  if (mapped == nullptr) throw Error::from_errno(errno, "Loader", "map the ring");
  base_ = {static_cast<std::byte*>(mapped), [bytes = bytes_](void* at) { os::unmap(at, bytes); }};
  lay_out(base_.get());
  for (auto& lane : inner_) {
    if (file_) lane->file_ = os::duplicate(file_.get(), "Loader");
  }
}

// Reserves the pages, so that later writes cannot run out of memory. False: there is none.
bool TicketRing::there(void* from, size_t bytes) {
  auto* base = reinterpret_cast<std::byte*>(common_);
  const size_t page = os::page_size(), at = static_cast<std::byte*>(from) - base;
  const size_t begin = at / page * page, end = up_to(at + bytes, page);
  return os::populate_write(base + begin, end - begin, fd(), begin) == 0;
}

// Reserves the memory that every ticket writes, so that an error comes now and not half-way.
void TicketRing::populate() {
  for (uint32_t l = 0; l < lanes(); ++l) {
    TicketRing& of = lane(l);
    if (there(of.header_, sizeof(Header) - sizeof(TraceRing)) &&
        there(of.task_ring_, sizeof(Task) * of.entries_ * of.granules_)) {
      continue;
    }
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
  Header* h = ring->header_;
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
  auto* first = static_cast<std::byte*>(
      os::reserve_mapping(ring->file_.get(), up_to(sizeof(Header), 4096), true));
  if (first == nullptr) throw Error::from_errno(errno, "worker", "map the ring");
  auto* header = reinterpret_cast<Header*>(first);
  const bool known =
      header->magic == kTicketRingMagic && header->lanes >= 1 && header->lanes <= kMaxLanes;
  ring->entries_ = header->entries;
  ring->granules_ = header->granules;
  ring->workers_ = header->workers;
  ring->max_poisoned_ = header->max_poisoned;
  std::vector<uint32_t> inner;
  if (known) inner.assign(header->inner, header->inner + header->lanes - 1);
  os::unmap(first, up_to(sizeof(Header), 4096));
  if (!known) throw Error(Code::kDataLoss, "worker", "the descriptor is no ring of this version");
  ring->shape_lanes(inner);
  ring->map();
  return ring;
}

TicketRing::~TicketRing() = default;

}  // namespace penstock
