// A board's memory: how it is laid out, made, and opened by another process.
#include <algorithm>
#include <bit>
#include <cerrno>

#include "penstock/base/error.h"
#include "penstock/workers/board_header.h"

namespace penstock {

namespace {
constexpr uint64_t kBoardMagic = 0x34647262'6b6e7370;  // "psnkbrd4"
constexpr uint32_t kMostPoisoned = 65536;              // calls of a post
constexpr size_t up_to(size_t n, size_t to) { return (n + to - 1) / to * to; }
}  // namespace

size_t Board::lay_out_rings(std::byte* base, size_t at) {
  unit_ring_ = reinterpret_cast<Unit*>(base + at);
  at += up_to(sizeof(Unit) * posts_ * granules_, 4096);
  poisoned_ring_ = reinterpret_cast<Poisoned*>(base + at);
  at += up_to(sizeof(Poisoned) * size_t{posts_} * granules_ * most_poisoned_, 4096);
  post_ring_ = reinterpret_cast<Post*>(base + at);
  return at + up_to(sizeof(Post) * posts_, 4096);
}

void Board::lay_out(std::byte* base) {
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

void Board::shape_lanes(std::span<const uint32_t> inner) {
  for (uint32_t posts : inner) {
    std::unique_ptr<Board> lane(new Board);
    lane->lane_ = static_cast<uint32_t>(inner_.size()) + 1;
    lane->posts_ = posts;
    lane->granules_ = 1;
    lane->workers_ = workers_;
    inner_.push_back(std::move(lane));
  }
  lay_out(nullptr);
}

void Board::map() {
  void* mapped = os::reserve_mapping(file_ ? file_.get() : -1, bytes_, static_cast<bool>(file_));
  if (mapped == nullptr) throw Error::from_errno(errno, "Loader", "map the board");
  base_ = {static_cast<std::byte*>(mapped), [bytes = bytes_](void* at) { os::unmap(at, bytes); }};
  lay_out(base_.get());
  for (auto& lane : inner_) {
    if (file_) lane->file_ = os::duplicate(file_.get(), "Loader");
  }
}

// Sees to it that writing there meets no full machine. False: it would.
bool Board::there(void* from, size_t bytes) {
  auto* base = reinterpret_cast<std::byte*>(common_);
  const size_t page = os::page_size(), at = static_cast<std::byte*>(from) - base;
  const size_t begin = at / page * page, end = up_to(at + bytes, page);
  return os::populate_write(base + begin, end - begin, fd(), begin) == 0;
}

// What is written from the first ticket on must not meet a full machine half-way.
void Board::populate() {
  for (uint32_t l = 0; l < lanes(); ++l) {
    Board& of = lane(l);
    if (there(of.header_, sizeof(Header) - sizeof(TraceRing)) &&
        there(of.unit_ring_, sizeof(Unit) * of.posts_ * of.granules_)) {
      continue;
    }
    throw Error(Code::kOutOfMemory, "Loader", "no room for the board of tickets in flight");
  }
}

std::unique_ptr<Board> Board::create(const Shape& shape, bool shared) {
  if (shape.workers > kMaxWorkers) {
    throw Error(Code::kInvalidArgument, "Loader", "at most 256 workers");
  }
  if (shape.inner.size() >= kMaxLanes) {
    throw Error(Code::kInternal, "Loader", "a board of too many lanes");
  }
  std::unique_ptr<Board> board(new Board);
  board->posts_ = std::bit_ceil(std::max(shape.posts, 2u));
  board->granules_ = std::max(shape.granules, 1u);
  board->workers_ = std::max(shape.workers, 1u);
  board->most_poisoned_ = std::clamp(shape.rows, kMaxGranuleRows,
                                     std::max(kMostPoisoned / board->granules_, kMaxGranuleRows));
  std::vector<uint32_t> inner;
  for (uint32_t posts : shape.inner) inner.push_back(std::bit_ceil(std::max(posts, 2u)));
  board->shape_lanes(inner);
  if (shared) board->file_ = os::memory_file("penstock-board", board->bytes_);
  board->map();
  board->populate();
  Header* h = board->header_;
  h->posts = board->posts_;
  h->granules = board->granules_;
  h->workers = board->workers_;
  h->most_poisoned = board->most_poisoned_;
  h->lanes = board->lanes();
  std::copy(inner.begin(), inner.end(), h->inner);
  h->active.store(board->workers_, std::memory_order_relaxed);
  h->magic = kBoardMagic;
  return board;
}

std::unique_ptr<Board> Board::open(int fd) {
  std::unique_ptr<Board> board(new Board);
  board->file_ = os::duplicate(fd, "worker");
  auto* first = static_cast<std::byte*>(
      os::reserve_mapping(board->file_.get(), up_to(sizeof(Header), 4096), true));
  if (first == nullptr) throw Error::from_errno(errno, "worker", "map the board");
  auto* header = reinterpret_cast<Header*>(first);
  const bool known =
      header->magic == kBoardMagic && header->lanes >= 1 && header->lanes <= kMaxLanes;
  board->posts_ = header->posts;
  board->granules_ = header->granules;
  board->workers_ = header->workers;
  board->most_poisoned_ = header->most_poisoned;
  std::vector<uint32_t> inner;
  if (known) inner.assign(header->inner, header->inner + header->lanes - 1);
  os::unmap(first, up_to(sizeof(Header), 4096));
  if (!known) throw Error(Code::kDataLoss, "worker", "the descriptor is no board of this version");
  board->shape_lanes(inner);
  board->map();
  return board;
}

Board::~Board() = default;

}  // namespace penstock
