#include "penstock/pipeline/sources/arrow_leaf.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/pipeline/element/element.h"

namespace penstock {
namespace {

// The address of values without bytes: copies of 0 bytes must not be made from a null pointer.
constexpr std::byte kNothing[1] = {};

// ---- leaves ------------------------------------------------------------------------------------

Error refused(const std::string& path, const std::string& type, const std::string& remedy) {
  return {Code::kInvalidArgument, "arrow",
          "'" + path + "' is " + type + ", which cannot be an element: " + remedy +
              ", or leave it out by columns="};
}

bool is_number(const ArrowType& type) {
  return type.kind == ArrowKind::kNumber || type.kind == ArrowKind::kBool;
}

bool is_signed(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt32 ||
         dtype == DType::kInt64;
}

bool is_integer(DType dtype) {
  return is_signed(dtype) || dtype == DType::kUint8 || dtype == DType::kUint16 ||
         dtype == DType::kUint32 || dtype == DType::kUint64;
}

// The shape of the extension type for tensors; empty: it is not that type.
Shape tensor_shape(const ArrowField& field, const std::string& path) {
  if (field.extension != "arrow.fixed_shape_tensor") return {};
  const auto parameters = nlohmann::json::parse(field.extension_data, nullptr, false);
  Shape shape;
  try {
    shape = parameters.at("shape").get<Shape>();
    if (parameters.contains("permutation")) {
      const auto order = parameters["permutation"].get<Shape>();
      if (!std::ranges::is_sorted(order)) {
        throw refused(path, "a tensor with permuted axes", "make its memory C-contiguous");
      }
    }
    if (element_count(shape) == arrow_type(field.format).size) return shape;
  } catch (const nlohmann::json::exception&) {
  }
  throw refused(path, "a tensor whose shape does not match its list", "cast it to its list");
}

class Leaves {
 public:
  std::vector<ArrowLeaf> found;

  // Adds the leaves of a field; returns its spec.
  SpecRef add(const ArrowField& field, const std::string& path, std::vector<size_t> structs) {
    if (field.dictionary.empty() && arrow_type(field.format).kind == ArrowKind::kStruct) {
      return add_struct(field, path, std::move(structs));
    }
    ArrowLeaf leaf;
    leaf.structs = std::move(structs);
    leaf.dictionary = !field.dictionary.empty();
    if (leaf.dictionary) leaf.index = index_of(field, path);
    set_types(leaf, leaf.dictionary ? field.dictionary[0] : field, path);
    auto spec = std::make_shared<ElementSpec>(std::vector<Leaf>{leaf.leaf});
    leaf.leaf.name = path;
    found.push_back(std::move(leaf));
    return spec;
  }

 private:
  SpecRef add_struct(const ArrowField& field, const std::string& path,
                     std::vector<size_t> structs) {
    std::vector<SpecRef> specs;
    std::vector<std::string> names;
    for (size_t i = 0; i < field.children.size(); ++i) {
      const ArrowField& child = field.children[i];
      std::vector<size_t> inner = structs;
      inner.push_back(i);
      names.push_back(child.name);
      specs.push_back(
          add(child, path.empty() ? child.name : path + "/" + child.name, std::move(inner)));
    }
    if (!specs.empty()) return combined_spec(specs, names);
    if (path.empty()) throw Error(Code::kInvalidArgument, "arrow", "there are no columns");
    throw refused(path, "a struct without fields", "give it a field");
  }

  static DType index_of(const ArrowField& field, const std::string& path) {
    const ArrowType type = arrow_type(field.format);
    if (type.kind == ArrowKind::kNumber && type.stored == type.dtype && is_integer(type.dtype) &&
        field.dictionary[0].dictionary.empty()) {
      return type.dtype;
    }
    throw refused(path, "a dictionary without integers as indices", "decode the dictionary");
  }

