#include "penstock/pipeline/cache/cache_store.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/random.h"

namespace penstock {
namespace {

constexpr uint64_t kCacheMagic = 0x3165686361636e70;  // "pncache1"
constexpr uint64_t kCacheHeader = 4096;
constexpr uint64_t kCacheAlignment = 32;
constexpr uint64_t kMinEntry = 128;  // bytes of the file per position
// The free memory is checked each time so many bytes were claimed.
constexpr uint64_t kLookAtMemory = 16 << 20;
constexpr uint64_t kLeaveFree = 64 << 20;  // memory to leave free for other processes
constexpr uint64_t kNoEnd = UINT64_MAX;

uint64_t up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

struct CacheStore::Header {
  uint64_t magic, bytes, positions;
  std::atomic<uint64_t> used;  // everything before it is claimed
  std::atomic<uint64_t> seed;  // derived from the seed; 0: not set yet
  std::atomic<uint64_t> end;   // of a stream
  std::atomic<uint64_t> lost;  // offset of the losses after the end; 0: none
};

CacheStore::CacheStore(uint64_t max_bytes, std::optional<uint64_t> positions)
    : elements_(positions.value_or(UINT64_MAX)) {
  set_size(max_bytes == 0 ? os::memory_limit() / 4 : max_bytes);
  if (bytes_ < kMinBytes) {
    throw Error(Code::kInvalidArgument, "cache",
                "max_bytes is " + std::to_string(max_bytes) + "; give " +
                    std::to_string(kMinBytes) + " or more");
  }
}

void CacheStore::set_size(uint64_t bytes) {
  bytes_ = bytes;
  positions_ = std::min(elements_, bytes / kMinEntry);
  data_ = up(kCacheHeader + positions_ * sizeof(uint64_t), kCacheHeader);
  there_ = std::vector<std::atomic<bool>>(data_ / kCacheHeader);
}

CacheStore::~CacheStore() {
  if (base_ != nullptr) os::unmap(base_, bytes_);
}

// ---- memory ------------------------------------------------------------------------------------

void CacheStore::map() {
  void* base = os::reserve_mapping(fd_.get(), bytes_, true);
  if (base == nullptr) throw Error::from_errno(errno, "cache", "mapping its memory");
  base_ = static_cast<std::byte*>(base);
  if (int error = os::populate_write(base, kCacheHeader, fd_.get(), 0); error != 0) {
    throw Error::from_errno(error, "cache", "memory for its header");
  }
  header_ = reinterpret_cast<Header*>(base_);
}

void CacheStore::open() {
  std::call_once(opened_, [this] {
    if (base_ != nullptr) return;  // attached
    fd_ = os::memory_file("penstock-cache", bytes_);
    map();
    header_->bytes = bytes_;
    header_->positions = positions_;
    header_->used = data_;
    header_->end = kNoEnd;
    header_->magic = kCacheMagic;
  });
}

std::vector<int> CacheStore::fds() {
  open();
  return {fd_.get()};
}

void CacheStore::attach(std::vector<os::Fd> fds) {
  fd_ = std::move(fds.at(0));
  auto refuse = [] {
    throw Error(Code::kInvalidArgument, "cache", "it is the cache of another plan");
  };
  std::array<uint64_t, 3> header;  // the first members of Header
  if (pread(fd_.get(), header.data(), sizeof(header), 0) != ssize_t{sizeof(header)}) refuse();
  const auto [magic, bytes, positions] = header;
  if (magic != kCacheMagic || bytes < kMinBytes) refuse();
  set_size(bytes);
  if (positions != positions_) refuse();
  map();
}

// ---- words -------------------------------------------------------------------------------------

bool CacheStore::keeps(uint64_t seed) {
  open();
  const uint64_t key = derive_key(seed, 0, KeyUse::kSamples) | 1;
  uint64_t known = 0;
  return header_->seed.compare_exchange_strong(known, key) || known == key;
}

// nullptr: the position has no word, or there is no memory for it.
std::atomic<uint64_t>* CacheStore::word(uint64_t position) {
  if (position >= positions_) return nullptr;
  const uint64_t at = kCacheHeader + position * sizeof(uint64_t), page = at / kCacheHeader;
  if (!there_[page].load(std::memory_order_relaxed)) {
    if (os::populate_write(base_ + page * kCacheHeader, kCacheHeader, fd_.get(),
                           page * kCacheHeader) != 0) {
      return nullptr;
    }
    there_[page].store(true, std::memory_order_relaxed);
  }
  return reinterpret_cast<std::atomic<uint64_t>*>(base_ + at);
}

std::optional<uint64_t> CacheStore::end() {
  open();
  const uint64_t end = header_->end.load(std::memory_order_acquire);
  return end == kNoEnd ? std::nullopt : std::optional(end);
}

void CacheStore::set_end(uint64_t end, std::span<const std::byte> lost) {
  open();
  if (!lost.empty() && header_->lost == 0) {
    const uint64_t at = append_record(lost);
    if (at == 0) return;
    header_->lost = at;
  }
  header_->end.store(end, std::memory_order_release);
}

std::span<const std::byte> CacheStore::trailing_losses() {
  const uint64_t at = header_->lost;
  return at == 0 ? std::span<const std::byte>() : record_at(at);
}

std::optional<CacheStore::Entry> CacheStore::find(uint64_t position) {
  open();
  std::atomic<uint64_t>* word = this->word(position);
  const uint64_t at = word == nullptr ? 0 : word->load(std::memory_order_acquire);
  if (at == 0) return std::nullopt;
  std::array<uint64_t, 4> entry;
  std::memcpy(entry.data(), base_ + at, sizeof(entry));
  std::byte* block = base_ + at + sizeof(entry);
  return Entry{record_at(entry[1]), entry[1], {block, entry[0]}, {block + entry[0], entry[3]}};
}

// ---- space -------------------------------------------------------------------------------------

bool CacheStore::has_space(uint64_t position, uint64_t block_bytes) {
  open();
  const uint64_t left = bytes_ - header_->used.load(std::memory_order_relaxed);
  return position < positions_ && block_bytes < left && left - block_bytes >= kCacheAlignment;
}

// 0: no space.
uint64_t CacheStore::claim(uint64_t bytes) {
  uint64_t used = header_->used.load(std::memory_order_relaxed);
  for (;;) {
    if (bytes > bytes_ - used) return 0;
    const bool look = used / kLookAtMemory != (used + bytes) / kLookAtMemory || used == data_;
    if (look && os::memory_headroom() < bytes + kLeaveFree) return 0;
    if (header_->used.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed)) {
      return used;
    }
  }
}

// Writes the pieces one after the other. Returns their offset; 0: no space.
uint64_t CacheStore::append(std::span<const std::span<const std::byte>> pieces) {
  uint64_t bytes = 0;
  std::array<iovec, 3> parts;
  for (size_t i = 0; i < pieces.size(); ++i) {
    parts[i] = {const_cast<std::byte*>(pieces[i].data()), pieces[i].size()};
    bytes += pieces[i].size();
  }
  const uint64_t at = claim(up(bytes, kCacheAlignment));
  if (at == 0) return 0;
  auto* part = parts.data();
  int count = static_cast<int>(pieces.size());
  for (uint64_t to = at; count > 0;) {
    ssize_t done = pwritev(fd_.get(), part, count, static_cast<off_t>(to));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return 0;  // no memory: the element is not cached
    to += static_cast<uint64_t>(done);
    while (count > 0 && static_cast<size_t>(done) >= part->iov_len) {
      done -= static_cast<ssize_t>(part->iov_len);
      ++part;
      --count;
    }
    if (count == 0) break;
    part->iov_base = static_cast<std::byte*>(part->iov_base) + done;
    part->iov_len -= static_cast<size_t>(done);
  }
  return at;
}

uint64_t CacheStore::append_record(std::span<const std::byte> bytes) {
  const uint64_t count = bytes.size();
  const std::array<std::span<const std::byte>, 2> record{std::as_bytes(std::span(&count, 1)),
                                                         bytes};
  return append(record);
}

std::span<const std::byte> CacheStore::record_at(uint64_t at) const {
  uint64_t bytes;
  std::memcpy(&bytes, base_ + at, sizeof(bytes));
  return {base_ + at + sizeof(bytes), bytes};
}

CacheStore::Put CacheStore::put(uint64_t position, std::span<const std::byte> spec,
                                uint64_t& spec_place, std::span<const std::byte> block,
                                std::span<const std::byte> lost) {
  open();
  std::atomic<uint64_t>* word = this->word(position);
  if (word == nullptr) return Put::kNoSpace;
  if (word->load(std::memory_order_relaxed) != 0) return Put::kAlreadyPublished;
  if (spec_place == 0) {
    spec_place = append_record(spec);
    if (spec_place == 0) return Put::kNoSpace;
  }
  const std::array<uint64_t, 4> entry{block.size(), spec_place, position, lost.size()};
  const std::array<std::span<const std::byte>, 3> pieces{std::as_bytes(std::span(entry)), block,
                                                         lost};
  const uint64_t at = append(pieces);
  if (at == 0) return Put::kNoSpace;
  uint64_t none = 0;
  const bool first = word->compare_exchange_strong(none, at, std::memory_order_release);
  return first ? Put::kPublished : Put::kAlreadyPublished;
}

}  // namespace penstock
