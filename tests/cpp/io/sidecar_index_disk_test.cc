// Saved indices on real files: processes that are killed, and several at once.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/io/record_index.h"
#include "penstock/io/tfrecord.h"
#include "tests/cpp/temporary_folder.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

// Real files; the process is killed at the n-th step of writing a file.
class KilledAt : public FileSystem {
 public:
  explicit KilledAt(int step) : left_(step) {}
  std::shared_ptr<File> open(const std::string& path) override { return posix_files()->open(path); }
  std::unique_ptr<Sink> create(const std::string& path) override {
    auto sink = std::make_unique<Writing>(*this, posix_files()->create(path));
    this->step();
    return sink;
  }
  Kind kind(const std::string& path) override { return posix_files()->kind(path); }
  std::vector<std::string> list(const std::string& folder) override {
    return posix_files()->list(folder);
  }
  void step() {
    if (left_-- == 0) raise(SIGKILL);
  }

 private:
  struct Writing : Sink {
    Writing(KilledAt& world, std::unique_ptr<Sink> to) : files(world), sink(std::move(to)) {}
    void write(std::span<const std::byte> bytes) override {
      sink->write(bytes);
      files.step();
    }
    void commit() override { sink->commit(); }
    KilledAt& files;
    const std::unique_ptr<Sink> sink;
  };
  int left_;
};

class SidecarIndexDisk : public ::testing::Test {
 protected:
  SidecarIndexDisk() {
    TFRecordWriter writer(*posix_files(), path);
    const std::vector<std::byte> payload(500);
    for (size_t i = 0; i < 100'000; ++i) writer.write(std::span(payload).first(i % 500));
    writer.close();
  }

  // The number of records by the index, and whether it had to be made.
  std::pair<uint64_t, bool> through(FileSystem& files) const {
    bool made = false;
    const auto file = files.open(path);
    const RecordIndex index = load_or_build_index(files, *file, "tfrecord", 0, [&] {
      made = true;
      return index_tfrecord(*file);
    });
    return {index.size(), made};
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all = posix_files()->list(folder);
    std::sort(all.begin(), all.end());
    return all;
  }
  static int status_of(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }

  const testing::TemporaryFolder temporary;
  const fs::path folder = temporary.path();
  const std::string path = folder / "file";
  const std::string kept = path + std::string(kIndexSuffix);
};

TEST_F(SidecarIndexDisk, a_process_that_is_killed_while_it_writes_leaves_nothing) {
  if (!os::unnamed_file(folder.c_str())) GTEST_SKIP() << "here files have names from the beginning";
  // The steps: creation, three pieces of 64 KiB, the rest, the checksum.
  for (int step = 0; step < 5; ++step) {
    const pid_t child = fork();
    if (child == 0) {
      KilledAt files(step);
      through(files);
      _exit(0);
    }
    const int status = status_of(child);
    ASSERT_TRUE(WIFSIGNALED(status)) << step;
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    EXPECT_EQ(names(), std::vector<std::string>{"file"}) << step;
  }
  EXPECT_EQ(through(*posix_files()), std::pair(uint64_t{100'000}, true));
  EXPECT_EQ(through(*posix_files()), std::pair(uint64_t{100'000}, false));
  EXPECT_EQ(names().size(), 2u);
}

TEST_F(SidecarIndexDisk, several_that_write_at_once_are_all_right) {
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      bool right = true;
      for (int turn = 0; turn < 5; ++turn) {
        right = right && through(*posix_files()).first == 100'000;
        unlink(kept.c_str());  // possibly while other processes read or write their indices
      }
      _exit(right ? 0 : 1);
    }
    children.push_back(child);
  }
  for (int turn = 0; turn < 5; ++turn) EXPECT_EQ(through(*posix_files()).first, 100'000u);
  for (pid_t child : children) EXPECT_EQ(status_of(child), 0);
  through(*posix_files());
  EXPECT_EQ(through(*posix_files()), std::pair(uint64_t{100'000}, false));
  EXPECT_EQ(names(), (std::vector<std::string>{"file", fs::path(kept).filename()}));
}

TEST_F(SidecarIndexDisk, so_are_threads_of_one_process) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 3; ++turn) {
        EXPECT_EQ(through(*posix_files()).first, 100'000u);
        unlink(kept.c_str());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  through(*posix_files());
  EXPECT_EQ(through(*posix_files()), std::pair(uint64_t{100'000}, false));
  EXPECT_EQ(names().size(), 2u);
}

TEST_F(SidecarIndexDisk, where_a_folder_has_its_name_it_is_in_memory) {
  fs::create_directory(kept);
  EXPECT_EQ(through(*posix_files()), std::pair(uint64_t{100'000}, true));
  EXPECT_EQ(through(*posix_files()), std::pair(uint64_t{100'000}, true));
  EXPECT_EQ(names().size(), 2u);
  EXPECT_TRUE(fs::is_empty(kept));
}

TEST_F(SidecarIndexDisk, is_as_old_as_the_file_says) {
  through(*posix_files());
  // An index that was copied together with the file's time is valid; otherwise it is made again.
  const fs::path other = folder / "other";
  fs::create_directory(other);
  fs::copy(path, other / "file");
  fs::copy(kept, other / fs::path(kept).filename());
  fs::last_write_time(other / "file", fs::last_write_time(path));
  auto made = [&] {
    int times = 0;
    const auto file = posix_files()->open(other / "file");
    load_or_build_index(*posix_files(), *file, "tfrecord", 0, [&] {
      ++times;
      return index_tfrecord(*file);
    });
    return times > 0;
  };
  EXPECT_FALSE(made());
  fs::last_write_time(other / "file", fs::last_write_time(path) + std::chrono::seconds(1));
  EXPECT_TRUE(made());
  EXPECT_FALSE(made());
}

}  // namespace
}  // namespace penstock
