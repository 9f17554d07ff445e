#include "penstock/io/arrow.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

constexpr int kDeepest = 64;                        // nested types
constexpr int64_t kMaxChildren = int64_t{1} << 20;  // columns, or fields of a struct
constexpr int64_t kMaxMetadata = int64_t{1} << 30;  // bytes of a key or value

Error invalid_arrow(const std::string& why) { return {Code::kInvalidArgument, "arrow", why}; }

// ---- types -------------------------------------------------------------------------------------

int64_t length_in(std::string_view format, size_t prefix) {
  int64_t length = 0;
  const char* end = format.data() + format.size();
  const auto [at, error] = std::from_chars(format.data() + prefix, end, length);
  if (error != std::errc() || at != end || length < 0 || length > kMaxArrowItems) {
    throw invalid_arrow("'" + escape_invalid_utf8(format) + "' is no format of a type");
  }
  return length;
}

ArrowType plain_number(DType dtype, std::string name) {
  return {.kind = ArrowKind::kNumber, .stored = dtype, .dtype = dtype, .name = std::move(name)};
}

// Dates, times and durations: int64, as NumPy's datetime64 and timedelta64 are.
ArrowType int64_time(DType stored, std::string name) {
  return {.kind = ArrowKind::kNumber,
          .stored = stored,
          .dtype = DType::kInt64,
          .name = std::move(name)};
}

ArrowType refused(std::string name, std::string remedy) {
  return {.name = std::move(name), .remedy = std::move(remedy)};
}

std::optional<ArrowType> simple_type(char format) {
  switch (format) {
    case 'n':
      return refused("null", "cast it to the type that its values would have");
    case 'b':
      return ArrowType{
          .kind = ArrowKind::kBool, .stored = DType::kBool, .dtype = DType::kBool, .name = "bool"};
    case 'c':
      return plain_number(DType::kInt8, "int8");
    case 'C':
      return plain_number(DType::kUint8, "uint8");
    case 's':
      return plain_number(DType::kInt16, "int16");
    case 'S':
      return plain_number(DType::kUint16, "uint16");
    case 'i':
      return plain_number(DType::kInt32, "int32");
    case 'I':
      return plain_number(DType::kUint32, "uint32");
    case 'l':
      return plain_number(DType::kInt64, "int64");
    case 'L':
      return plain_number(DType::kUint64, "uint64");
    case 'e':
      return plain_number(DType::kFloat16, "float16");
    case 'f':
      return plain_number(DType::kFloat32, "float32");
    case 'g':
      return plain_number(DType::kFloat64, "float64");
    case 'z':
    case 'Z':
      return ArrowType{.kind = ArrowKind::kBytes, .wide = format == 'Z', .name = "binary"};
    case 'u':
    case 'U':
      return ArrowType{.kind = ArrowKind::kText, .wide = format == 'U', .name = "string"};
    default:
      return std::nullopt;
  }
}

// Formats that begin with 't'.
std::optional<ArrowType> time_type(std::string_view format) {
  if (format == "tdD") return int64_time(DType::kInt32, "date32");
  if (format == "tdm") return int64_time(DType::kInt64, "date64");
  if (format == "tts" || format == "ttm") return int64_time(DType::kInt32, "time32");
  if (format == "ttu" || format == "ttn") return int64_time(DType::kInt64, "time64");
  if (format.starts_with("ts")) return int64_time(DType::kInt64, "timestamp");
  if (format.starts_with("tD")) return int64_time(DType::kInt64, "duration");
  if (format.starts_with("ti")) return refused("interval", "cast it to duration or int64");
  return std::nullopt;
}

// Formats that begin with '+'.
std::optional<ArrowType> nested_type(std::string_view format) {
  if (format == "+l" || format == "+L") {
    return ArrowType{.kind = ArrowKind::kList, .wide = format == "+L", .name = "list"};
  }
  if (format.starts_with("+w:")) {
    return ArrowType{
        .kind = ArrowKind::kFixedList, .size = length_in(format, 3), .name = "fixed-size list"};
  }
  if (format == "+s") return ArrowType{.kind = ArrowKind::kStruct, .name = "struct"};
  if (format == "+m") return refused("map", "make a struct, or a column for each key");
  if (format.starts_with("+u")) return refused("union", "make a column for each of its types");
  if (format == "+r")
    return refused("run-end encoded", "decode it, with run_end_decode in pyarrow");
  if (format == "+vl" || format == "+vL") return refused("list view", "cast it to list");
  return std::nullopt;
}

// ---- schemas -----------------------------------------------------------------------------------

// Reads the key and value pairs of ArrowSchema::metadata.
class Metadata {
 public:
  explicit Metadata(const char* at) : at_(at) {}
  int32_t number() {
    int32_t value;
    std::memcpy(&value, at_, sizeof(value));
    at_ += sizeof(value);
    if (value < 0 || value > kMaxMetadata) throw invalid_arrow("metadata with a length below 0");
    return value;
  }
  std::string text() {
    const auto bytes = static_cast<size_t>(number());
    std::string text(at_, bytes);
    at_ += bytes;
    return text;
  }

 private:
  const char* at_;
};

