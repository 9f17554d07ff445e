#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/online/message_log.h"
#include "tests/cpp/temporary_folder.h"

namespace penstock::testing {

// A folder for the spool of one test.
class SpoolFolder : public ::testing::Test {
 protected:
  online::LogOptions options() const { return {.folder = folder_}; }
  std::string file(uint64_t first) const {
    const std::string digits = std::to_string(first);
    return folder_ + "/" + std::string(20 - digits.size(), '0') + digits + ".log";
  }
  std::vector<std::string> files() const {
    std::vector<std::string> all;
    for (const auto& each : std::filesystem::directory_iterator(folder_)) {
      if (each.path().extension() == ".log") all.push_back(each.path());
    }
    std::ranges::sort(all);
    return all;
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

inline std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void set_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Changes a bit of the byte at this place; a second call changes it back.
inline void flip(const std::string& path, uint64_t place) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(place));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(place));
  file.put(static_cast<char>(byte ^ 0x20));
}

// The views of the message are of these strings.
inline online::Message message_of(std::string_view topic, std::string_view payload,
                                  uint64_t token = 0, uint16_t id = 0, bool duplicate = false) {
  return {topic, std::as_bytes(std::span(payload)), now_ns(), token, id, duplicate};
}

// Tokens that were acknowledged, by any thread.
class Acknowledged {
 public:
  void add(std::span<const uint64_t> tokens) {
    std::lock_guard lock(mutex_);
    all_.insert(all_.end(), tokens.begin(), tokens.end());
    changed_.notify_all();
  }
  std::vector<uint64_t> all() const {
    std::lock_guard lock(mutex_);
    return all_;
  }
  size_t count() const { return all().size(); }
  bool wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return all_.size() >= count; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> all_;
};

// The code and the text of the Error that `work` throws.
struct Thrown {
  std::optional<Code> code;
  std::string text = "nothing was thrown";
};
inline Thrown thrown_by(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}

// While it lives, files of this process cannot grow beyond this size, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(uint64_t bytes) : handler_(std::signal(SIGXFSZ, SIG_DFL)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit small = before_;
    small.rlim_cur = bytes;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

}  // namespace penstock::testing
