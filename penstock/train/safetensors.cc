#include "penstock/train/safetensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/half.h"
#include "penstock/io/crc32c.h"

namespace penstock::train {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as in the reference implementation
// Of its JSON: the object, an array's object, its lists, one in reserve.
constexpr int kMaxDepth = 4;
constexpr size_t kDigestChunk = size_t{4} << 20;  // bytes
constexpr size_t kConvertChunk = 1 << 16;         // floats that are converted at a time

using Name = std::pair<std::string_view, DType>;
constexpr Name kNames[] = {
    {"BOOL", DType::kBool},   {"I8", DType::kInt8},       {"U8", DType::kUint8},
    {"I16", DType::kInt16},   {"U16", DType::kUint16},    {"I32", DType::kInt32},
    {"U32", DType::kUint32},  {"I64", DType::kInt64},     {"U64", DType::kUint64},
    {"F16", DType::kFloat16}, {"BF16", DType::kBfloat16}, {"F32", DType::kFloat32},
    {"F64", DType::kFloat64}, {"C64", DType::kComplex64},
};

Error damaged_file(const std::string& path, const std::string& what) {
  return Error(Code::kDataLoss, "safetensors", path + ": " + what);
}

// Checks the header before anything is allocated for it: the order of names, no name twice, bounded
// nesting. (With a callback, or as an ordered_json, the parser compares each name with all others.)
class Names : public nlohmann::json_sax<Json> {
 public:
  explicit Names(const std::string& path) : path_(path) {}

  std::map<std::string, size_t> places;

  bool key(string_t& name) override {
    if (depth_ == 1 && !places.emplace(name, places.size()).second) {
      throw damaged_file(path_, "'" + name + "' occurs twice in its header");
    }
    return true;
  }
  bool start_object(size_t) override { return deeper(); }
  bool start_array(size_t) override { return deeper(); }
  bool end_object() override { return --depth_ >= 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }

 private:
  bool deeper() {
    if (++depth_ > kMaxDepth) throw damaged_file(path_, "its header is nested too deeply");
    return true;
  }

  const std::string& path_;
  int depth_ = 0;
};

struct FileHeader {
  Json json;
  std::map<std::string, size_t> places;
};
FileHeader parse(const std::string& path, const std::string& text) {
  Names names(path);
  const bool whole = Json::sax_parse(text, &names);
  FileHeader header{whole ? Json::parse(text) : Json(), std::move(names.places)};
  if (!header.json.is_object()) {
    throw damaged_file(path, "its header, from byte 8 on, is no JSON object");
  }
  return header;
}

StoredArray described(const std::string& path, const std::string& name, const Json& json,
                      uint64_t data_begin) {
  const std::string who = "'" + name + "' in its header ";
  auto list = [&](const char* member) {
    std::vector<uint64_t> numbers;
    if (!json.contains(member) || !json[member].is_array()) {
      throw damaged_file(path, who + "has no list '" + member + "'");
    }
    for (const Json& number : json[member]) {
      if (!number.is_number_unsigned() ||
          number.get<uint64_t>() > std::numeric_limits<int64_t>::max() / 2) {
        throw damaged_file(path, who + "has an invalid '" + member + "'");
      }
      numbers.push_back(number.get<uint64_t>());
    }
    return numbers;
  };
  if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string()) {
    throw damaged_file(path, who + "has no 'dtype'");
  }
  const auto dtype_name = json["dtype"].get<std::string>();
  const auto* known = std::ranges::find(kNames, dtype_name, &Name::first);
  if (known == std::end(kNames)) throw damaged_file(path, who + "has the dtype " + dtype_name);
  const auto shape = list("shape");
  const auto offsets = list("data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    throw damaged_file(path, who + "has invalid 'data_offsets'");
  }
  StoredArray array{name, known->second, Shape(shape.begin(), shape.end()), data_begin + offsets[0],
                    offsets[1] - offsets[0]};
  uint64_t bytes = size_of(array.dtype);
  bool empty = false, too_large = false;
  for (uint64_t length : shape) {
    empty |= length == 0;
    too_large |= __builtin_mul_overflow(bytes, std::max<uint64_t>(length, 1), &bytes);
  }
  if (too_large || (empty ? 0 : bytes) != array.bytes) {
    throw damaged_file(path, who + "has the shape " + to_string(array.shape) + " of " + dtype_name +
                                 " and " + std::to_string(array.bytes) + " bytes");
  }
  return array;
}