  static void set_types(ArrowLeaf& leaf, const ArrowField& column, const std::string& path) {
    const ArrowField* field = &column;
    std::string type;  // "a list of list of "
    for (;;) {
      ArrowType own = arrow_type(field->format);
      if (field != &column && !field->dictionary.empty()) {
        leaf.item_dictionary = true;
        leaf.index = index_of(*field, path);
        own = arrow_type(field->dictionary[0].format);
      }
      if (own.kind == ArrowKind::kRefused) throw refused(path, type + own.name, own.remedy);
      const bool list = own.kind == ArrowKind::kList || own.kind == ArrowKind::kFixedList;
      if (!list || leaf.item_dictionary) {
        leaf.value = std::move(own);
        break;
      }
      leaf.leaf.shape.push_back(own.kind == ArrowKind::kList ? -1 : own.size);
      type += own.name + " of ";
      leaf.lists.push_back(std::move(own));
      if (field->children.size() != 1) {
        throw refused(path, "a list without one type of items", "make it again");
      }
      field = &field->children[0];
    }
    if (!leaf.lists.empty() && !is_number(leaf.value)) {
      throw refused(path, type + leaf.value.name,
                    "only lists of numbers are arrays; make a row "
                    "for each item, or join the items");
    }
    if (leaf.value.kind == ArrowKind::kStruct) {
      throw refused(path, "a dictionary of structs", "decode the dictionary");
    }
    set_leaf(leaf, column, path);
  }

