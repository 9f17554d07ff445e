#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "penstock/base/error.h"

namespace penstock::testing {

// A folder for one test, with a file of a cache.
class SnapshotFolder : public ::testing::Test {
 protected:
  SnapshotFolder() {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("snapshot" + std::to_string(getpid()) + "-" +
               std::to_string(reinterpret_cast<uintptr_t>(this)));
    std::filesystem::create_directory(folder_);
  }
  ~SnapshotFolder() override { std::filesystem::remove_all(folder_); }

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

  std::filesystem::path folder_;
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
