#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "penstock/base/os.h"
#include "penstock/pipeline/cache/shared_store.h"

namespace penstock {

// Elements by position in an anonymous memory file that threads and processes share. Its size is
// bounded; elements that find no space are not cached. The layout:
//
//   header | per position a word: the offset of its entry, or 0 | entries, specs
//
//   entry:   u64 bytes of the block, u64 offset of its spec, u64 position, u64 bytes of its losses,
//            the block, the losses
//   record:  u64 bytes, the bytes; for a spec, and for the losses after the end
//
// Invariants:
// 1. Space is claimed by advancing `used`, and never given back.
// 2. An entry is written completely before its word is set. It is written by pwrite, so that a lack
//    of memory is an errno and no SIGBUS. The word is set once: a reader of the word sees the whole
//    entry, which never changes.
// 3. So a process that is killed while writing has published nothing; its space is lost.
// 4. If two processes make the same position, both write an entry; the first word counts.
//
// Threads: attach() comes before all else; everything else from any thread of any attached process.
class CacheStore : public SharedStore {
 public:
  static constexpr uint64_t kMinBytes = 16 << 10;

  // `max_bytes`: size of the file; 0: a quarter of the memory limit. `positions`: the number of
  // positions, if known. Allocates nothing before the first use. A process that attaches another's
  // memory uses that size, since its own memory limit may differ. Error kInvalidArgument: max_bytes
  // is below kMinBytes.
  CacheStore(uint64_t max_bytes, std::optional<uint64_t> positions);
  ~CacheStore() override;
  CacheStore(const CacheStore&) = delete;
  CacheStore& operator=(const CacheStore&) = delete;

  std::vector<int> fds() override;
  size_t fd_count() const override { return 1; }
  void attach(std::vector<os::Fd> fds) override;

  // Whether the store keeps elements of this seed. The first call decides which seed that is.
  bool keeps(uint64_t seed);

  struct Entry {
    std::span<const std::byte> spec;  // ElementSpec::bytes()
    uint64_t spec_place;              // offset of the spec; equal offsets are equal specs
    std::span<std::byte> block;       // one element; read-only
    std::span<const std::byte> lost;  // losses on the way to the element, in the caller's encoding
  };
  // The spans are valid as long as the store.
  std::optional<Entry> find(uint64_t position);

  // Whether an entry with a block of this size would be kept, if it has no losses.
  bool has_space(uint64_t position, uint64_t block_bytes);
  enum class Put : uint8_t {
    kPublished,
    kAlreadyPublished,  // another thread or process published it before
    kNoSpace,           // not cached
  };
  // `spec_place`: offset of this spec. Initialize it with 0, and pass it again with the same spec.
  Put put(uint64_t position, std::span<const std::byte> spec, uint64_t& spec_place,
          std::span<const std::byte> block, std::span<const std::byte> lost = {});

  // The number of elements of a stream; nothing: its end was not reached yet.
  std::optional<uint64_t> end();
  // `lost`: the losses after the last element. If there is no space for them, the end is not set.
  void set_end(uint64_t end, std::span<const std::byte> lost = {});
  // The `lost` of set_end(). REQUIRED: end() is known.
  std::span<const std::byte> trailing_losses();

 private:
  struct Header;
  void set_size(uint64_t bytes);
  void open();
  void map();
  std::atomic<uint64_t>* word(uint64_t position);
  uint64_t claim(uint64_t bytes);
  uint64_t append(std::span<const std::span<const std::byte>> pieces);
  uint64_t append_record(std::span<const std::byte> bytes);
  std::span<const std::byte> record_at(uint64_t at) const;

  const uint64_t elements_;  // number of elements; UINT64_MAX: unknown
  uint64_t positions_ = 0;   // number of words
  uint64_t data_ = 0;        // offset of the first entry
  uint64_t bytes_ = 0;
  std::once_flag opened_;
  os::Fd fd_;
  std::byte* base_ = nullptr;
  Header* header_ = nullptr;
  std::vector<std::atomic<bool>> there_;  // per page of words: mapped in this process
};

}  // namespace penstock
