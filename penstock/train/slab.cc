#include "penstock/train/slab.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock::train {
namespace {

// The first page of a slab's memory; the floats begin at the second page.
struct Header {
  static constexpr uint64_t kMagic = 0x62616C736B74536E;  // "nStkslab"

  uint64_t magic;
  uint64_t layout_hash;
  uint64_t bytes;  // of floats
  std::atomic<uint64_t> version;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

size_t mapped_bytes(const Layout& layout) {
  const size_t page = os::page_size();
  return page + (layout.bytes() + page - 1) / page * page;
}

Error no_memory(const Layout& layout, const char* why) {
  return Error(Code::kOutOfMemory, "slab",
               "no memory for " + std::to_string(layout.bytes()) + " bytes: " + why);
}

}  // namespace

struct Slab::Memory {
  Memory(Layout its_layout, os::Fd its_fd, void* mapped)
      : layout(std::move(its_layout)),
        fd(std::move(its_fd)),
        base(static_cast<std::byte*>(mapped)) {}
  Memory(Layout its_layout, std::shared_ptr<Memory> its_whole, size_t offset)
      : layout(std::move(its_layout)),
        whole(std::move(its_whole)),
        window(whole->floats() + offset) {}
  ~Memory() {
    if (base != nullptr) os::unmap(base, mapped_bytes(layout));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  float* floats() const {
    return window != nullptr ? window : reinterpret_cast<float*>(base + os::page_size());
  }
  std::atomic<uint64_t>& version() {
    return window != nullptr ? window_version : reinterpret_cast<Header*>(base)->version;
  }

  const Layout layout;
  const os::Fd fd;
  std::byte* const base = nullptr;

  // Of a window, which has no mapping of its own.
  const std::shared_ptr<Memory> whole;
  float* const window = nullptr;
  std::atomic<uint64_t> window_version{0};
};

Slab Slab::make(Layout layout, Kind kind) {
  const size_t bytes = mapped_bytes(layout);
  if (os::memory_headroom() < bytes) throw no_memory(layout, "the machine, or a limit, is full");
  os::Fd fd;
  if (kind == Kind::kShared) fd = os::memory_file("penstock-slab", bytes);
  void* base = os::reserve_mapping(fd.get(), bytes, kind == Kind::kShared);
  if (base == nullptr) throw no_memory(layout, "no address space (see ulimit -v)");
  auto memory = std::make_shared<Memory>(std::move(layout), std::move(fd), base);
  os::prefer_huge_pages(base, bytes, memory->fd.get());
  if (int error = os::populate_write(base, bytes, memory->fd.get(), 0); error != 0) {
    throw no_memory(memory->layout, std::strerror(error));
  }
  new (base) Header{Header::kMagic, memory->layout.hash(), memory->layout.bytes(), 0};
  return Slab(std::move(memory));
}

Slab Slab::open(int fd, Layout layout) {
  auto refuse = [](const std::string& why) { return Error(Code::kInvalidArgument, "slab", why); };
  os::Fd own = os::duplicate(fd, "slab");
  const size_t bytes = mapped_bytes(layout);
  struct stat file {};
  if (fstat(own.get(), &file) != 0) throw Error::from_errno(errno, "slab", "fstat");
  if (!S_ISREG(file.st_mode) || file.st_size < static_cast<off_t>(os::page_size())) {
    throw refuse("this descriptor is no slab");
  }
  try {
    os::forbid_shrinking(own.get());
  } catch (const Error&) {
    throw refuse("this descriptor is no slab: its file can shrink");
  }
  // Sealed before its size is read: afterwards it cannot shrink.
  if (fstat(own.get(), &file) != 0) throw Error::from_errno(errno, "slab", "fstat");
  const auto length = static_cast<size_t>(std::max<off_t>(file.st_size, 0));
  if (length < os::page_size()) throw refuse("this descriptor is no slab");

  const size_t mapped = std::min(bytes, length / os::page_size() * os::page_size());
  void* base = os::reserve_mapping(own.get(), mapped, true);
  if (base == nullptr) throw Error::from_errno(errno, "slab", "cannot map it (see ulimit -v)");
  const Header& header = *static_cast<const Header*>(base);
  std::string wrong;
  if (header.magic != Header::kMagic) {
    wrong = "this descriptor is no slab";
  } else if (header.layout_hash != layout.hash() || header.bytes != layout.bytes()) {
    wrong = "this slab has another layout";
  } else if (mapped < bytes) {
    wrong = "this slab is shorter than its header says";
  }
  if (!wrong.empty()) {
    os::unmap(base, mapped);
    throw refuse(wrong);
  }
  return Slab(std::make_shared<Memory>(std::move(layout), std::move(own), base));
}

Slab Slab::window(Layout layout, size_t offset) const {
  const size_t size = memory_->layout.floats();
  std::string wrong;
  if (kind() == Kind::kShared) {
    wrong = "a shared slab has no windows";
  } else if (offset % Layout::kAlign != 0) {
    wrong = "a window's offset is a multiple of " + std::to_string(Layout::kAlign);
  } else if (offset > size || layout.floats() > size - offset) {
    wrong = "a window of " + std::to_string(layout.floats()) + " floats at " +
            std::to_string(offset) + " ends beyond the slab's " + std::to_string(size);
  }
  if (!wrong.empty()) throw Error(Code::kInvalidArgument, "slab", wrong);
  return Slab(std::make_shared<Memory>(std::move(layout), memory_, offset));
}

const Layout& Slab::layout() const { return memory_->layout; }
Slab::Kind Slab::kind() const { return memory_->fd ? Kind::kShared : Kind::kPrivate; }
int Slab::fd() const { return memory_->fd.get(); }

std::span<float> Slab::values() const { return {memory_->floats(), memory_->layout.floats()}; }

Tensor Slab::at(std::string_view name) const {
  const Block& block = layout().at(name);
  return Tensor::view(DType::kFloat32, block.shape, memory_->floats() + block.offset, memory_);
}

void Slab::zero() const { std::ranges::fill(values(), 0.0f); }

void Slab::copy_from(const Slab& other) const {
  layout().require_equal(other.layout(), "copy", "the other slab");
  if (memory_ == other.memory_) return;
  std::memcpy(memory_->floats(), other.memory_->floats(), layout().bytes());
}

bool Slab::shares_memory_with(const Slab& other) const {
  const std::span<const float> mine = values(), theirs = other.values();
  const std::less<const float*> before;
  if (before(mine.data(), theirs.data() + theirs.size()) &&
      before(theirs.data(), mine.data() + mine.size())) {
    return true;
  }
  if (kind() != Kind::kShared || other.kind() != Kind::kShared) return false;
  struct stat one;
  struct stat two;
  if (fstat(fd(), &one) != 0 || fstat(other.fd(), &two) != 0) {
    throw Error::from_errno(errno, "slab", "look at its memory");
  }
  return one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

std::atomic<uint64_t>& Slab::version() const { return memory_->version(); }

}  // namespace penstock::train
