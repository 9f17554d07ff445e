#include "penstock/io/survey.h"

#include <gtest/gtest.h>

#include "tfrecords.h"

namespace penstock {
namespace {

struct TFRecordSurveyTest : ::testing::Test, TFRecords {
  FileSurvey survey(Progress* progress = nullptr) {
    visited.clear();
    return survey_tfrecord(
        files, "file",
        [this](std::span<const std::byte> payload) {
          visited.emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
        },
        progress);
  }
  void progress_stops() {
    Progress progress;
    progress.stop = true;
    try {
      survey(&progress);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kClosed);
    }
  }
  std::vector<std::string> visited;
};

TEST_F(TFRecordSurveyTest, every_record_is_visited_and_counted) {
  std::vector<std::string> some = payloads(1000);
  some.emplace_back(3 << 20, 'x');  // more than one read
  some.emplace_back("");
  const std::string& file = write("file", some);
  Progress progress;
  const FileSurvey found = survey(&progress);
  EXPECT_EQ(visited, some);
  uint64_t bytes = 0;
  for (const std::string& payload : some) bytes += payload.size();
  EXPECT_EQ(found.records, 1002u);
  EXPECT_EQ(found.payload_bytes, bytes);
  EXPECT_EQ(found.file_bytes, file.size());
  EXPECT_EQ(found.smallest, 0u);
  EXPECT_EQ(found.largest, uint64_t{3} << 20);
  EXPECT_EQ(found.lost_places, 0u);
  EXPECT_EQ(progress.bytes, 2 * file.size());
}

TEST_F(TFRecordSurveyTest, damage_is_listed_with_its_place_and_all_else_is_visited) {
  std::vector<std::string> some(100, std::string(84, 'x'));  // 100 bytes each, with their frames
  std::string& file = write("file", some);
  file[750] ^= 1;   // a payload
  file[2000] ^= 1;  // a length
  file.resize(file.size() - 1);
  const FileSurvey found = survey();
  EXPECT_EQ(visited.size(), 97u);
  EXPECT_EQ(found.lost_places, 3u);
  EXPECT_EQ(found.lost_bytes, 299u);
  ASSERT_EQ(found.damage.size(), 3u);
  const uint64_t places[][3] = {{7, 700, 100}, {20, 2000, 100}, {99, 9900, 99}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(found.damage[i].record, places[i][0]);
    EXPECT_EQ(found.damage[i].offset, places[i][1]);
    EXPECT_EQ(found.damage[i].bytes, places[i][2]);
    EXPECT_FALSE(found.damage[i].why.empty());
  }
}

TEST_F(TFRecordSurveyTest, an_empty_file_has_nothing) {
  write("file", {});
  const FileSurvey found = survey();
  EXPECT_EQ(found.records + found.lost_places + found.file_bytes, 0u);
}

TEST_F(TFRecordSurveyTest, it_ends_when_it_is_told_to) {
  write("file", payloads(100));
  Progress progress;
  progress.stop = true;
  EXPECT_THROW(survey(&progress), Error);
}

TEST_F(TFRecordSurveyTest, of_a_compressed_file_is_of_what_was_inflated) {
  std::vector<std::string> some(100, std::string(84, 'x'));
  std::string bytes = write("file", some);
  bytes[750] ^= 1;
  bytes[2000] ^= 1;
  bytes.resize(bytes.size() - 1);
  for (Compression compression : {Compression::kGzip, Compression::kZlib}) {
    const uint64_t size = ((*files)["file"] = compressed(bytes, compression)).size();
    Progress progress;
    const FileSurvey found = survey(&progress);
    EXPECT_EQ(found.compression, compression);
    EXPECT_EQ(found.file_bytes, size);
    EXPECT_EQ(visited.size(), 97u);
    EXPECT_EQ(found.lost_bytes, 299u);
    ASSERT_EQ(found.damage.size(), 3u);
    EXPECT_EQ(found.damage[1].record, 20u);
    EXPECT_EQ(found.damage[1].offset, 2000u);
    EXPECT_EQ(progress.bytes, 2 * size);
  }
  progress_stops();
}

}  // namespace
}  // namespace penstock
