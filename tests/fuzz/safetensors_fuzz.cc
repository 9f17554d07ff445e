// Any bytes as a safetensors file: an error, or arrays that cover its data without gaps. Each array
// can be read, or is an error because of its dtype.
#include <cstdint>
#include <vector>

#include "cpp/io/memory_files.h"
#include "fuzz/require.h"
#include "penstock/train/safetensors.h"

using namespace penstock;
using namespace penstock::train;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFiles files;
  files["file"].assign(reinterpret_cast<const char*>(data), size);
  try {
    const SafetensorsReader reader(files.open("file"));
    uint64_t bytes = 0;
    for (const StoredArray& array : reader.arrays()) {
      REQUIRE(array.offset + array.bytes <= size);
      REQUIRE(reader.find(array.name) == &array);
      REQUIRE(static_cast<uint64_t>(element_count(array.shape)) * size_of(array.dtype) ==
              array.bytes);
      bytes += array.bytes;
      std::vector<float> values(array.bytes / size_of(array.dtype));
      try {
        reader.read(array, values);
      } catch (const Error& error) {
        REQUIRE(error.code() == Code::kInvalidArgument);
      }
    }
    if (!reader.arrays().empty()) REQUIRE(reader.arrays().front().offset + bytes == size);
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kDataLoss);
  }
  return 0;
}
