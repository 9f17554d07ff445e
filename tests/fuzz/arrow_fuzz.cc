// Any bytes as Arrow data: validity, offsets, views and indices that lie. The call refuses the
// data, or each row is a value or lost alone; and is the same when it is read again alone. The
// interface has no sizes of buffers, so that buffers are as long as their last offset says is not
// varied.
//
//   bytes  0: type   1: rows   2: offset   3: null count   4: items of a child   then 2 bytes for
//          the length of each buffer that is not the last one, and the buffers
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cpp/io/arrow_arrays.h"
#include "fuzz/input.h"
#include "fuzz/require.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/api/loader.h"

using namespace penstock;
using penstock::testing::ArrowColumnData;
using penstock::testing::ArrowMaker;

namespace {

constexpr std::array kFormats{"i",  "g",  "b",    "u",  "z",   "U",   "Z",   "vu",
                              "vz", "+l", "+w:3", "+L", "w:3", "tdD", "dict"};

// `least`: filled up with zeros, because the interface promises so many.
std::string piece(Input& in, size_t least) {
  const size_t low = in.byte(), count = low | static_cast<size_t>(in.byte()) << 8;
  return in.take<std::string>(std::max(std::min(count, in.left()), least));
}
std::string rest(Input& in, size_t least) {
  return in.take<std::string>(std::max(in.left(), least));
}

// The interface promises as many bytes of values as the last offset says.
template <class T>
void cut_last_offset(std::string& offsets, size_t end, size_t most) {
  T last;
  char* const at = offsets.data() + end * sizeof(T);
  std::memcpy(&last, at, sizeof(T));
  last = std::min(last, static_cast<T>(most));
  std::memcpy(at, &last, sizeof(T));
}

ArrowColumnData column_of(Input& in) {
  ArrowColumnData column;
  column.format = kFormats[in.byte() % kFormats.size()];
  column.name = "x";
  column.length = in.byte() % 33;
  column.offset = in.byte() % 8;
  column.nulls = static_cast<int8_t>(in.byte());
  const auto items = static_cast<size_t>(in.byte() % 100);
  const auto end = static_cast<size_t>(column.length + column.offset);
  const std::string format = column.format;
  std::string bits = piece(in, column.nulls < 0 ? 0 : end / 8 + 1);
  if (!bits.empty()) bits.resize(std::max(bits.size(), end / 8 + 1));
  column.buffers.push_back(bits);
  const bool wide = format == "U" || format == "Z" || format == "+L";
  const size_t offset_bytes = wide ? 8 : 4;
  auto offsets = [&] { return piece(in, (end + 1) * offset_bytes); };
  auto cut = [&](std::string& ends, size_t most) {
    if (wide) return cut_last_offset<int64_t>(ends, end, most);
    cut_last_offset<int32_t>(ends, end, most);
  };
  if (format == "u" || format == "z" || format == "U" || format == "Z") {
    std::string ends = offsets(), values = rest(in, 1);
    cut(ends, values.size());
    column.buffers.push_back(std::move(ends));
    column.buffers.push_back(std::move(values));
  } else if (format == "vu" || format == "vz") {
    std::string views = piece(in, end * 16), values = rest(in, 1);
    const auto bytes = static_cast<int64_t>(values.size());
    column.buffers.push_back(std::move(views));
    column.buffers.push_back(std::move(values));
    column.buffers.push_back(testing::raw_bytes(std::vector<int64_t>{bytes}));
  } else if (format == "+l" || format == "+L" || format == "+w:3") {
    if (format != "+w:3") column.buffers.push_back(offsets());
    ArrowColumnData child{"s", "item", {"", rest(in, items * 2 + 2)}, static_cast<int64_t>(items)};
    column.children.push_back(std::move(child));
  } else if (format == "dict") {
    column.format = "c";
    column.buffers.push_back(piece(in, end + 1));
    ArrowColumnData words = testing::strings_column("", {0, 1, 3, 3}, "abc");
    words.length = static_cast<int64_t>(items % 4);
    column.dictionary.push_back(std::move(words));
  } else {
    column.buffers.push_back(rest(in, end * 8 + 8));
  }
  return column;
}

std::string text_of(const Example& element) {
  std::string text;
  for (const auto& [name, tensor] : element) {
    text += name + "/";
    for (const int64_t n : tensor.shape()) text += std::to_string(n) + ",";
    text.append(reinterpret_cast<const char*>(tensor.data()), tensor.nbytes());
  }
  return text;
}

// The rows, and "lost" for each that is lost.
std::vector<std::string> rows_of(const Dataset& dataset, uint64_t rows) {
  std::vector<std::string> all;
  for (uint64_t i = 0; i < rows; ++i) {
    try {
      Loader feed = dataset.skip(i).take(1).build({.workers = 0});
      for (auto& element : feed.epoch()) all.push_back(text_of(element));
    } catch (const Error& error) {
      REQUIRE(error.code() == Code::kDataLoss || error.code() == Code::kInvalidArgument);
      all.emplace_back("lost");
    }
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  ArrowColumnData column = column_of(in);
  const auto rows = static_cast<uint64_t>(column.length);
  ArrowColumnData table = testing::struct_of({std::move(column)});
  ArrowMaker maker;
  {
    ArrowArrayStream stream = maker.stream({std::move(table)});
    try {
      const Dataset dataset = Dataset::arrow(&stream);
      std::vector<std::string> kept = rows_of(dataset, rows);
      REQUIRE(kept.size() == rows);
      std::erase(kept, "lost");
      std::vector<std::string> together;
      Loader feed = dataset.on_error(OnError::kSkip).build({.workers = 0});
      for (auto& element : feed.epoch()) together.push_back(text_of(element));
      REQUIRE(together == kept);
    } catch (const Error& error) {
      REQUIRE(error.code() == Code::kDataLoss || error.code() == Code::kInvalidArgument);
    }
  }
  REQUIRE(maker.arrays + maker.schemas + maker.streams == 0);
  return 0;
}