// The place of each kept field among the struct's arrays.
struct Kept {
  ArrowField field;
  size_t place = 0;
  std::vector<Kept> children, dictionary;
};

Kept read_schema(const ArrowSchema& schema, int depth = 0) {
  if (depth > kDeepest) throw invalid_arrow("types are nested too deeply");
  if (schema.release == nullptr) throw invalid_arrow("a schema that is released already");
  if (schema.format == nullptr) throw invalid_arrow("a schema without a format");
  Kept made;
  made.field.format = schema.format;
  made.field.name = schema.name == nullptr ? "" : escape_invalid_utf8(schema.name);
  if (schema.metadata != nullptr) {
    Metadata metadata(schema.metadata);
    for (int32_t left = metadata.number(); left > 0; --left) {
      const std::string key = metadata.text();
      std::string value = metadata.text();
      if (key == "ARROW:extension:name")
        made.field.extension = std::move(value);
      else if (key == "ARROW:extension:metadata")
        made.field.extension_data = std::move(value);
    }
  }
  if (schema.n_children < 0 || schema.n_children > kMaxChildren ||
      (schema.n_children > 0 && schema.children == nullptr)) {
    throw invalid_arrow("'" + made.field.name + "' has " + std::to_string(schema.n_children) +
                        " fields");
  }
  for (int64_t i = 0; i < schema.n_children; ++i) {
    if (schema.children[i] == nullptr) throw invalid_arrow("a schema without one of its fields");
    made.children.push_back(read_schema(*schema.children[i], depth + 1));
    made.children.back().place = static_cast<size_t>(i);
  }
  if (schema.dictionary != nullptr) {
    made.dictionary.push_back(read_schema(*schema.dictionary, depth + 1));
  }
  return made;
}

std::string names_of(const std::vector<Kept>& fields) {
  std::string names;
  for (const Kept& field : fields) {
    names += (names.empty() ? "'" : ", '") + field.field.name + "'";
  }
  return names;
}

// Moves the field at the path `name` from one struct to another, which has the chosen ones.
bool choose(std::vector<Kept>& from, std::string_view name, std::vector<Kept>& chosen) {
  for (Kept& field : from) {
    if (field.field.name != name) continue;
    const auto known = std::ranges::find(chosen, field.place, &Kept::place);
    if (known == chosen.end()) {
      chosen.push_back(field);
    } else {
      *known = field;
    }
    return true;
  }
  for (Kept& field : from) {
    const std::string& outer = field.field.name;
    if (field.field.format != "+s" || !field.dictionary.empty() || name.size() <= outer.size() ||
        !name.starts_with(outer) || name[outer.size()] != '/') {
      continue;
    }
    auto known = std::ranges::find(chosen, field.place, &Kept::place);
    const bool fresh = known == chosen.end();
    Kept part = fresh ? field : *known;
    if (fresh) part.children.clear();
    if (!choose(field.children, name.substr(outer.size() + 1), part.children)) continue;
    if (fresh) {
      chosen.push_back(std::move(part));
    } else {
      *known = std::move(part);
    }
    return true;
  }
  return false;
}

void choose(Kept& root, const std::vector<std::string>& columns) {
  if (columns.empty()) return;
  if (root.field.format != "+s") throw invalid_arrow("there are no columns to choose from");
  std::vector<Kept> chosen;
  for (const std::string& name : columns) {
    if (choose(root.children, name, chosen)) continue;
    throw invalid_arrow("there is no column '" + name + "'; there are " + names_of(root.children));
  }
  root.children = std::move(chosen);
}

ArrowField field_of(const Kept& kept) {
  ArrowField field = kept.field;
  for (const Kept& child : kept.children) field.children.push_back(field_of(child));
  for (const Kept& values : kept.dictionary) field.dictionary.push_back(field_of(values));
  return field;
}

// ---- arrays ------------------------------------------------------------------------------------

// The array's numbers and addresses, with the children that are kept.
ArrowColumn read_array(const ArrowArray& array, const Kept& kept, int depth = 0) {
  const std::string& name = kept.field.name;
  ArrowColumn column;
  column.length = array.length;
  column.offset = array.offset;
  column.nulls = array.null_count;
  if (array.n_buffers < 0 || array.n_buffers > kMaxChildren ||
      (array.n_buffers > 0 && array.buffers == nullptr)) {
    throw arrow_contradiction(name, "has " + std::to_string(array.n_buffers) + " buffers");
  }
  for (int64_t i = 0; i < array.n_buffers; ++i) {
    column.buffers.push_back({static_cast<const std::byte*>(array.buffers[i]), 0});
  }
  for (const Kept& child : kept.children) {
    if (array.n_children <= static_cast<int64_t>(child.place) || array.children == nullptr ||
        array.children[child.place] == nullptr) {
      throw arrow_contradiction(name, "has " + std::to_string(array.n_children) +
                                          " children, and no array for the field '" +
                                          child.field.name + "'");
    }
    column.children.push_back(read_array(*array.children[child.place], child, depth + 1));
  }
  for (const Kept& values : kept.dictionary) {
    if (array.dictionary == nullptr)
      throw arrow_contradiction(name, "has indices, but no dictionary");
    column.dictionary.push_back(read_array(*array.dictionary, values, depth + 1));
  }
  return column;
}