  static void set_leaf(ArrowLeaf& leaf, const ArrowField& column, const std::string& path) {
    Leaf& made = leaf.leaf;
    made.dtype = leaf.value.dtype;
    switch (leaf.value.kind) {
      case ArrowKind::kText:
      case ArrowKind::kTextView:
        made.kind = LeafKind::kText;
        made.shape = {-1};
        return;
      case ArrowKind::kBytes:
      case ArrowKind::kBytesView:
      case ArrowKind::kFixedBytes:
        made.kind = LeafKind::kBytes;
        made.shape = {-1};
        return;
      default:
        break;
    }
    if (made.shape.size() > ElementSpec::kMaxAxes) {
      throw refused(path, "a list of too many levels", "flatten it");
    }
    if (!made.fixed()) {
      made.kind = LeafKind::kRagged;
    } else if (made.shape.size() == 1) {
      if (Shape shape = tensor_shape(column, path); !shape.empty()) made.shape = std::move(shape);
    }
    if (made.fixed()) element_count(made.shape);  // Error: overflow
  }
};

// ---- rows --------------------------------------------------------------------------------------

bool any_null(const ArrowColumn& column, int64_t begin, int64_t end) {
  if (column.nulls == 0) return false;
  const std::byte* bits = column.buffers[0].data;
  for (int64_t i = begin; i < end; ++i) {
    if (!arrow_bit(bits, i)) return true;
  }
  return false;
}

bool is_null(const ArrowColumn& column, int64_t item) {
  return column.nulls != 0 && !arrow_bit(column.buffers[0].data, item);
}

template <class T>
T load(const std::byte* from, int64_t place = 0) {
  T value;
  std::memcpy(&value, from + place * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

int64_t offset_at(const ArrowColumn& column, bool wide, int64_t place) {
  const std::byte* offsets = column.buffers[1].data;
  return wide ? load<int64_t>(offsets, place) : load<int32_t>(offsets, place);
}

// An index into a dictionary.
int64_t index_at(const ArrowColumn& column, DType dtype, int64_t place) {
  const std::byte* from = column.buffers[1].data;
  const bool sign = is_signed(dtype);
  switch (size_of(dtype)) {
    case 1:
      return sign ? load<int8_t>(from, place) : load<uint8_t>(from, place);
    case 2:
      return sign ? load<int16_t>(from, place) : load<uint16_t>(from, place);
    case 4:
      return sign ? load<int32_t>(from, place) : load<uint32_t>(from, place);
    default:
      return load<int64_t>(from, place);  // above 2^63: below 0, so refused
  }
}

}  // namespace

std::vector<ArrowLeaf> arrow_leaves(const ArrowField& schema, SpecRef& spec) {
  Leaves leaves;
  spec = leaves.add(schema, "", {});
  return std::move(leaves.found);
}

// Reads one row.
class ArrowRows::Reading {
 public:
  Reading(const ArrowRows& rows, uint64_t shown, const Tensor* fill)
      : rows_(rows), leaf_(rows.leaf_), shown_(shown), fill_(fill) {}

  const std::byte* read(int64_t row, std::byte* to, Scratch& scratch, std::span<int64_t> dims) {
    for (const Bits& bits : rows_.nulls_) {
      if (!arrow_bit(bits.bits, bits.first + row)) return null(dims);
    }
    int64_t item = rows_.first_ + row;
    if (leaf_.dictionary) {
      item = in_dictionary(*rows_.indices_, item, *column());
      if (is_null(*column(), item)) return null(dims);
    }
    switch (leaf_.value.kind) {
      case ArrowKind::kText:
      case ArrowKind::kBytes:
        return text(string(item, dims), dims);
      case ArrowKind::kTextView:
      case ArrowKind::kBytesView:
        return text(view(item, dims), dims);
      case ArrowKind::kFixedBytes:
        dims[0] = leaf_.value.size;
        return dims[0] == 0 ? kNothing : values().buffers[1].data + item * dims[0];
      default:
        return numbers(item, to, scratch, dims);
    }
  }

 private:
  const ArrowColumn& values() const { return *rows_.values_; }
  const ArrowColumn* column() const {
    return rows_.lists_.empty() ? rows_.values_ : rows_.lists_[0];
  }

  Error error(Code code, const std::string& why) const {
    const std::string& name = leaf_.leaf.name;
    return {code, "arrow",
            (name.empty() ? "row " : "'" + name + "', row ") + std::to_string(shown_) + " " + why};
  }
  Error lost(const std::string& why) const { return error(Code::kDataLoss, why); }
  Error null_error(const std::string& what) const {
    return error(Code::kInvalidArgument, what + ": give a value for nulls, or on_error(\"skip\")");
  }

  const std::byte* null(std::span<int64_t> dims) const {
    if (fill_ == nullptr) throw null_error("is null");
    if (leaf_.leaf.fixed()) return fill_->size() == 0 ? kNothing : fill_->data();
    if (leaf_.leaf.kind == LeafKind::kRagged) {
      for (size_t axis = 0; axis < dims.size(); ++axis) {
        dims[axis] = std::max<int64_t>(leaf_.leaf.shape[axis], 0);
      }
      return kNothing;
    }
    dims[0] = fill_->size();
    return dims[0] == 0 ? kNothing : fill_->data();
  }

  // The place of an item's value in its dictionary.
  int64_t in_dictionary(const ArrowColumn& indices, int64_t item,
                        const ArrowColumn& dictionary) const {
    const int64_t index = index_at(indices, leaf_.index, item);
    if (index < 0 || index >= dictionary.length) {
      throw lost("has index " + std::to_string(index) + " into a dictionary of " +
                 std::to_string(dictionary.length) + " values");
    }
    return index + dictionary.offset;
  }

  const std::byte* string(int64_t item, std::span<int64_t> dims) const {
    const bool wide = leaf_.value.wide;
    const int64_t begin = offset_at(values(), wide, item);
    const int64_t end = offset_at(values(), wide, item + 1);
    const auto bytes = static_cast<int64_t>(values().buffers[2].bytes);
    if (begin < 0 || end < begin || end > bytes) {
      throw lost("has offsets " + std::to_string(begin) + " and " + std::to_string(end) + " into " +
                 std::to_string(bytes) + " bytes");
    }
    dims[0] = end - begin;
    return dims[0] == 0 ? kNothing : values().buffers[2].data + begin;
  }

  // A view of a string: i32 length; up to 12 bytes, or 4 bytes, i32 buffer, i32 offset.
  const std::byte* view(int64_t item, std::span<int64_t> dims) const {
    const std::byte* at = values().buffers[1].data + item * 16;
    dims[0] = load<int32_t>(at);
    if (dims[0] >= 0 && dims[0] <= 12) return at + 4;
    const int64_t buffer = load<int32_t>(at + 8), offset = load<int32_t>(at + 12);
    const auto buffers = static_cast<int64_t>(values().buffers.size()) - 3;
    if (dims[0] >= 0 && buffer >= 0 && buffer < buffers && offset >= 0) {
      const ArrowColumn::Buffer& from = values().buffers[static_cast<size_t>(buffer + 2)];
      if (offset + dims[0] <= static_cast<int64_t>(from.bytes)) return from.data + offset;
    }
    throw lost("has a view of " + std::to_string(dims[0]) + " bytes at " + std::to_string(offset) +
               " of buffer " + std::to_string(buffer) + " of " + std::to_string(buffers));
  }

  const std::byte* text(const std::byte* data, std::span<const int64_t> dims) const {
    if (leaf_.leaf.kind == LeafKind::kText &&
        !is_utf8(std::span(data, static_cast<size_t>(dims[0])))) {
      throw lost("is not UTF-8");
    }
    return data;
  }

  const std::byte* numbers(int64_t item, std::byte* to, Scratch& scratch, std::span<int64_t> dims) {
    const Range range = items_of(item, dims);
    const auto count = static_cast<uint64_t>(range.end - range.begin);
    if (count == 0) return kNothing;
    const ArrowType& type = leaf_.value;
    const bool nulls = level_nulls_ || any_null(values(), range.begin, range.end);
    if (nulls && fill_ == nullptr) throw null_error("has a null in its list");
    if (type.kind == ArrowKind::kNumber && type.stored == type.dtype && !leaf_.item_dictionary &&
        !nulls) {
      return values().buffers[1].data + range.begin * static_cast<int64_t>(size_of(type.dtype));
    }
    const size_t size = size_of(type.dtype);
    if (to == nullptr) to = scratch.take(count * size);
    for (uint64_t i = 0; i < count; ++i) {
      decode(range.begin + static_cast<int64_t>(i), i, to + i * size);
    }
    if (level_nulls_) fill_levels(item, range, to);
    return to;
  }

  // The items of a row's innermost lists, which follow each other.
  Range items_of(int64_t item, std::span<int64_t> dims) {
    Range range{item, item + 1};
    for (size_t level = 0; level < leaf_.lists.size(); ++level) {
      const ArrowColumn& column = *rows_.lists_[level];
      if (level > 0 && any_null(column, range.begin, range.end)) level_nulls_ = true;
      int64_t length = 0;
      range = inner(level, range, length);
      if (!leaf_.leaf.fixed()) dims[level] = length;
    }
    return range;
  }

  // The items of the lists in `lists`, which must be equally long. `length`: of each list.
  Range inner(size_t level, Range lists, int64_t& length) const {
    const ArrowColumn& column = *rows_.lists_[level];
    const ArrowColumn& child = column.children[0];
    const ArrowType& type = leaf_.lists[level];
    if (type.kind == ArrowKind::kFixedList) {
      length = type.size;
      return {lists.begin * length + child.offset, lists.end * length + child.offset};
    }
    if (lists.begin == lists.end) return {child.offset, child.offset};
    const int64_t begin = offset_at(column, type.wide, lists.begin);
    int64_t end = begin;
    for (int64_t i = lists.begin; i < lists.end; ++i) {
      const int64_t next = offset_at(column, type.wide, i + 1);
      if (end < 0 || next < end || next > child.length) {
        throw lost("has offsets " + std::to_string(end) + " and " + std::to_string(next) +
                   " into " + std::to_string(child.length) + " items");
      }
      if (i == lists.begin) length = next - end;
      if (next - end != length) {
        throw error(Code::kInvalidArgument,
                    "has lists of " + std::to_string(length) + " and " +
                        std::to_string(next - end) +
                        " items in one list, and an array has rows of one length: pad them");
      }
      end = next;
    }
    return {begin + child.offset, end + child.offset};
  }

  // Number `place` of the row, from an item of the innermost column.
  void decode(int64_t item, uint64_t place, std::byte* to) const {
    const ArrowType& type = leaf_.value;
    const ArrowColumn* from = &values();
    const size_t size = size_of(type.dtype);
    bool null = is_null(*from, item);
    if (leaf_.item_dictionary && !null) {
      const ArrowColumn& dictionary = from->dictionary[0];
      item = in_dictionary(*from, item, dictionary);
      from = &dictionary;
      null = is_null(*from, item);
    }
    if (null) {
      if (fill_ == nullptr) throw null_error("has a null in its list");
      std::memcpy(to, filling(place), size);
    } else if (type.kind == ArrowKind::kBool) {
      *to = std::byte{arrow_bit(from->buffers[1].data, item)};
    } else if (type.stored == type.dtype) {
      std::memcpy(to, from->buffers[1].data + item * static_cast<int64_t>(size), size);
    } else {
      const int64_t wide = load<int32_t>(from->buffers[1].data, item);
      std::memcpy(to, &wide, sizeof(wide));
    }
  }

  const std::byte* filling(uint64_t place) const {
    return leaf_.leaf.fixed() ? fill_->data() + place * size_of(leaf_.value.dtype) : fill_->data();
  }

  // Fills the items of inner lists that are null.
  void fill_levels(int64_t item, Range all, std::byte* to) const {
    const size_t size = size_of(leaf_.value.dtype);
    Range range{item, item + 1};
    for (size_t level = 0; level < leaf_.lists.size(); ++level) {
      const ArrowColumn& column = *rows_.lists_[level];
      const auto each = static_cast<uint64_t>((all.end - all.begin) / (range.end - range.begin));
      for (int64_t i = range.begin; level > 0 && i < range.end; ++i) {
        if (!is_null(column, i)) continue;
        const uint64_t first = static_cast<uint64_t>(i - range.begin) * each;
        for (uint64_t j = first; j < first + each; ++j) {
          std::memcpy(to + j * size, filling(j), size);
        }
      }
      int64_t length;
      range = inner(level, range, length);
    }
  }

  const ArrowRows& rows_;
  const ArrowLeaf& leaf_;
  const uint64_t shown_;
  const Tensor* fill_;
  bool level_nulls_ = false;
};

ArrowRows::ArrowRows(const ArrowLeaf& leaf, const ArrowColumn& chunk) : leaf_(leaf) {
  const ArrowColumn* column = &chunk;
  const auto enter = [&](const ArrowColumn& next) {
    column = &next;
    first_ += column->offset;
    if (column->nulls > 0) nulls_.push_back({column->buffers[0].data, first_});
  };
  enter(chunk);
  for (size_t child : leaf.structs) enter(column->children[child]);
  if (leaf.dictionary) {
    indices_ = column;
    column = &column->dictionary[0];
  }
  for (size_t level = 0; level < leaf.lists.size(); ++level) {
    lists_.push_back(column);
    column = &column->children[0];
  }
  values_ = column;
  find_plain();
}

void ArrowRows::find_plain() {
  const ArrowType& type = leaf_.value;
  if (!leaf_.leaf.fixed() || leaf_.dictionary || leaf_.item_dictionary || !nulls_.empty() ||
      type.kind != ArrowKind::kNumber || type.stored != type.dtype || values_->nulls > 0) {
    return;
  }
  int64_t first = first_;
  for (size_t level = 0; level < lists_.size(); ++level) {
    if (level > 0 && lists_[level]->nulls > 0) return;
    first = first * leaf_.lists[level].size + lists_[level]->children[0].offset;
  }
  if (values_->buffers[1].data == nullptr) return;
  plain_ = values_->buffers[1].data + first * static_cast<int64_t>(size_of(type.dtype));
}

const std::byte* ArrowRows::read(int64_t row, uint64_t shown, const Tensor* fill, std::byte* to,
                                 Scratch& scratch, std::span<int64_t> dims) const {
  return Reading(*this, shown, fill).read(row, to, scratch, dims);
}

}  // namespace penstock
