// Any bytes as a gzip or zlib file: the output is the same for any size of requests, never exceeds
// a request, and ends with the end or an error.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cpp/io/memory_files.h"
#include "fuzz/require.h"
#include "penstock/io/compression.h"

using namespace penstock;

namespace {

constexpr size_t kEnough = 1 << 20;
constexpr std::byte kGuard{0xA5};

struct Outcome {
  std::vector<std::byte> bytes;
  std::string error;
};

Outcome inflate(MemoryFiles& files, Compression compression, size_t step) {
  Outcome outcome;
  Inflate source(files.open("file"), compression);
  std::vector<std::byte> part(step + 64);
  try {
    while (outcome.bytes.size() < kEnough) {
      std::fill(part.begin(), part.end(), kGuard);
      const size_t got = source.read(std::span(part).first(step));
      REQUIRE(got <= step);
      for (size_t i = step; i < part.size(); ++i) REQUIRE(part[i] == kGuard);
      if (got == 0) break;
      outcome.bytes.insert(outcome.bytes.end(), part.begin(),
                           part.begin() + static_cast<std::ptrdiff_t>(got));
    }
  } catch (const Error& error) {
    outcome.error = error.what();
  }
  REQUIRE(source.used() <= files["file"].size());
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFiles files;
  files["file"].assign(reinterpret_cast<const char*>(data), size);
  for (Compression compression : {Compression::kGzip, Compression::kZlib}) {
    const Outcome large = inflate(files, compression, 64 << 10);
    const Outcome small = inflate(files, compression, 333);
    if (large.bytes.size() >= kEnough) continue;
    REQUIRE(large.error.empty() == small.error.empty());
    // Before damage, the amount of output depends on the size of requests.
    if (large.error.empty()) REQUIRE(large.bytes == small.bytes);
  }
  return 0;
}
