#include "penstock/train/weights_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

// All operations on the shared words are sequentially consistent: the proof in docs/training.md
// needs a single order.
namespace penstock::train {
namespace {

// version << 7 | slot << 1 | 1
static_assert(kSlots <= 64);
uint64_t pack(WeightsMemory::Version v) { return v.number << 7 | uint64_t{v.slot} << 1 | 1; }
// The learner's memory may hold anything: a slot that does not exist is never read.
WeightsMemory::Version unpack(uint64_t word) {
  const auto slot = static_cast<uint32_t>(word >> 1 & 63);
  if (slot < kSlots) return {word >> 7, slot};
  throw Error(Code::kDataLoss, "attach",
              "the learner's memory names version " + std::to_string(word >> 7) + " in slot " +
                  std::to_string(slot) + " of " + std::to_string(kSlots) + ": attach again");
}

// The futex bit of threads that sleep since `changes` had this value.
uint32_t group_of(uint32_t changes) { return uint32_t{1} << changes % 32; }

// Threads that each woken thread wakes: a tree, so all are awake after few steps.
constexpr int kWokenByEach = 2;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct Sizes {
  size_t slots_at, slot_bytes, mapped;
};

// False: too large to map. Slots of at least a huge page begin at one.
bool sizes_of(const Layout& layout, Sizes& sizes) {
  const size_t unit = layout.bytes() >= os::kHugePage ? os::kHugePage : os::page_size();
  sizes.slots_at = round_up(kJsonAt + layout.to_json().size(), unit);
  sizes.slot_bytes = round_up(layout.bytes(), unit);
  return !__builtin_mul_overflow(sizes.slot_bytes, size_t{kSlots}, &sizes.mapped) &&
         !__builtin_add_overflow(sizes.mapped, sizes.slots_at, &sizes.mapped) &&
         sizes.mapped <= size_t{PTRDIFF_MAX};
}

Error no_memory(const char* operation, const Layout& layout, const std::string& why) {
  return Error(
      Code::kOutOfMemory, operation,
      "no memory for versions of " + std::to_string(layout.bytes()) + " bytes each: " + why);
}

constexpr const char* kNoAddresses =
    "63 versions do not fit into the address space (see ulimit -v)";

}  // namespace

std::shared_ptr<WeightsMemory> WeightsMemory::make(Layout layout) {
  constexpr const char* kWhat = "publish";
  Sizes sizes{};
  if (!sizes_of(layout, sizes)) throw no_memory(kWhat, layout, "too large");
  os::Fd fd = os::memory_file("penstock-weights", sizes.slots_at);
  void* base = os::reserve_mapping(fd.get(), sizes.mapped, true);
  if (base == nullptr) throw no_memory(kWhat, layout, kNoAddresses);
  auto memory = std::make_shared<WeightsMemory>(Token{}, std::move(layout), std::move(fd), base,
                                                sizes.slots_at, sizes.slot_bytes, sizes.mapped);
  const std::string& json = memory->layout().to_json();
  if (int error = os::populate_write(base, kJsonAt + json.size(), memory->fd(), 0); error != 0) {
    throw no_memory(kWhat, memory->layout(), std::strerror(error));
  }
  std::memcpy(memory->base_ + kJsonAt, json.data(), json.size());
  // The rows are zero.
  auto* header = new (base) WeightsHeader{};
  header->layout_hash = memory->layout().hash();
  header->json_bytes = json.size();
  header->slots_at = sizes.slots_at;
  header->slot_bytes = sizes.slot_bytes;
  header->magic = WeightsHeader::kMagic;
  return memory;
}

std::shared_ptr<WeightsMemory> WeightsMemory::open(os::Fd fd) {
  constexpr const char* kWhat = "attach";
  auto refuse = [](const char* why) {
    return Error(Code::kInvalidArgument, kWhat,
                 "the descriptor from the learner is no weights memory: " + std::string(why));
  };
  struct stat file {};
  if (fstat(fd.get(), &file) != 0) throw Error::from_errno(errno, kWhat, "fstat");
  if (!S_ISREG(file.st_mode)) throw refuse("it is no memory file");
  try {
    os::forbid_shrinking(fd.get());
  } catch (const Error&) {
    throw refuse("the file can shrink");
  }
  // Sealed before its size is read: afterwards it cannot shrink.
  if (fstat(fd.get(), &file) != 0) throw Error::from_errno(errno, kWhat, "fstat");
  const auto length = static_cast<uint64_t>(file.st_size);
  if (length < kJsonAt) throw refuse("it is too short");

  void* front = os::reserve_mapping(fd.get(), kJsonAt, true);
  if (front == nullptr) throw Error::from_errno(errno, kWhat, "cannot map the header");
  const auto* words = static_cast<const WeightsHeader*>(front);
  const uint64_t magic = words->magic, hash = words->layout_hash, json_bytes = words->json_bytes;
  const uint64_t slots_at = words->slots_at, slot_bytes = words->slot_bytes;
  os::unmap(front, kJsonAt);
  if (magic != WeightsHeader::kMagic) throw refuse("wrong magic number");
  if (slots_at > length || slots_at < kJsonAt || json_bytes > slots_at - kJsonAt) {
    throw refuse("its header has sizes beyond the file's end");
  }
  void* text = os::reserve_mapping(fd.get(), slots_at, true);
  if (text == nullptr) throw Error::from_errno(errno, kWhat, "cannot map the layout");
  const std::string json(static_cast<const char*>(text) + kJsonAt, json_bytes);
  os::unmap(text, slots_at);
  Layout layout = Layout::from_json(json);
  Sizes sizes{};
  if (!sizes_of(layout, sizes) || layout.hash() != hash || sizes.slots_at != slots_at ||
      sizes.slot_bytes != slot_bytes) {
    throw refuse("its sizes do not match its layout");
  }
  void* base = os::reserve_mapping(fd.get(), sizes.mapped, true);
  if (base == nullptr) throw no_memory(kWhat, layout, kNoAddresses);
  auto memory = std::make_shared<WeightsMemory>(Token{}, std::move(layout), os::Fd(), base,
                                                sizes.slots_at, sizes.slot_bytes, sizes.mapped);
  if (mprotect(memory->base_ + slots_at, sizes.mapped - slots_at, PROT_READ) != 0) {
    throw Error::from_errno(errno, kWhat, "cannot make the weights read-only");
  }
  return memory;
}

WeightsMemory::WeightsMemory(Token, Layout layout, os::Fd fd, void* base, size_t slots_at,
                             size_t slot_bytes, size_t mapped)
    : layout_(std::move(layout)),
      fd_(std::move(fd)),
      base_(static_cast<std::byte*>(base)),
      mapped_(mapped),
      slots_at_(slots_at),
      slot_bytes_(slot_bytes) {}

WeightsMemory::~WeightsMemory() { os::unmap(base_, mapped_); }

WeightsHeader& WeightsMemory::header() const {
  return *std::launder(reinterpret_cast<WeightsHeader*>(base_));
}

ReaderRow& WeightsMemory::row_at(uint32_t row) const {
  return reinterpret_cast<ReaderRow*>(base_ + kRowsAt)[row];
}

uint64_t WeightsMemory::offset_of(uint32_t slot) const { return slots_at_ + slot * slot_bytes_; }
size_t WeightsMemory::slot_bytes() const { return slot_bytes_; }

std::span<float> WeightsMemory::values(uint32_t slot) const {
  return {reinterpret_cast<float*>(base_ + offset_of(slot)), layout_.floats()};
}

std::optional<WeightsMemory::Version> WeightsMemory::newest() const {
  const uint64_t word = header().current.load();
  if (word == 0) return std::nullopt;
  return unpack(word);
}

std::optional<WeightsMemory::Version> WeightsMemory::hold(uint32_t row) const {
  uint64_t word = header().current.load();
  while (word != 0) {
    const uint32_t slot = unpack(word).slot;
    row_at(row).holds[slot].fetch_add(1);
    word = header().current.load();
    // Possibly a newer version, but in this slot, which was held before it became current.
    if (unpack(word).slot == slot) return unpack(word);
    release(row, slot);
  }
  return std::nullopt;
}

void WeightsMemory::release(uint32_t row, uint32_t slot) const {
  row_at(row).holds[slot].fetch_sub(1);
}

uint32_t WeightsMemory::changes() const { return header().changes.load(); }

void WeightsMemory::announce_sleeper(uint32_t row, int change) const {
  row_at(row).waiting.fetch_add(static_cast<uint32_t>(change));
}

void WeightsMemory::sleep_while(uint32_t seen, int64_t timeout_ns) const {
  const os::Woken woken = os::futex_wait_bitset(header().changes, seen, timeout_ns, group_of(seen));
  if (woken == os::Woken::kWoken) wake_older(kWokenByEach);
}

// Not threads that already wait for the next change.
void WeightsMemory::wake_older(int how_many) const {
  os::futex_wake_bitset(header().changes, how_many, ~group_of(changes()));
}

void WeightsMemory::wake_late() const { wake_older(INT_MAX); }

void WeightsMemory::wake() const {
  header().changes.fetch_add(1);
  os::futex_wake(header().changes, INT_MAX, true);
}

uint64_t WeightsMemory::held() const {
  uint64_t mask = 0;
  const uint32_t rows = header().rows_used.load();
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      if (row_at(row).holds[slot].load() != 0) mask |= uint64_t{1} << slot;
    }
  }
  return mask;
}

bool WeightsMemory::holds_any(uint32_t row) const {
  for (const auto& count : row_at(row).holds) {
    if (count.load() != 0) return true;
  }
  return false;
}

uint32_t WeightsMemory::announce(Version version) const {
  header().current.store(pack(version));
  header().changes.fetch_add(1);
  uint32_t sleepers = 0;
  const uint32_t rows = header().rows_used.load();
  for (uint32_t row = 0; row < rows; ++row) sleepers += row_at(row).waiting.load();
  // A woken thread may take this core before the caller returns: wake only one.
  if (sleepers > 0) wake_older(1);
  return sleepers;
}

void WeightsMemory::clear(uint32_t row) const {
  row_at(row).waiting.store(0);
  for (auto& count : row_at(row).holds) count.store(0);
}

void WeightsMemory::use_rows(uint32_t count) const { header().rows_used.store(count); }

}  // namespace penstock::train
