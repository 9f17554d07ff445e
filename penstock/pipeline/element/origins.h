#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

// The file record that an element was read from, for errors that are found later.
struct Origin {
  std::shared_ptr<const std::string> file;  // nullptr: unknown
  uint64_t record = 0;

  std::string text() const;  // "train.tfrecord, record 17"; empty: unknown
};
inline const Origin kUnknownOrigin;

// The origins of a stream chunk's elements, run-length encoded: consecutive records of one file are
// one run. One thread. The bytes:
//
//   u64 runs, u64 names
//   per run: u64 first element, u64 index of the name, u64 record of the first element
//   per name: u64 length
//   the names, zero-padded to a multiple of 8 bytes
class Origins {
 public:
  void clear();
  // Adds the origin of the next element.
  void add(const Origin& origin) {
    const uint64_t element = elements_++;
    if (known_ || origin.file != nullptr) add_run(element, origin);
  }
  // 0: all origins are unknown.
  uint64_t bytes() const;
  void write(std::byte* to) const;
  // The origin of an element as Origin::text(); empty: unknown. REQUIRED: `of` was written by
  // write().
  static std::string text(std::span<const std::byte> of, uint64_t element);

 private:
  struct Run {
    uint64_t first, name, record;
  };
  void add_run(uint64_t element, const Origin& origin);
  uint64_t name_of(const std::shared_ptr<const std::string>& file);

  uint64_t elements_ = 0;
  bool known_ = false;  // of at least one element
  std::vector<Run> runs_;
  std::vector<std::shared_ptr<const std::string>> names_;
  uint64_t names_bytes_ = 0;
};

}  // namespace penstock
