#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "penstock/base/clock.h"
#include "penstock/io/tfrecord.h"
#include "tfrecords.h"

namespace penstock {
namespace {

struct TFRecordReaderTest : ::testing::Test, TFRecords {
  std::string text(size_t row) {
    auto payload = reader->payload(row);
    return {reinterpret_cast<const char*>(payload.data()), payload.size()};
  }
  void open_reader(const std::vector<std::string>& paths) {
    opened = open(paths);
    reader = std::make_unique<TFRecordReader>(opened);
  }
  std::shared_ptr<const RecordFiles> opened;
  std::unique_ptr<TFRecordReader> reader;
};

TEST_F(TFRecordReaderTest, records_of_many_files_are_one_range) {
  std::vector<std::string> paths, all;
  for (size_t i = 0; i < 100; ++i) {  // some are empty, also the first and the last
    auto some = payloads(i % 10 == 0 || i == 99 ? 0 : i, i);
    paths.push_back("file-" + std::to_string(i));
    write(paths.back(), some);
    all.insert(all.end(), some.begin(), some.end());
  }
  open_reader(paths);
  EXPECT_EQ(opened->size(), all.size());
  EXPECT_EQ(read_all(opened).payloads, all);
  std::vector<uint64_t> records;
  for (uint64_t i = 0; i < 1000; ++i) {  // in random order, some twice
    records.push_back(i * i * 7919 % all.size());
    if (records.size() < 64) continue;
    reader->read(records);
    EXPECT_TRUE(reader->failures().empty());
    for (size_t row = 0; row < 64; ++row) ASSERT_EQ(text(row), all[records[row]]);
    records.clear();
  }
  reader->read({});
}

TEST_F(TFRecordReaderTest, neighbours_are_read_together) {
  auto some = payloads(200);
  write("file", some);
  open_reader({"file"});
  std::vector<uint64_t> records(64);
  std::iota(records.rbegin(), records.rend(), 100);  // in any order
  files->reads = 0;
  reader->read(records);
  EXPECT_EQ(files->reads, 1);
  for (size_t row = 0; row < 64; ++row) EXPECT_EQ(text(row), some[records[row]]);
}

TEST_F(TFRecordReaderTest, a_disk_that_takes_its_time_hears_what_is_wanted_next) {
  write("file", std::vector<std::string>(2000, std::string(8000, 'x')));
  open_reader({"file"});
  std::vector<uint64_t> far(64), near(64);
  for (uint64_t i = 0; i < 64; ++i) far[i] = i * 7919 % 2000;
  std::iota(near.begin(), near.end(), 100);
  files->before_read("file", [] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); });
  reader->read(far);
  const int before = files->expected;
  reader->read(far);
  EXPECT_EQ(files->expected - before, 64);
  reader->read(near);  // one contiguous range, in which the system reads ahead
  EXPECT_EQ(files->expected - before, 64);
  reader->read(far);
  EXPECT_EQ(files->expected - before, 128);
#ifndef PENSTOCK_SANITIZED  // there a copy takes as long as a disk
  // It stops when reads are fast again.
  files->before_read("file", {});
  const uint64_t until = now_ns() + 60'000'000'000;
  for (int last = -1; last != files->expected && now_ns() < until;) {
    last = files->expected;
    reader->read(far);
  }
  const int settled = files->expected;
  EXPECT_LT(now_ns(), until);
  for (size_t row = 0; row < 64; ++row) ASSERT_EQ(text(row), std::string(8000, 'x'));
  EXPECT_GE(settled, before + 128);
#endif
}

TEST_F(TFRecordReaderTest, nothing_is_left_of_a_file_without_records) {
  write("file", {});
  open_reader({"file", "file"});
  EXPECT_EQ(opened->size(), 0u);
  EXPECT_TRUE(read_all(opened).payloads.empty());
}

TEST_F(TFRecordReaderTest, a_file_that_became_shorter_costs_what_it_lacks) {
  auto some = payloads(60);
  std::string& file = write("file", some);
  open_reader({"file"});
  const uint64_t cut = opened->index(0).at(40).offset + 3;
  file.resize(cut);
  Gained gained = read_all(opened);
  EXPECT_EQ(gained.payloads, std::vector(some.begin(), some.begin() + 40));
  EXPECT_EQ(gained.lost_records, 20u);
  EXPECT_NE(gained.errors[0].find("file, record 40 at byte"), std::string::npos);
}

TEST_F(TFRecordReaderTest, a_file_that_vanished_costs_its_records_and_no_others) {
  write("a", {"a"});
  write("b", {"b", "bb"});
  write("c", {"c"});
  open_reader({"a", "b", "c"});
  files->remove("b");
  reader->read(std::vector<uint64_t>{3, 2, 1, 0});
  ASSERT_EQ(reader->failures().size(), 2u);
  for (const auto& failure : reader->failures()) EXPECT_EQ(failure.error.code(), Code::kNotFound);
  EXPECT_EQ(text(0) + text(3), "ca");
  EXPECT_EQ(text(1) + text(2), "");
}

TEST_F(TFRecordReaderTest, an_error_of_the_disk_is_that_of_its_records) {
  write("a", {"a", "aa"});
  write("b", {"b"});
  open_reader({"a", "b"});
  files->before_read("a", [] { throw Error(Code::kSystem, "read", "it burns"); });
  reader->read(std::vector<uint64_t>{0, 1, 2});
  ASSERT_EQ(reader->failures().size(), 2u);
  for (const auto& failure : reader->failures()) {
    EXPECT_EQ(failure.error.code(), Code::kSystem);
    EXPECT_NE(std::string(failure.error.what()).find("it burns"), std::string::npos);
  }
  EXPECT_EQ(text(2), "b");
  files->before_read("a", {});
  reader->read(std::vector<uint64_t>{0, 1, 2});
  EXPECT_TRUE(reader->failures().empty());
  EXPECT_EQ(text(1), "aa");
}

TEST_F(TFRecordReaderTest, a_file_that_was_replaced_is_noticed) {
  write("file", {"one", "two", "three"});
  open_reader({"file"});
  std::string other = write("other", {"seventeen bytes..", "2", "and so on and so on"});
  (*files)["file"] = other;
  Gained gained = read_all(opened);
  EXPECT_TRUE(gained.payloads.empty());
  EXPECT_EQ(gained.lost_records, 3u);
}

TEST_F(TFRecordReaderTest, as_many_indices_as_files) {
  EXPECT_THROW(RecordFiles(pool, {"a"}, {}), Error);
}

}  // namespace
}  // namespace penstock
