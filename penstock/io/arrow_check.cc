#include <bit>
#include <cstddef>
#include <cstring>

#include "penstock/io/arrow.h"

namespace penstock {
namespace {

int64_t offset_at(const ArrowColumn::Buffer& offsets, bool wide, int64_t place) {
  if (wide) {
    int64_t value;
    std::memcpy(&value, offsets.data + place * 8, sizeof(value));
    return value;
  }
  int32_t value;
  std::memcpy(&value, offsets.data + place * 4, sizeof(value));
  return value;
}

int64_t zero_bits(const std::byte* bits, int64_t first, int64_t count) {
  int64_t ones = 0;
  int64_t place = first;
  const int64_t end = first + count;
  for (; place < end && place % 8 != 0; ++place) ones += arrow_bit(bits, place);
  for (; place + 64 <= end; place += 64) {
    uint64_t word;
    std::memcpy(&word, bits + place / 8, sizeof(word));
    ones += std::popcount(word);
  }
  for (; place < end; ++place) ones += arrow_bit(bits, place);
  return count - ones;
}

// Checks one column without its children.
class Checker {
 public:
  Checker(const ArrowType& type, ArrowColumn& column, const std::string& name)
      : type_(type), column_(column), name_(name), end_(column.offset + column.length) {}

  // Errors: kDataLoss.
  void check() {
    check_count();
    check_validity();
    switch (type_.kind) {
      case ArrowKind::kNumber:
        return require(1, end_ * static_cast<int64_t>(size_of(type_.stored)));
      case ArrowKind::kBool:
        return require(1, (end_ + 7) / 8);
      case ArrowKind::kFixedBytes:
        return require(1, product(end_, type_.size));
      case ArrowKind::kText:
      case ArrowKind::kBytes:
        return require(2, last_offset());
      case ArrowKind::kTextView:
      case ArrowKind::kBytesView:
        return check_views();
      case ArrowKind::kList:
        return require_items(last_offset());
      case ArrowKind::kFixedList:
        return require_items(product(end_, type_.size));
      case ArrowKind::kStruct:
        for (const ArrowColumn& child : column_.children) {
          if (child.length < end_) throw short_child(child.length, end_);
        }
        return;
      case ArrowKind::kRefused:
        return;
    }
  }

 private:
  void check_count() const {
    size_t wanted = 2;
    switch (type_.kind) {
      case ArrowKind::kText:
      case ArrowKind::kBytes:
        wanted = 3;
        break;
      case ArrowKind::kTextView:
      case ArrowKind::kBytesView:
        if (column_.buffers.size() >= 3) return;
        wanted = 3;
        break;
      case ArrowKind::kFixedList:
      case ArrowKind::kStruct:
        wanted = 1;
        break;
      default:
        break;
    }
    if (column_.buffers.size() == wanted) return;
    throw arrow_contradiction(name_, "has " + std::to_string(column_.buffers.size()) +
                                         " buffers; a " + type_.name + " has " +
                                         std::to_string(wanted));
  }

  void check_validity() {
    ArrowColumn::Buffer& bits = column_.buffers[0];
    if (column_.nulls > column_.length) {
      throw arrow_contradiction(name_, "has " + std::to_string(column_.nulls) + " nulls among " +
                                           std::to_string(column_.length) + " items");
    }
    if (bits.data == nullptr) {
      if (column_.nulls > 0)
        throw arrow_contradiction(name_, "has nulls, but no bits that say which");
      column_.nulls = 0;
      return;
    }
    if (column_.nulls < 0) column_.nulls = zero_bits(bits.data, column_.offset, column_.length);
    bits.bytes = static_cast<uint64_t>((end_ + 7) / 8);
  }

  int64_t product(int64_t items, int64_t size) const {
    int64_t bytes;
    if (__builtin_mul_overflow(items, size, &bytes) || bytes > kMaxArrowItems * 16) {
      throw arrow_contradiction(name_, "is larger than any memory");
    }
    return bytes;
  }

  void require(size_t buffer, int64_t bytes) const {
    ArrowColumn::Buffer& found = column_.buffers[buffer];
    if (bytes > 0 && found.data == nullptr) {
      throw arrow_contradiction(name_, "has " + std::to_string(column_.length) +
                                           " items, but no buffer " + std::to_string(buffer));
    }
    found.bytes = static_cast<uint64_t>(bytes);
  }

  // Checks the two ends of the offsets. Returns the last one.
  int64_t last_offset() const {
    if (column_.length == 0) return 0;  // the buffer may be missing
    require(1, (end_ + 1) * (type_.wide ? 8 : 4));
    const int64_t first = offset_at(column_.buffers[1], type_.wide, column_.offset);
    const int64_t last = offset_at(column_.buffers[1], type_.wide, end_);
    if (first < 0 || last < first || last > kMaxArrowItems) {
      throw arrow_contradiction(
          name_, "has offsets from " + std::to_string(first) + " to " + std::to_string(last));
    }
    return last;
  }

  void require_items(int64_t items) const {
    if (column_.children.size() != 1)
      throw arrow_contradiction(name_, "is a list without one array of items");
    if (column_.children[0].length < items) throw short_child(column_.children[0].length, items);
  }

  Error short_child(int64_t has, int64_t needs) const {
    return arrow_contradiction(name_, "has a child of " + std::to_string(has) +
                                          " items, and needs " + std::to_string(needs));
  }

  // The last buffer has the sizes of the buffers with long values.
  void check_views() const {
    require(1, end_ * 16);
    const size_t sizes = column_.buffers.size() - 1;
    require(sizes, static_cast<int64_t>(sizes - 2) * 8);
    for (size_t i = 2; i < sizes; ++i) {
      const int64_t bytes = offset_at(column_.buffers[sizes], true, static_cast<int64_t>(i - 2));
      if (bytes < 0 || bytes > kMaxArrowItems) {
        throw arrow_contradiction(name_, "has a buffer of " + std::to_string(bytes) + " bytes");
      }
      require(i, bytes);
    }
  }

  const ArrowType& type_;
  ArrowColumn& column_;
  const std::string& name_;
  const int64_t end_;
};

}  // namespace

void check_arrow(const ArrowField& field, ArrowColumn& column, const std::string& name) {
  if (column.length < 0 || column.offset < 0 || column.length > kMaxArrowItems ||
      column.offset > kMaxArrowItems) {
    throw arrow_contradiction(name, "has a length of " + std::to_string(column.length) +
                                        " and an offset of " + std::to_string(column.offset));
  }
  const ArrowType type = arrow_type(field.format);
  if (type.kind == ArrowKind::kRefused) return;  // its values are not read
  for (size_t i = 0; i < field.children.size(); ++i) {
    const std::string& child = field.children[i].name;
    const bool part = type.kind == ArrowKind::kStruct;
    check_arrow(field.children[i], column.children.at(i),
                part ? (name.empty() ? child : name + "/" + child) : name);
  }
  if (!field.dictionary.empty()) {
    check_arrow(field.dictionary[0], column.dictionary.at(0), name);
  }
  Checker(type, column, name).check();
}

}  // namespace penstock
