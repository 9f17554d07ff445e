#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

// Which record an element is, as it was read: for who finds something wrong with it later.
struct Origin {
  std::shared_ptr<const std::string> file;  // nullptr: nobody knows
  uint64_t record = 0;

  std::string text() const;  // "train.tfrecord, record 17"; empty: nobody knows
};
inline const Origin kUnknownOrigin;

// Those of a stream chunk's elements, in few bytes where records follow each other. One thread.
//
//   u64 runs, u64 names; of each run u64 its first element, u64 the name, u64 that element's
//   record; of each name u64 its bytes; the names, and zeros up to a multiple of 8 bytes
class Origins {
 public:
  void clear();
  // Of the element behind those that were added.
  void add(const Origin& origin) {
    const uint64_t element = elements_++;
    if (known_ || origin.file != nullptr) add_run(element, origin);
  }
  // 0: nothing is known of any.
  uint64_t bytes() const;
  void write(std::byte* to) const;
  // Of what was written. Empty: nobody knows. REQUIRED: it was.
  static std::string text(std::span<const std::byte> of, uint64_t element);

 private:
  struct Run {
    uint64_t first, name, record;
  };
  void add_run(uint64_t element, const Origin& origin);
  uint64_t name_of(const std::shared_ptr<const std::string>& file);

  uint64_t elements_ = 0;
  bool known_ = false;  // of one at least
  std::vector<Run> runs_;
  std::vector<std::shared_ptr<const std::string>> names_;
  uint64_t names_bytes_ = 0;
};

}  // namespace penstock
