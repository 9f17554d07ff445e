#include "penstock/io/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "penstock/base/error.h"
#include "tests/cpp/errors.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/temporary_folder.h"

namespace penstock {
namespace {

using testing::code_of;

namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    bytes.resize(100'000);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + (i >> 8));
    std::ofstream(path, std::ios::binary) << bytes;
  }

  static std::string read(File& file, uint64_t offset, uint64_t count) {
    std::string text(count, '?');
    const File::Segment segment{offset, reinterpret_cast<std::byte*>(text.data()), count};
    file.read({&segment, 1});
    return text;
  }

  const testing::TemporaryFolder temporary;
  const fs::path folder = temporary.path();
  const std::string path = folder / "file";
  std::string bytes;
  std::shared_ptr<FileSystem> files = posix_files();
};

TEST_F(FileTest, segments_come_as_they_lie_whatever_their_order_and_gaps) {
  auto file = files->open(path);
  EXPECT_EQ(file->size(), bytes.size());
  EXPECT_EQ(file->path(), path);
  std::string to(70'000, '?');
  auto* data = reinterpret_cast<std::byte*>(to.data());
  // Adjacent segments, small and large gaps, an overlap, a step back, an empty segment.
  const std::vector<File::Segment> segments = {
      {0, data, 100},          {100, data + 100, 50},       {150, data + 1000, 7},
      {160, data + 2000, 10},  {4000, data + 3000, 1},      {8097, data + 3001, 99},
      {8196, data + 3200, 0},  {20'000, data + 4000, 9000}, {99'999, data + 20'000, 1},
      {500, data + 30'000, 5}, {502, data + 31'000, 5},     {40'000, data + 40'000, 30'000}};
  file->read(segments);
  for (const File::Segment& segment : segments) {
    EXPECT_EQ(to.substr(static_cast<size_t>(segment.to - data), segment.bytes),
              bytes.substr(segment.offset, segment.bytes))
        << segment.offset;
  }
}

TEST_F(FileTest, more_segments_than_one_system_call_takes) {
  auto file = files->open(path);
  std::string to(1000, '?');
  std::vector<File::Segment> segments;
  for (size_t i = 0; i < to.size(); ++i) {
    segments.push_back({i * 99, reinterpret_cast<std::byte*>(&to[to.size() - 1 - i]), 1});
  }
  file->read(segments);
  for (size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[to.size() - 1 - i], bytes[i * 99]) << i;
}

TEST_F(FileTest, a_file_that_became_shorter_is_an_error) {
  auto file = files->open(path);
  fs::resize_file(path, 5000);
  EXPECT_EQ(file->size(), 5000u);
  EXPECT_EQ(read(*file, 4990, 10), bytes.substr(4990, 10));
  EXPECT_EQ(code_of([&] { read(*file, 4991, 10); }), Code::kDataLoss);
  EXPECT_EQ(code_of([&] { read(*file, 9000, 10); }), Code::kDataLoss);
}

TEST_F(FileTest, a_file_that_was_removed_can_be_read_by_who_has_it_open) {
  auto file = files->open(path);
  fs::remove(path);
  file->will_need(0, 100);
  EXPECT_EQ(read(*file, 10, 10), bytes.substr(10, 10));
  EXPECT_EQ(code_of([&] { files->open(path); }), Code::kNotFound);
}

TEST_F(FileTest, what_is_no_file_is_an_error) {
  EXPECT_EQ(code_of([&] { files->open(folder / "nothing"); }), Code::kNotFound);
  EXPECT_EQ(code_of([&] { files->open(path + "/below"); }), Code::kNotFound);
  EXPECT_EQ(code_of([&] { files->open(folder); }), Code::kInvalidArgument);
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(code_of([&] { files->open(pipe); }), Code::kInvalidArgument);
  EXPECT_EQ(files->kind(folder), FileSystem::Kind::kFolder);
  EXPECT_EQ(files->kind(path), FileSystem::Kind::kFile);
  EXPECT_EQ(files->kind(path + "x"), FileSystem::Kind::kNothing);
}

TEST_F(FileTest, a_file_appears_when_it_is_complete) {
  const std::string made = folder / "made";
  auto sink = files->create(made);
  sink->write(std::as_bytes(std::span(bytes)));
  EXPECT_FALSE(fs::exists(made));
  sink->write(std::as_bytes(std::span(bytes).first(3)));
  sink->commit();
  sink.reset();
  auto file = files->open(made);
  EXPECT_EQ(read(*file, 0, file->size()), bytes + bytes.substr(0, 3));
  EXPECT_EQ(files->list(folder).size(), 2u);
}

TEST_F(FileTest, what_a_link_leads_to_is_replaced_and_the_link_stays) {
  const std::string link = folder / "link", dangling = folder / "dangling";
  fs::create_symlink("file", link);
  fs::create_symlink("link", folder / "link to link");
  fs::create_symlink("new", dangling);
  const std::pair<std::string, std::string> cases[] = {
      {link, "file"}, {folder / "link to link", "file"}, {dangling, "new"}};
  for (const auto& [name, target] : cases) {
    auto sink = files->create(name);
    sink->write(std::as_bytes(std::span(name)));
    sink->commit();
    EXPECT_TRUE(fs::is_symlink(name));
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder / target)));
    auto file = files->open(folder / target);
    EXPECT_EQ(read(*file, 0, file->size()), name);
  }
  fs::create_symlink("round", folder / "round");
  EXPECT_EQ(code_of([&] { files->create(folder / "round"); }), Code::kSystem);
}

TEST_F(FileTest, devices_and_pipes_are_written_to) {
  auto nowhere = files->create("/dev/null");
  nowhere->write(std::as_bytes(std::span(bytes)));
  nowhere->commit();
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(code_of([&] { files->create(pipe); }), Code::kSystem) << "nobody reads it";
  const os::Fd reads(open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  auto sink = files->create(pipe);
  sink->write(std::as_bytes(std::span(bytes).first(1000)));  // less than the capacity of a pipe
  sink->commit();
  std::string seen(bytes.size() + 1, '\0');
  EXPECT_EQ(::read(reads.get(), seen.data(), seen.size()), 1000);
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_EQ(code_of([&] { files->create(folder); }), Code::kInvalidArgument);
}

TEST_F(FileTest, the_limit_on_file_size_is_an_error_and_no_signal) {
  EXPECT_TRUE(testing::holds_in_child([&] {
    signal(SIGXFSZ, SIG_DFL);
    rlimit limit{1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    auto sink = files->create(folder / "made");
    return code_of([&] { sink->write(std::as_bytes(std::span(bytes))); }) == Code::kSystem;
  }));
}

TEST_F(FileTest, what_was_not_committed_leaves_nothing_and_the_old_file_as_it_was) {
  auto sink = files->create(path);
  sink->write(std::as_bytes(std::span(bytes).first(10)));
  sink.reset();
  EXPECT_EQ(fs::file_size(path), bytes.size());
  EXPECT_EQ(files->list(folder), (std::vector<std::string>{"file"}));
  EXPECT_EQ(code_of([&] { files->create(folder / "none" / "x"); }), Code::kNotFound);
}

}  // namespace
}  // namespace penstock
