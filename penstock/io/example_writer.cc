#include "penstock/io/example_writer.h"

#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little);

using Buffer = std::vector<std::byte>;
using Strings = std::span<const std::span<const std::byte>>;
using Floats = std::span<const float>;
using Ints = std::span<const int64_t>;

constexpr size_t kMaxPrefixBytes = 11;  // a tag and the longest varint
constexpr uint64_t kMaxBytes = std::numeric_limits<int32_t>::max();

uint64_t varint_bytes(uint64_t value) {
  return (static_cast<uint64_t>(std::bit_width(value | 1)) + 6) / 7;
}
// A field that is a string, a message or a packed list.
uint64_t field_bytes(uint64_t body) { return 1 + varint_bytes(body) + body; }

std::byte* varint(std::byte* to, uint64_t value) {
  for (; value > 127; value >>= 7) *to++ = static_cast<std::byte>(value | 128);
  *to++ = static_cast<std::byte>(value);
  return to;
}

void put_varint(Buffer& to, uint64_t value) {
  const size_t size = to.size();
  to.resize(size + varint_bytes(value));
  varint(to.data() + size, value);
}

// Tag and length; the body follows.
void put_field(Buffer& to, uint32_t number, uint64_t body) {
  to.push_back(static_cast<std::byte>(number << 3 | 2));
  put_varint(to, body);
}

void put_bytes(Buffer& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

uint64_t packed_bytes(Floats values) { return values.size_bytes(); }
uint64_t packed_bytes(Ints values) {
  uint64_t sum = 0;
  for (int64_t value : values) sum += varint_bytes(static_cast<uint64_t>(value));
  return sum;
}
void put_packed(Buffer& to, Floats values) { put_bytes(to, std::as_bytes(values)); }
void put_packed(Buffer& to, Ints values) {
  for (int64_t value : values) put_varint(to, static_cast<uint64_t>(value));
}

// The message BytesList, FloatList or Int64List.
uint64_t list_bytes(Strings values) {
  uint64_t sum = 0;
  for (auto value : values) sum += field_bytes(value.size());
  return sum;
}
template <class Numbers>
uint64_t list_bytes(Numbers values) {
  return values.empty() ? 0 : field_bytes(packed_bytes(values));
}
void put_list(Buffer& to, Strings values) {
  for (auto value : values) {
    put_field(to, 1, value.size());
    put_bytes(to, value);
  }
}
template <class Numbers>
void put_list(Buffer& to, Numbers values) {
  if (values.empty()) return;
  put_field(to, 1, packed_bytes(values));
  put_packed(to, values);
}

constexpr uint32_t number_of(Strings) { return 1; }
constexpr uint32_t number_of(Floats) { return 2; }
constexpr uint32_t number_of(Ints) { return 3; }

// The message Feature, as the field `number`.
template <class Values>
uint64_t feature_bytes(Values values) {
  return field_bytes(list_bytes(values));
}
template <class Values>
void put_feature(Buffer& to, uint32_t number, Values values) {
  const uint64_t list = list_bytes(values);
  put_field(to, number, field_bytes(list));
  put_field(to, number_of(values), list);
  put_list(to, values);
}

// The part of a map entry before its value, field 2, which has `value` bytes.
void put_entry(Buffer& to, std::string_view name, uint64_t value) {
  put_field(to, 1, field_bytes(name.size()) + field_bytes(value));
  put_field(to, 1, name.size());
  put_bytes(to, std::as_bytes(std::span(name)));
}

void check_size(uint64_t bytes) {
  if (bytes <= kMaxBytes) return;
  throw Error(Code::kInvalidArgument, "write_example",
              "a message of " + std::to_string(bytes) + " bytes exceeds protobuf's limit");
}

}  // namespace

template <class Values>
void ExampleWriter::put(std::string_view name, Values values) {
  if (finished_) {
    buffer_.resize(kMaxPrefixBytes);
    finished_ = false;
  }
  put_entry(buffer_, name, feature_bytes(values));
  put_feature(buffer_, 2, values);
}

void ExampleWriter::bytes(std::string_view name, std::span<const std::byte> value) {
  put(name, Strings(&value, 1));
}
void ExampleWriter::bytes_list(std::string_view name, Strings values) { put(name, values); }
void ExampleWriter::float32(std::string_view name, Floats values) { put(name, values); }
void ExampleWriter::int64(std::string_view name, Ints values) { put(name, values); }

std::span<const std::byte> ExampleWriter::finish() {
  if (finished_) return {};
  finished_ = true;
  const uint64_t entries = buffer_.size() - kMaxPrefixBytes;
  check_size(field_bytes(entries));
  std::byte* begin = buffer_.data() + (kMaxPrefixBytes - 1 - varint_bytes(entries));
  *begin = std::byte{1 << 3 | 2};
  varint(begin + 1, entries);
  return {begin, field_bytes(entries)};
}

void SequenceExampleWriter::list(std::string_view name) {
  end_list();
  name_ = name;
  open_ = true;
}

void SequenceExampleWriter::end_list() {
  if (!open_) return;
  put_entry(lists_, name_, steps_.size());
  put_field(lists_, 2, steps_.size());
  put_bytes(lists_, steps_);
  steps_.clear();
  open_ = false;
}

template <class Values>
void SequenceExampleWriter::put(Values values) {
  if (!open_)
    throw Error(Code::kInvalidArgument, "write_example", "a step needs a list: call list() first");
  put_feature(steps_, 1, values);
}

void SequenceExampleWriter::bytes(std::span<const std::byte> value) { put(Strings(&value, 1)); }
void SequenceExampleWriter::bytes_list(Strings values) { put(values); }
void SequenceExampleWriter::float32(Floats values) { put(values); }
void SequenceExampleWriter::int64(Ints values) { put(values); }

std::span<const std::byte> SequenceExampleWriter::finish() {
  end_list();
  const Buffer lists = std::exchange(lists_, {});
  const auto context = context_.finish();
  message_.assign(context.begin(), context.end());
  if (!lists.empty()) {
    put_field(message_, 2, lists.size());
    put_bytes(message_, lists);
  }
  check_size(message_.size());
  return message_;
}

}  // namespace penstock