void check_places(const std::string& path, const std::vector<StoredArray>& arrays,
                  uint64_t data_begin, uint64_t file_bytes) {
  uint64_t at = data_begin;
  for (const StoredArray& array : arrays) {
    if (array.offset != at) {
      throw damaged_file(path, "'" + array.name + "' begins at byte " +
                                   std::to_string(array.offset) + ", where byte " +
                                   std::to_string(at) + " is due");
    }
    at += array.bytes;
  }
  if (at != file_bytes) {
    throw damaged_file(path, "it has " + std::to_string(file_bytes) +
                                 " bytes, and its arrays end at " + std::to_string(at));
  }
}

float widened(DType dtype, uint16_t half) {
  return dtype == DType::kFloat16 ? float16_to_float(half) : bfloat16_to_float(half);
}

// Computes the digest of the bytes that pass.
class DigestingSink final : public Sink {
 public:
  explicit DigestingSink(std::unique_ptr<Sink> to) : to_(std::move(to)) {}

  void write(std::span<const std::byte> bytes) override {
    to_->write(bytes);
    digest_.crc32c = crc32c(bytes, digest_.crc32c);
    digest_.bytes += bytes.size();
  }
  void commit() override { to_->commit(); }
  const FileDigest& digest() const { return digest_; }

 private:
  const std::unique_ptr<Sink> to_;
  FileDigest digest_;
};

// Writes values as 16-bit numbers.
void write_halves(Sink& sink, const ArrayToStore& array, DType dtype) {
  std::vector<uint16_t> halves(std::min(array.values.size(), kConvertChunk));
  for (size_t at = 0; at < array.values.size(); at += kConvertChunk) {
    const auto part = array.values.subspan(at, std::min(kConvertChunk, array.values.size() - at));
    for (size_t i = 0; i < part.size(); ++i) {
      halves[i] = dtype == DType::kFloat16 ? float_to_float16(part[i]) : float_to_bfloat16(part[i]);
      if (std::isfinite(part[i]) && std::isinf(widened(dtype, halves[i]))) {
        throw Error(Code::kInvalidArgument, "safetensors",
                    "block '" + array.name + "' has " + std::to_string(part[i]) +
                        ", too large for " + std::string(name_of(dtype)));
      }
    }
    sink.write(std::as_bytes(std::span(halves).first(part.size())));
  }
}

}  // namespace

SafetensorsReader::SafetensorsReader(std::shared_ptr<File> file) : file_(std::move(file)) {
  const uint64_t size = file_->size();
  if (size < kLengthBytes) {
    throw damaged_file(path(), "it has " + std::to_string(size) + " bytes: no safetensors file");
  }
  uint64_t length = 0;
  const File::Segment first{0, reinterpret_cast<std::byte*>(&length), kLengthBytes};
  file_->read({&first, 1});
  if (length > kMaxHeaderBytes || length > size - kLengthBytes) {
    throw damaged_file(path(), "its first 8 bytes say that " + std::to_string(length) +
                                   " bytes of header follow; it has " +
                                   std::to_string(size - kLengthBytes));
  }
  std::string text(length, '\0');
  const File::Segment header{kLengthBytes, reinterpret_cast<std::byte*>(text.data()), length};
  if (length > 0) file_->read({&header, 1});
  const FileHeader head = parse(path(), text);
  const uint64_t data_begin = kLengthBytes + length;
  for (const auto& [name, value] : head.json.items()) {
    if (name != "__metadata__") {
      arrays_.push_back(described(path(), name, value, data_begin));
      continue;
    }
    if (!value.is_object()) throw damaged_file(path(), "its metadata is no object");
    for (const auto& [key, text_of] : value.items()) {
      if (!text_of.is_string())
        throw damaged_file(path(), "its metadata '" + key + "' is no string");
      metadata_[key] = text_of.get<std::string>();
    }
  }
  // Of arrays at the same offset, empty ones first, in the header's order.
  std::ranges::sort(arrays_, {}, [&](const StoredArray& array) {
    return std::tuple(array.offset, array.bytes, head.places.at(array.name));
  });
  check_places(path(), arrays_, data_begin, size);
  for (size_t i = 0; i < arrays_.size(); ++i) index_[arrays_[i].name] = i;
}

