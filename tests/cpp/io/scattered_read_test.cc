// Records of real files in random order: read by one system call, with every check, also while the
// files are truncated.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "penstock/io/record_reader.h"
#include "tests/cpp/temporary_folder.h"
#include "tfrecords.h"

namespace penstock {
namespace {

class ScatteredReads : public ::testing::Test {
 protected:
  static constexpr size_t kFiles = 3, kEach = 2000, kAll = kFiles * kEach;

  ScatteredReads() {
    for (size_t file = 0; file < kFiles; ++file) {
      paths.push_back(folder + "/" + std::to_string(file));
      TFRecordWriter writer(*posix_files(), paths.back());
      for (size_t i = 0; i < kEach; ++i) {
        const std::string payload = payload_of(file * kEach + i);
        writer.write(std::as_bytes(std::span(payload)));
      }
      writer.close();
    }
    files = index_files(std::make_shared<FilePool>(posix_files()), paths, 1,
                        [](const std::shared_ptr<File>& file) { return index_tfrecord(*file); });
  }

  static std::string payload_of(size_t i) {
    std::string payload(300 + i * 7919 % 600, '\0');
    for (size_t b = 0; b < payload.size(); ++b) payload[b] = static_cast<char>(i * 31 + b);
    return payload;
  }

  static std::vector<uint64_t> in_no_order(uint32_t seed) {
    std::vector<uint64_t> order(kAll);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    return order;
  }

  // Every record has its content, except those for which `lost` is true.
  void expect(const std::function<bool(uint64_t)>& lost, uint32_t seed) {
    TFRecordReader reader(files);
    const std::vector<uint64_t> order = in_no_order(seed);
    for (size_t i = 0; i < kAll; i += 64) {
      auto some = std::span(order).subspan(i, std::min<size_t>(64, kAll - i));
      reader.read(some);
      std::vector<bool> failed(some.size());
      for (const auto& failure : reader.failures()) {
        failed[failure.row] = true;
        texts.push_back(failure.error.what());
        ASSERT_EQ(failure.error.code(), Code::kDataLoss);
      }
      for (size_t row = 0; row < some.size(); ++row) {
        ASSERT_EQ(failed[row], lost(some[row])) << some[row];
        if (failed[row]) continue;
        auto payload = reader.payload(row);
        ASSERT_EQ(std::string_view(reinterpret_cast<const char*>(payload.data()), payload.size()),
                  payload_of(some[row]));
      }
    }
  }

  const testing::TemporaryFolder temporary;
  const std::string folder = temporary.path();
  std::vector<std::string> paths, texts;
  std::shared_ptr<const RecordFiles> files;
};

TEST_F(ScatteredReads, give_what_is_in_the_files) {
  ASSERT_NE(posix_files()->open(paths[0])->mapping().data, nullptr);
  expect([](uint64_t) { return false; }, 1);
}

TEST_F(ScatteredReads, of_a_file_that_becomes_shorter_lose_what_it_lacks) {
  expect([](uint64_t) { return false; }, 2);  // it is mapped, and its pages are there
  for (uint64_t left : {1999, 1500, 3, 0}) {
    // In the middle of a record, so that zeroes follow in its page.
    const uint64_t end = files->index(1).at(left).offset + (left == 0 ? 0 : 200);
    std::filesystem::resize_file(paths[1], end);
    texts.clear();
    expect([&](uint64_t record) { return record / kEach == 1 && record % kEach >= left; }, 3);
    ASSERT_EQ(texts.size(), kEach - left);
    for (const std::string& text : texts) {
      ASSERT_NE(text.find("it has become shorter"), text.npos) << text;
    }
  }
}

TEST_F(ScatteredReads, check_both_checksums) {
  std::fstream file(paths[2], std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](uint64_t record, uint64_t byte) {
    file.seekp(static_cast<std::streamoff>(files->index(2).at(record).offset + byte));
    file.put('\x01').flush();
  };
  put(10, 3);
  put(20, 9);
  put(30, 77);
  put(40, files->index(2).at(40).bytes - 1);
  expect(
      [](uint64_t record) {
        const uint64_t in_file = record % kEach;
        return record / kEach == 2 && in_file <= 40 && in_file >= 10 && in_file % 10 == 0;
      },
      4);
  EXPECT_EQ(texts.size(), 4u);
}

TEST_F(ScatteredReads, are_a_forks_own) {
  ScatteredRead scattered;
  auto file = posix_files()->open(paths[0]);
  const File::Mapping mapping = file->mapping();
  std::vector<std::byte> here(1000), there(1000);
  ASSERT_TRUE(scattered.copy({{{mapping.data, here.data(), 1000}}}));
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < 1000; ++i) {
      if (!scattered.copy({{{mapping.data + 5000, there.data(), 1000}}})) _exit(1);
    }
    _exit(0);
  }
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(scattered.copy({{{mapping.data, there.data(), 1000}}}));
    ASSERT_EQ(here, there);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(ScatteredReads, beyond_the_end_of_a_file_are_refused) {
  ScatteredRead scattered;
  auto file = posix_files()->open(paths[0]);
  const File::Mapping mapping = file->mapping();
  std::filesystem::resize_file(paths[0], 4096);
  std::vector<std::byte> to(1000);
  EXPECT_TRUE(scattered.copy({{{mapping.data, to.data(), 1000}}}));
  EXPECT_FALSE(scattered.copy({{{mapping.data + 100'000, to.data(), 1000}}}));
  EXPECT_FALSE(scattered.copy(
      {{{mapping.data, to.data(), 500}, {mapping.data + 100'000, to.data() + 500, 500}}}));
}

}  // namespace
}  // namespace penstock
