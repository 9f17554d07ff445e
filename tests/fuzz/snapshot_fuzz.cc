// Any bytes as a snapshot, unchanged and with corrected checksums: an error, or elements that are
// the same when each is read again alone.
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cpp/pipeline/mended_snapshot.h"
#include "fuzz/require.h"
#include "penstock/base/os.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/api/loader.h"

using namespace penstock;

namespace {

// An element's schema and bytes.
std::string text_of(const Example& element) {
  std::string text;
  for (const auto& [name, tensor] : element) {
    text += name + "/";
    for (const int64_t n : tensor.shape()) text += std::to_string(n) + ",";
    text.append(reinterpret_cast<const char*>(tensor.data()), tensor.nbytes());
  }
  return text;
}

std::vector<std::string> read(const Dataset& dataset) {
  std::vector<std::string> all;
  Loader feed = dataset.build({.workers = 0});
  for (auto& element : feed.epoch()) all.push_back(text_of(element));
  return all;
}

void try_out(const std::string& file) {
  const os::Fd fd = os::memory_file("penstock-fuzz");
  REQUIRE(::pwrite(fd.get(), file.data(), file.size(), 0) == static_cast<ssize_t>(file.size()));
  try {
    const Dataset dataset = Dataset::snapshot("/proc/self/fd/" + std::to_string(fd.get()));
    std::vector<std::string> all = read(dataset);
    REQUIRE(all.size() <= file.size() / sizeof(uint64_t));
    if (all.empty()) return;
    REQUIRE(read(dataset.skip(all.size() - 1)) == std::vector{all.back()});
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kDataLoss || error.code() == Code::kInvalidArgument);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string file(reinterpret_cast<const char*>(data), size);
  try_out(file);
  testing::mend_snapshot(file);
  try_out(file);
  return 0;
}