const StoredArray* SafetensorsReader::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &arrays_[found->second];
}

void SafetensorsReader::read(const StoredArray& array, std::span<float> into) const {
  auto refuse = [&](const std::string& why) {
    return Error(Code::kInvalidArgument, "safetensors", path() + ": '" + array.name + "' " + why);
  };
  const bool half = array.dtype == DType::kFloat16 || array.dtype == DType::kBfloat16;
  if (!half && array.dtype != DType::kFloat32) {
    throw refuse("is " + std::string(name_of(array.dtype)) +
                 "; weights are float32, float16 or bfloat16");
  }
  if (into.size() != array.bytes / size_of(array.dtype)) {
    throw refuse("is " + to_string(array.shape) + ", not " + std::to_string(into.size()) +
                 " numbers");
  }
  if (into.empty()) return;
  if (!half) {
    const File::Segment all{array.offset, std::as_writable_bytes(into).data(), array.bytes};
    return file_->read({&all, 1});
  }
  std::vector<uint16_t> halves(std::min(into.size(), kConvertChunk));
  for (size_t at = 0; at < into.size(); at += kConvertChunk) {
    const size_t n = std::min(kConvertChunk, into.size() - at);
    const File::Segment part{array.offset + 2 * at,
                             std::as_writable_bytes(std::span(halves)).data(), 2 * n};
    file_->read({&part, 1});
    for (size_t i = 0; i < n; ++i) into[at + i] = widened(array.dtype, halves[i]);
  }
}

FileDigest write_safetensors(FileSystem& files, const std::string& path,
                             std::span<const ArrayToStore> arrays,
                             const std::map<std::string, std::string>& metadata, DType dtype) {
  if (dtype != DType::kFloat32 && dtype != DType::kFloat16 && dtype != DType::kBfloat16) {
    throw Error(Code::kInvalidArgument, "safetensors",
                "weights can be written as float32, float16 or bfloat16, not " +
                    std::string(name_of(dtype)));
  }
  const auto* dtype_name = std::ranges::find(kNames, dtype, &Name::second);
  std::string header;
  const auto add = [&](const std::string& name, const OrderedJson& value) {
    header += (header.empty() ? "{" : ",") + Json(name).dump() + ":" + value.dump();
  };
  if (!metadata.empty()) add("__metadata__", metadata);
  uint64_t at = 0;
  for (const ArrayToStore& array : arrays) {
    const uint64_t end = at + array.values.size() * size_of(dtype);
    add(array.name,
        {{"dtype", dtype_name->first}, {"shape", array.shape}, {"data_offsets", {at, end}}});
    at = end;
  }
  header += header.empty() ? "{}" : "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');  // aligns the data
  if (header.size() > kMaxHeaderBytes) {
    throw Error(Code::kInvalidArgument, "safetensors", "the names do not fit into a header");
  }
  const uint64_t length = header.size();
  DigestingSink sink(files.create(path));
  sink.write(std::as_bytes(std::span(&length, 1)));
  sink.write(std::as_bytes(std::span(header)));
  for (const ArrayToStore& array : arrays) {
    if (dtype == DType::kFloat32) {
      sink.write(std::as_bytes(array.values));
    } else {
      write_halves(sink, array, dtype);
    }
  }
  sink.commit();
  return sink.digest();
}

FileDigest digest_of(File& file) {
  FileDigest digest;
  std::vector<std::byte> chunk(std::min<uint64_t>(file.size(), kDigestChunk));
  for (const uint64_t size = file.size(); digest.bytes < size;) {
    const uint64_t bytes = std::min<uint64_t>(size - digest.bytes, chunk.size());
    const File::Segment next{digest.bytes, chunk.data(), bytes};
    file.read({&next, 1});
    digest.crc32c = crc32c(std::span(chunk).first(bytes), digest.crc32c);
    digest.bytes += bytes;
  }
  return digest;
}

}  // namespace penstock::train