// ---- ownership ---------------------------------------------------------------------------------

// Owns a struct of the interface that was moved here.
template <class T>
class Owner {
 public:
  Owner() = default;
  explicit Owner(T* from) : value_(*from) { from->release = nullptr; }
  ~Owner() {
    if (value_.release != nullptr) value_.release(&value_);
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  T* get() { return &value_; }
  T* operator->() { return &value_; }

 private:
  T value_ = {};
};

Error stream_error(ArrowArrayStream* stream, int error, size_t chunks) {
  const char* text = stream->get_last_error == nullptr ? nullptr : stream->get_last_error(stream);
  std::string why = chunks == 0
                        ? "the stream failed: "
                        : "the stream failed after " + std::to_string(chunks) + " batches: ";
  why += text == nullptr ? std::strerror(error) : escape_invalid_utf8(text);
  return {error == ENOMEM ? Code::kOutOfMemory : Code::kDataLoss, "arrow", std::move(why)};
}

Kept chosen_schema(const ArrowSchema& schema, const std::vector<std::string>& columns,
                   const ArrowAccept& accept) {
  Kept kept = read_schema(schema);
  choose(kept, columns);
  if (accept) accept(field_of(kept));
  return kept;
}

void add_chunk(ArrowTable& table, const Kept& kept, std::shared_ptr<Owner<ArrowArray>> array) {
  ArrowColumn chunk = read_array(*array->get(), kept);
  check_arrow(table.schema, chunk, table.schema.name);
  if (chunk.length == 0) return;
  table.chunks.push_back(std::move(chunk));
  table.owners.push_back(std::move(array));
}

}  // namespace

ArrowType arrow_type(std::string_view format) {
  std::optional<ArrowType> found;
  if (format.size() == 1) {
    found = simple_type(format[0]);
  } else if (format.starts_with("t")) {
    found = time_type(format);
  } else if (format.starts_with("+")) {
    found = nested_type(format);
  } else if (format.starts_with("w:")) {
    return {
        .kind = ArrowKind::kFixedBytes, .size = length_in(format, 2), .name = "fixed-size binary"};
  } else if (format == "vu") {
    return {.kind = ArrowKind::kTextView, .name = "string view"};
  } else if (format == "vz") {
    return {.kind = ArrowKind::kBytesView, .name = "binary view"};
  } else if (format.starts_with("d:")) {
    return refused("decimal", "cast it to float64, int64 or string");
  }
  if (found) return *found;
  return refused("type '" + escape_invalid_utf8(format) + "'",
                 "cast it to a number, a string, bytes or a list of numbers");
}

uint64_t ArrowTable::rows() const {
  uint64_t sum = 0;
  for (const ArrowColumn& chunk : chunks) sum += static_cast<uint64_t>(chunk.length);
  return sum;
}

uint64_t ArrowTable::bytes() const {
  uint64_t sum = 0;
  std::vector<const ArrowColumn*> left;
  for (const ArrowColumn& chunk : chunks) left.push_back(&chunk);
  while (!left.empty()) {
    const ArrowColumn& column = *left.back();
    left.pop_back();
    for (const ArrowColumn::Buffer& buffer : column.buffers) sum += buffer.bytes;
    for (const ArrowColumn& child : column.children) left.push_back(&child);
    for (const ArrowColumn& values : column.dictionary) left.push_back(&values);
  }
  return sum;
}

ArrowTable import_arrow(ArrowArrayStream* stream, const std::vector<std::string>& columns,
                        const ArrowAccept& accept) {
  if (stream == nullptr || stream->release == nullptr) {
    throw invalid_arrow("a stream that was read already: make a new one");
  }
  Owner<ArrowArrayStream> from(stream);
  ArrowTable table;
  Owner<ArrowSchema> schema;
  if (const int error = from->get_schema(from.get(), schema.get())) {
    throw stream_error(from.get(), error, 0);
  }
  const Kept kept = chosen_schema(*schema.get(), columns, accept);
  table.schema = field_of(kept);
  for (size_t chunks = 0;; ++chunks) {
    auto array = std::make_shared<Owner<ArrowArray>>();
    if (const int error = from->get_next(from.get(), array->get())) {
      throw stream_error(from.get(), error, chunks);
    }
    if ((*array)->release == nullptr) return table;
    add_chunk(table, kept, std::move(array));
  }
}

ArrowTable import_arrow(ArrowSchema* schema, ArrowArray* array,
                        const std::vector<std::string>& columns, const ArrowAccept& accept) {
  Owner<ArrowSchema> own(schema);
  auto data = std::make_shared<Owner<ArrowArray>>(array);
  if (own->release == nullptr || (*data)->release == nullptr) {
    throw invalid_arrow("an array that was read already: make a new one");
  }
  const Kept kept = chosen_schema(*own.get(), columns, accept);
  ArrowTable table;
  table.schema = field_of(kept);
  add_chunk(table, kept, std::move(data));
  return table;
}

}  // namespace penstock
