// Any bytes as the layout of another process' weights: refused, or a layout that describes itself
// in the same bytes and can be cut into shards.
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/train/layout.h"

using namespace penstock;
using namespace penstock::train;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Layout layout = Layout::from_json(text);
    const Layout again = Layout::from_json(layout.to_json());
    REQUIRE(layout == again && layout.difference(again).empty());
    REQUIRE(layout.floats() % Layout::kAlign == 0 && layout.floats() >= layout.parameters());
    size_t end = 0;
    for (const Block& block : layout.blocks()) {
      REQUIRE(block.offset >= end && block.offset % Layout::kAlign == 0);
      REQUIRE(layout.find(block.name) == &block);
      end = block.offset + block.size;
    }
    REQUIRE(end <= layout.floats());
    size_t next = 0;
    for (const Range& range : partition(layout, 1 + size % 4)) {
      REQUIRE(range.begin == next && range.size() > 0);
      next = range.end;
    }
    REQUIRE(next == layout.floats());
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kInvalidArgument);
    REQUIRE(!std::string(error.what()).empty());
  }
  return 0;
}
