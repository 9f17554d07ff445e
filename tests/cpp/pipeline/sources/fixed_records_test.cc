#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/sources.h"
#include "tests/cpp/temporary_folder.h"

namespace penstock {
namespace {

class FixedRecords : public ::testing::Test {
 protected:
  // `count` records of five bytes; the first byte counts up from file to file.
  void write(const std::string& name, size_t count, const std::string& before = "",
             const std::string& after = "") {
    std::string bytes = before;
    for (size_t i = 0; i < count; ++i, ++next) {
      bytes += static_cast<char>(next);
      bytes += "rest";
    }
    std::ofstream(folder + "/" + name, std::ios::binary) << bytes + after;
  }

  const testing::TemporaryFolder temporary;
  const std::string folder = temporary.path();
  size_t next = 0;
};

TEST_F(FixedRecords, are_rows_of_a_batch) {
  write("a", 100, "head", "foot!");
  write("b", 0, "head", "foot!");
  write("c", 57, "head", "foot!");
  Dataset dataset = Dataset::fixed_records(
      folder + "/*", {.record_bytes = 5, .header_bytes = 4, .footer_bytes = 5});
  EXPECT_EQ(dataset.node()->title, "fixed_records(*, record_bytes=5, header=4, footer=5)");
  for (uint32_t workers : {0, 2}) {
    Loader feed = dataset.batch(70).build({.workers = workers});
    size_t seen = 0;
    for (auto& batch : feed.epoch()) {
      const Tensor& rows = batch.at("");
      ASSERT_EQ(rows.shape(), (Shape{seen < 140 ? 70 : 17, 5}));
      auto bytes = rows.as_span<const uint8_t>();
      for (size_t i = 0; i < bytes.size(); i += 5, ++seen) {
        ASSERT_EQ(bytes[i], seen);
        ASSERT_EQ(std::memcmp(&bytes[i + 1], "rest", 4), 0);
      }
    }
    EXPECT_EQ(seen, 157u);
  }
}

TEST_F(FixedRecords, of_a_file_that_became_shorter_are_lost_alone) {
  write("a", 10);
  write("b", 10);
  Loader feed = Dataset::fixed_records(folder + "/*", {.record_bytes = 5})
                    .batch(20)
                    .build({.workers = 0, .on_error = OnError::kSkip});
  std::filesystem::resize_file(folder + "/a", 33);
  auto batch = feed.next();
  ASSERT_TRUE(batch);
  auto bytes = batch->at("").as_span<const uint8_t>();
  ASSERT_EQ(bytes.size(), 16u * 5);
  EXPECT_EQ(bytes[5 * 5], 5);
  EXPECT_EQ(bytes[6 * 5], 10);
  EXPECT_EQ(feed.stats().skipped, 4u);
}

// Small records in random order are read by another code path.
TEST_F(FixedRecords, in_no_order_are_lost_alone_too) {
  constexpr size_t kRecords = 9000, kBytes = 100;
  std::string bytes;
  for (size_t i = 0; i < kRecords; ++i) bytes.append(kBytes, static_cast<char>(1 + i % 250));
  const std::string path = folder + "/file";
  std::ofstream(path, std::ios::binary) << bytes;
  Loader feed = Dataset::fixed_records(path, {.record_bytes = kBytes})
                    .shuffle({.seed = 3})
                    .batch(100)
                    .build({.workers = 0, .on_error = OnError::kSkip});
  const auto seen = [&] {
    size_t rows = 0;
    for (auto& batch : feed.epoch()) {
      auto values = batch.at("").as_span<const uint8_t>();
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(values[i], values[i / kBytes * kBytes]);
        EXPECT_NE(values[i], 0);
      }
      rows += values.size() / kBytes;
    }
    return rows;
  };
  EXPECT_EQ(seen(), kRecords);
  std::filesystem::resize_file(path, 5000 * kBytes + 50);  // 122 pages and a part of one
  EXPECT_EQ(seen(), 5000u);
  EXPECT_EQ(feed.stats().skipped, kRecords - 5000);
}

TEST_F(FixedRecords, fill_their_files) {
  auto code = [&](FixedRecordOptions options) {
    try {
      Dataset::fixed_records(folder + "/*", options).build({.workers = 0});
    } catch (const Error& error) {
      return error.code();
    }
    return Code::kInternal;
  };
  write("a", 10);
  EXPECT_EQ(code({.record_bytes = 3}), Code::kDataLoss);
  EXPECT_EQ(code({.record_bytes = 5, .header_bytes = 51}), Code::kDataLoss);
  EXPECT_EQ(code({.record_bytes = 5, .header_bytes = 50, .footer_bytes = 5}), Code::kDataLoss);
  EXPECT_EQ(code({.record_bytes = 5, .header_bytes = 50}), Code::kInternal) << "no records";
  EXPECT_EQ(code({.record_bytes = 0}), Code::kInvalidArgument);
  EXPECT_EQ(code({.record_bytes = UINT64_MAX}), Code::kInvalidArgument);
}

}  // namespace
}  // namespace penstock
