#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/io/arrow_abi.h"
#include "penstock/memory/dtype.h"

namespace penstock {

// How the values of an Arrow type lie in memory.
enum class ArrowKind : uint8_t {
  kNumber,
  kBool,  // bits
  kText,
  kBytes,
  kTextView,
  kBytesView,
  kFixedBytes,
  kList,
  kFixedList,
  kStruct,
  kRefused,  // elements cannot have this type
};

struct ArrowType {
  ArrowKind kind = ArrowKind::kRefused;
  // kNumber: the dtype in memory, and the dtype of elements. They differ for dates and times of 32
  // bits, which become int64.
  DType stored = DType::kUint8, dtype = DType::kUint8;
  bool wide = false;        // kText, kBytes, kList: offsets have 64 bits
  int64_t size = 0;         // kFixedList: items of a list; kFixedBytes: bytes
  std::string name = {};    // "decimal", "list", for messages
  std::string remedy = {};  // kRefused: what the user can do
};

// The type of a format string, such as "i" or "+w:3". Unknown types are kRefused. Error
// kInvalidArgument: a length that is no number.
ArrowType arrow_type(std::string_view format);

// A column's schema. Dictionary-encoded columns have the type of their indices, and `dictionary` is
// the schema of the values.
struct ArrowField {
  std::string name;
  std::string format;
  std::string extension, extension_data;  // the extension type's name and parameters; mostly empty
  std::vector<ArrowField> children;
  std::vector<ArrowField> dictionary;  // none or one
};

// One array of a column. Item i of the array is item offset + i of its buffers. The buffers belong
// to the table's owners.
struct ArrowColumn {
  struct Buffer {
    const std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  int64_t length = 0;
  int64_t offset = 0;
  int64_t nulls = 0;  // counted, where the producer did not; 0: buffers[0] need not be read
  // The order is Arrow's: validity bits, then offsets and values. The interface has no sizes;
  // `bytes` is the size that length, offset and the last offset require.
  std::vector<Buffer> buffers;
  std::vector<ArrowColumn> children, dictionary;  // as in the field
};

// Columns that another library made, in memory that it owns: a schema, and chunks of rows. A chunk
// is a struct of columns, or one column if the schema is no struct. Immutable after import: any
// thread. The last owner calls the library's release functions, once each.
struct ArrowTable {
  ArrowField schema;
  std::vector<ArrowColumn> chunks;
  std::vector<std::shared_ptr<void>> owners;
  bool is_struct() const { return schema.format == "+s"; }
  uint64_t rows() const;
  uint64_t bytes() const;  // of all buffers; one that is used twice counts twice
};

// Import takes over the structs and releases them, also after an error. `columns`: the columns to
// keep, in this order; "a/b" is the field b of the struct a; empty: all. `accept` sees the chosen
// schema before any data is read, and may throw.
//
// What is checked: numbers of children and buffers, lengths, missing buffers, first and last
// offsets, the lengths of children. Single offsets are checked when a row is read (see
// nodes::arrow), so that a wrong one costs one row. Sizes of buffers are not part of the interface
// and cannot be checked.
//
// Errors: kInvalidArgument (no such column, a struct that is released already), kDataLoss (an array
// contradicts its schema or itself; the stream failed: the text quotes its message), kOutOfMemory.
using ArrowAccept = std::function<void(const ArrowField&)>;
ArrowTable import_arrow(ArrowArrayStream* stream, const std::vector<std::string>& columns = {},
                        const ArrowAccept& accept = nullptr);
// One array and its schema.
ArrowTable import_arrow(ArrowSchema* schema, ArrowArray* array,
                        const std::vector<std::string>& columns = {},
                        const ArrowAccept& accept = nullptr);

// Whether bit `place` is set: the item is not null, or the bool is true.
inline bool arrow_bit(const std::byte* bits, int64_t place) {
  return (std::to_integer<unsigned>(bits[place >> 3]) >> (place & 7) & 1) != 0;
}

// For readers of Arrow data:

// Far above any memory, far below overflow.
inline constexpr int64_t kMaxArrowItems = int64_t{1} << 48;

// Checks an array against its schema as import does, and fills in nulls and sizes of buffers.
// `name`: of the column in errors. Error kDataLoss.
void check_arrow(const ArrowField& field, ArrowColumn& column, const std::string& name);

// Error kDataLoss: an array contradicts its schema or itself. `why` follows its name.
inline Error arrow_contradiction(const std::string& name, const std::string& why) {
  return {Code::kDataLoss, "arrow", (name.empty() ? "the array " : "'" + name + "' ") + why};
}

}  // namespace penstock
