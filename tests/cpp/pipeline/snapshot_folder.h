#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "penstock/base/error.h"
#include "tests/cpp/temporary_folder.h"

namespace penstock::testing {

// A folder for one test, with a file of a cache.
class SnapshotFolder : public ::testing::Test {
 protected:
  std::string path() const { return folder_ / "file"; }
  std::string read() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

// The text of an Error other than kOutOfMemory.
inline std::string refusal_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_NE(error.code(), Code::kOutOfMemory) << error.what();
    return error.what();
  }
  return "none";
}

}  // namespace penstock::testing
