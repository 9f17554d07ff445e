// A board's memory: how it is laid out, made, and opened by another process.
#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "penstock/base/error.h"
#include "penstock/workers/board_header.h"

namespace penstock {

namespace {
constexpr uint64_t kMagic = 0x31647262'6b6e7370;  // "psnkbrd1"
constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
}  // namespace

void Board::lay_out(std::byte* base) {
  size_t at = round_up(sizeof(Header), 4096);
  header_ = reinterpret_cast<Header*>(base);
  places_ = reinterpret_cast<WorkerPlace*>(base + at);
  at += round_up(sizeof(WorkerPlace) * workers_, 4096);
  unit_ring_ = reinterpret_cast<Unit*>(base + at);
  at += round_up(sizeof(Unit) * posts_ * granules_, 4096);
  post_ring_ = reinterpret_cast<Post*>(base + at);
  at += round_up(sizeof(Post) * posts_, 4096);
  bytes_ = at;
}

std::unique_ptr<Board> Board::create(const Shape& shape, bool shared) {
  if (shape.workers > kMaxWorkers) {
    throw Error(Code::kInvalidArgument, "Loader", "at most 256 workers");
  }
  std::unique_ptr<Board> board(new Board);
  board->posts_ = std::bit_ceil(std::max(shape.posts, 2u));
  board->granules_ = std::max(shape.granules, 1u);
  board->workers_ = std::max(shape.workers, 1u);
  board->lay_out(nullptr);
  if (shared) {
    board->file_ = os::memory_file("penstock-board");
    os::resize_file(board->file_.get(), board->bytes_);
    os::forbid_shrinking(board->file_.get());
  }
  board->base_ = static_cast<std::byte*>(
      os::reserve_mapping(shared ? board->file_.get() : -1, board->bytes_, shared));
  if (board->base_ == nullptr) throw Error::from_errno(errno, "Loader", "map the board");
  board->lay_out(board->base_);
  // What is written from the first ticket on must not meet a full machine half-way.
  size_t used = reinterpret_cast<std::byte*>(board->post_ring_) - board->base_;
  size_t header = round_up(sizeof(Header) - sizeof(TraceRing), 4096);
  size_t units = reinterpret_cast<std::byte*>(board->unit_ring_) - board->base_;
  if (os::populate_write(board->base_, header, board->fd(), 0) != 0 ||
      os::populate_write(board->base_ + units, used - units, board->fd(), units) != 0) {
    throw Error(Code::kOutOfMemory, "Loader", "no room for the board of tickets in flight");
  }
  Header* h = board->header_;
  h->posts = board->posts_;
  h->granules = board->granules_;
  h->workers = board->workers_;
  h->magic = kMagic;
  return board;
}

std::unique_ptr<Board> Board::open(int fd) {
  std::unique_ptr<Board> board(new Board);
  board->file_ = os::Fd(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!board->file_) throw Error::from_errno(errno, "worker", "duplicate the board's descriptor");
  auto* first = static_cast<std::byte*>(
      os::reserve_mapping(board->file_.get(), round_up(sizeof(Header), 4096), true));
  if (first == nullptr) throw Error::from_errno(errno, "worker", "map the board");
  auto* header = reinterpret_cast<Header*>(first);
  bool known = header->magic == kMagic;
  board->posts_ = header->posts;
  board->granules_ = header->granules;
  board->workers_ = header->workers;
  os::unmap(first, round_up(sizeof(Header), 4096));
  if (!known) throw Error(Code::kDataLoss, "worker", "the descriptor is no board of this version");
  board->lay_out(nullptr);
  board->base_ =
      static_cast<std::byte*>(os::reserve_mapping(board->file_.get(), board->bytes_, true));
  if (board->base_ == nullptr) throw Error::from_errno(errno, "worker", "map the board");
  board->lay_out(board->base_);
  return board;
}

Board::~Board() {
  if (base_ != nullptr) os::unmap(base_, bytes_);
}

}  // namespace penstock
