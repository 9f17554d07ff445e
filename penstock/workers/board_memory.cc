// A board's memory: how it is laid out, made, and opened by another process.
#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "penstock/base/error.h"
#include "penstock/workers/board_header.h"

namespace penstock {

namespace {
constexpr uint64_t kBoardMagic = 0x32647262'6b6e7370;  // "psnkbrd2"
constexpr uint32_t kMostPoisonWords = 1024;            // of a post: 64 rows each
constexpr size_t up_to(size_t n, size_t to) { return (n + to - 1) / to * to; }
}  // namespace

size_t Board::lay_out_rings(std::byte* base, size_t at) {
  unit_ring_ = reinterpret_cast<Unit*>(base + at);
  at += up_to(sizeof(Unit) * posts_ * granules_, 4096);
  poison_ring_ = reinterpret_cast<std::atomic<uint64_t>*>(base + at);
  if (poison_words_ > 1) at += up_to(8 * size_t{posts_} * granules_ * poison_words_, 4096);
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
    if (!file_) continue;
    lane->file_ = os::Fd(fcntl(file_.get(), F_DUPFD_CLOEXEC, 3));
    if (!lane->file_) throw Error::from_errno(errno, "Loader", "duplicate the board's descriptor");
  }
}

// What is written from the first ticket on must not meet a full machine half-way.
void Board::populate() {
  auto there = [this](void* from, size_t bytes) {
    const size_t at = static_cast<std::byte*>(from) - base_.get();
    if (os::populate_write(static_cast<std::byte*>(from), bytes, fd(), at) == 0) return;
    throw Error(Code::kOutOfMemory, "Loader", "no room for the board of tickets in flight");
  };
  for (uint32_t l = 0; l < lanes(); ++l) {
    Board& of = lane(l);
    there(of.header_, up_to(sizeof(Header) - sizeof(TraceRing), 4096));
    auto* units = reinterpret_cast<std::byte*>(of.unit_ring_);  // and the poisoned rows
    there(units, static_cast<size_t>(reinterpret_cast<std::byte*>(of.post_ring_) - units));
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
  board->poison_words_ =
      std::clamp((shape.rows + 63) / 64, 1u, std::max(kMostPoisonWords / board->granules_, 1u));
  std::vector<uint32_t> inner;
  for (uint32_t posts : shape.inner) inner.push_back(std::bit_ceil(std::max(posts, 2u)));
  board->shape_lanes(inner);
  if (shared) {
    board->file_ = os::memory_file("penstock-board");
    os::resize_file(board->file_.get(), board->bytes_);
    os::forbid_shrinking(board->file_.get());
  }
  board->map();
  board->populate();
  Header* h = board->header_;
  h->posts = board->posts_;
  h->granules = board->granules_;
  h->workers = board->workers_;
  h->poison_words = board->poison_words_;
  h->lanes = board->lanes();
  std::copy(inner.begin(), inner.end(), h->inner);
  h->active.store(board->workers_, std::memory_order_relaxed);
  h->magic = kBoardMagic;
  return board;
}

std::unique_ptr<Board> Board::open(int fd) {
  std::unique_ptr<Board> board(new Board);
  board->file_ = os::Fd(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!board->file_) throw Error::from_errno(errno, "worker", "duplicate the board's descriptor");
  auto* first = static_cast<std::byte*>(
      os::reserve_mapping(board->file_.get(), up_to(sizeof(Header), 4096), true));
  if (first == nullptr) throw Error::from_errno(errno, "worker", "map the board");
  auto* header = reinterpret_cast<Header*>(first);
  const bool known =
      header->magic == kBoardMagic && header->lanes >= 1 && header->lanes <= kMaxLanes;
  board->posts_ = header->posts;
  board->granules_ = header->granules;
  board->workers_ = header->workers;
  board->poison_words_ = header->poison_words;
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
