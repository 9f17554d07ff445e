#include <gtest/gtest.h>

#include "penstock/io/tfrecord.h"
#include "tests/cpp/errors.h"
#include "tfrecords.h"

namespace penstock {
namespace {

using testing::error_of;

struct TFRecordIndexTest : ::testing::Test, TFRecords {};

TEST_F(TFRecordIndexTest, places_follow_one_another_and_cover_the_file) {
  auto some = payloads(1000);
  some[300].resize(20'000);
  some[301].resize(300'000);  // larger than one read
  some[302].resize(65'536);
  const std::string& file = write("file", some);
  RecordIndex found = index("file");
  ASSERT_EQ(found.size(), some.size());
  uint64_t offset = 0;
  for (size_t i = 0; i < some.size(); ++i) {
    ASSERT_EQ(found.at(i), (RecordIndex::Place{offset, 16 + some[i].size(), false})) << i;
    offset += 16 + some[i].size();
  }
  EXPECT_EQ(found.file_bytes(), file.size());
}

TEST_F(TFRecordIndexTest, of_large_records_only_the_lengths_are_read) {
  write("file", std::vector<std::string>(50, std::string(100'000, 'x')));
  uint64_t bytes = 0;
  struct Counting : File {
    Counting(std::shared_ptr<File> counted, uint64_t& sum) : file(std::move(counted)), bytes(sum) {}
    const std::string& path() const override { return file->path(); }
    uint64_t size() override { return file->size(); }
    void read(std::span<const Segment> segments) override {
      for (const Segment& segment : segments) bytes += segment.bytes;
      file->read(segments);
    }
    void will_need(uint64_t, uint64_t) noexcept override {}
    std::shared_ptr<File> file;
    uint64_t& bytes;
  } file(files->open("file"), bytes);
  EXPECT_EQ(index_tfrecord(file).size(), 50u);
  EXPECT_LE(bytes, (64u << 10) + 50 * 12);
}

TEST_F(TFRecordIndexTest, a_file_that_becomes_shorter_meanwhile_is_an_error) {
  std::string& file = write("file", std::vector<std::string>(10, std::string(100'000, 'x')));
  int reads = 0;
  files->before_read("file", [&] {
    if (++reads == 3) file.resize(150'000);
  });
  const Error error = error_of([&] { index("file"); });
  EXPECT_EQ(error.code(), Code::kDataLoss);
  EXPECT_NE(std::string(error.what()).find("file"), std::string::npos);
}

TEST_F(TFRecordIndexTest, one_sees_how_far_it_is_and_can_stop_it) {
  write("file", payloads(10'000));
  auto file = files->open("file");
  Progress progress;
  index_tfrecord(*file, &progress);
  EXPECT_EQ(progress.bytes, file->size());
  files->before_read("file", [&] { progress.stop = progress.bytes > 70'000; });
  EXPECT_EQ(error_of([&] { index_tfrecord(*file, &progress); }).code(), Code::kClosed);
}

// A search through garbage finds the next record, for any ends of the pieces that are read.
TEST_F(TFRecordIndexTest, a_record_is_found_behind_any_stretch) {
  const std::string record = write("one", {std::string(100, 'r')});
  for (size_t stretch = 65'400; stretch < 65'700; ++stretch) {
    (*files)["file"] = std::string(stretch, 'g') + record + record;
    RecordIndex found = index("file");
    ASSERT_EQ(found.size(), 3u) << stretch;
    ASSERT_EQ(found.at(0), (RecordIndex::Place{0, stretch, true}));
    ASSERT_EQ(found.at(1), (RecordIndex::Place{stretch, record.size(), false}));
  }
}

TEST_F(TFRecordIndexTest, a_search_needs_the_payload_to_agree_as_well) {
  std::string record = write("one", {std::string(200'000, 'r')});
  const std::string sound = record;
  record[100'000] ^= 1;
  (*files)["file"] = "x" + record + sound;
  RecordIndex found = index("file");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found.at(0), (RecordIndex::Place{0, 1 + record.size(), true}));
  EXPECT_EQ(found.at(1), (RecordIndex::Place{1 + record.size(), sound.size(), false}));
}

}  // namespace
}  // namespace penstock
