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

// Elements by their positions, in an anonymous file in memory that threads and processes share, of
// a size that is never exceeded. What finds no space is not kept.
//
//   header | a word for each position: where its entry begins, 0: nowhere | entries, specs
//
// 1. Space is claimed by moving `used` on, and never given back.
// 2. An entry is written whole (pwrite, so that a full machine is an errno and no SIGBUS), and only
//    then its word is set, once: whoever sees the word sees the entry, and it does not change.
// 3. So a process that is killed in between has published nothing; its space is lost.
// 4. Two that make the same position at once both write; the first word counts.
//
// An entry is { u64 bytes of the block, u64 where its spec is, u64 position, u64 bytes of what was
// lost on the way to it, block, that }; a spec, and what was lost behind the end, is { u64 bytes,
// those }.
//
// Threads: any, of any process that attached it, for everything but attach(), which comes first.
class CacheStore : public SharedStore {
 public:
  static constexpr uint64_t kMinBytes = 16 << 10;

  // `max_bytes`: of all of it; 0: a quarter of the memory that may be used. `positions`: that there
  // are, if it is known. Takes no memory before it is used. Error kInvalidArgument: max_bytes is
  // below kMinBytes. One that attaches another's memory has the size of that: its process may be
  // allowed less memory, or more.
  CacheStore(uint64_t max_bytes, std::optional<uint64_t> positions);
  ~CacheStore() override;
  CacheStore(const CacheStore&) = delete;
  CacheStore& operator=(const CacheStore&) = delete;

  std::vector<int> fds() override;
  size_t fd_count() const override { return 1; }
  void attach(std::vector<os::Fd> fds) override;

  // Whether it keeps elements that were made with this seed: those of the first that asks.
  bool keeps(uint64_t seed);

  struct Entry {
    std::span<const std::byte> spec;  // ElementSpec::bytes()
    uint64_t spec_place;              // equal ones need not be read again
    std::span<std::byte> block;       // of one element; nobody writes to it
    std::span<const std::byte> lost;  // on the way to it; what it says is the caller's business
  };
  // As long as the store is held.
  std::optional<Entry> find(uint64_t position);

  // Whether an entry with so large a block would be kept, if nothing was lost on the way to it.
  bool has_space(uint64_t position, uint64_t block_bytes);
  enum class Put : uint8_t {
    kPublished,
    kThere,    // somebody else did that before
    kNoSpace,  // it is not kept
  };
  // `spec_place`: where this spec is, 0 at first; kept by the caller.
  Put put(uint64_t position, std::span<const std::byte> spec, uint64_t& spec_place,
          std::span<const std::byte> block, std::span<const std::byte> lost = {});

  // Of a stream: how many there are, once somebody saw its end.
  std::optional<uint64_t> end();
  // `lost`: behind the last one. Where there is no space for that, nobody saw it.
  void set_end(uint64_t end, std::span<const std::byte> lost = {});
  // That. REQUIRED: end() is known.
  std::span<const std::byte> lost_behind();

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

  const uint64_t elements_;  // that there are; UINT64_MAX: nobody knows
  uint64_t positions_ = 0;   // that have a word
  uint64_t data_ = 0;        // where entries begin
  uint64_t bytes_ = 0;
  std::once_flag opened_;
  os::Fd fd_;
  std::byte* base_ = nullptr;
  Header* header_ = nullptr;
  std::vector<std::atomic<bool>> there_;  // pages of words that this process can touch
};

}  // namespace penstock
