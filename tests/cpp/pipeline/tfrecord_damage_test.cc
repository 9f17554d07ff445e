// Any damage of a TFRecord file, seen by the consumer: exactly the damaged records are lost, at
// their places, and counted.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "penstock/base/error.h"
#include "penstock/io/crc32c.h"
#include "penstock/io/example_writer.h"
#include "penstock/io/tfrecord.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/transformations/operations.h"
#include "tests/cpp/temporary_folder.h"

namespace penstock {
namespace {

using Numbers = std::vector<int64_t>;
using Type = ExampleFeature::Type;
using Form = ExampleFeature::Form;

// The lost records, and the number of damaged places.
struct Lost {
  std::vector<size_t> records;
  size_t places = 1;
};

// Two files of `each` examples; the first file is damaged.
class TFRecordChain : public ::testing::Test {
 protected:
  static constexpr size_t kEach = 9, kAll = 2 * kEach;
  static constexpr uint64_t kBatch = 4;

  TFRecordChain() {
    for (size_t file = 0; file < 2; ++file) {
      TFRecordWriter writer(*posix_files(), path(file));
      for (size_t i = file * kEach; i < (file + 1) * kEach; ++i) {
        if (file == 0) begins.push_back(writer.bytes());
        ExampleWriter example;
        example.int64("n", {{static_cast<int64_t>(i)}});
        const std::string value = text(i);
        example.bytes("text", std::as_bytes(std::span(value)));
        writer.write(example.finish());
      }
      if (file == 0) begins.push_back(writer.bytes());
      writer.close();
    }
    std::ifstream in(path(0), std::ios::binary);
    sound.assign(std::istreambuf_iterator<char>(in), {});
  }

  std::string path(size_t file) const { return folder + "/part-" + std::to_string(file); }
  static std::string text(size_t i) { return std::string(i % 5, static_cast<char>('a' + i)); }
  void put(const std::string& bytes) const {
    std::ofstream(path(0), std::ios::binary | std::ios::trunc) << bytes;
  }

  // `strings`: elements that differ in length, so that batches are collected and not bound.
  Dataset dataset(bool strings) const {
    std::vector<ExampleFeature> features{{.name = "n", .type = Type::kInt64, .form = Form::kFixed}};
    if (strings) features.push_back({.name = "text"});
    return Dataset::tfrecord(folder + "/part-*").map(parse_example(features)).batch(kBatch);
  }

  // Checks a pass that skips damaged records.
  void expect_skipped(bool strings, uint32_t workers, const Lost& lost, const std::string& what) {
    Loader feed = dataset(strings).build({.workers = workers, .on_error = OnError::kSkip});
    expect_skipped(feed, strings, lost, what);
  }
  void expect_skipped(Loader& feed, bool strings, const Lost& lost, const std::string& what) {
    Numbers seen, left;
    std::string texts, left_texts;
    for (auto& batch : feed.epoch()) {
      auto n = batch.at("n").as_span<const int64_t>();
      seen.insert(seen.end(), n.begin(), n.end());
      if (!strings) continue;
      auto values = batch.at("text").as_span<const uint8_t>();
      texts.append(values.begin(), values.end());
    }
    for (size_t i = 0; i < kAll; ++i) {
      if (std::find(lost.records.begin(), lost.records.end(), i) != lost.records.end()) continue;
      left.push_back(static_cast<int64_t>(i));
      if (strings) left_texts += text(i);
    }
    ASSERT_EQ(seen, left) << what;
    ASSERT_EQ(texts, left_texts) << what;
    LoaderStats stats = feed.stats();
    ASSERT_EQ(stats.skipped, lost.places) << what;
    ASSERT_EQ(stats.losses.size(), lost.places) << what;
    for (const LostItem& loss : stats.losses) {
      ASSERT_NE(loss.reason.find("part-0, record "), loss.reason.npos) << loss.reason;
      ASSERT_NE(loss.reason.find(" bytes): "), loss.reason.npos) << loss.reason;
    }
  }

  // Checks that batches are unchanged up to the one with the `place`-th element, which is an error
  // of `code`.
  void expect_raised(bool strings, uint64_t place, Code code, const std::string& what) {
    Loader feed = dataset(strings).build({.workers = 0});
    expect_raised(feed, place, code, what);
  }
  void expect_raised(Loader& feed, uint64_t place, Code code, const std::string& what) {
    for (uint64_t step = 0; step < place / kBatch; ++step) {
      auto batch = feed.next();
      ASSERT_TRUE(batch) << what;
      ASSERT_EQ(batch->at("n").as_span<const int64_t>()[0], static_cast<int64_t>(kBatch * step));
    }
    try {
      (void)feed.next();
      FAIL() << what;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), code) << error.what();
      ASSERT_NE(std::string(error.what()).find("part-0, record " + std::to_string(place)),
                std::string::npos)
          << error.what();
    }
    ASSERT_EQ(feed.failure()->index, place) << what;
    ASSERT_EQ(feed.failure()->step, place / kBatch) << what;
    ASSERT_EQ(feed.failure()->stage, "tfrecord(part-*)");
  }

  const testing::TemporaryFolder temporary;
  const std::string folder = temporary.path();
  std::vector<uint64_t> begins;  // of the first file's records, and its end
  std::string sound;
};

TEST_F(TFRecordChain, nothing_is_wrong_with_them) {
  for (bool strings : {false, true}) {
    for (uint32_t workers : {0, 1, 3}) expect_skipped(strings, workers, {{}, 0}, "sound");
  }
}

// The length, its checksum, the payload and its checksum.
TEST_F(TFRecordChain, a_wrong_byte_anywhere_costs_its_record_and_no_other) {
  for (size_t record = 0; record < kEach; ++record) {
    for (uint64_t at = begins[record]; at < begins[record + 1]; ++at) {
      std::string bytes = sound;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << at % 8));
      put(bytes);
      const std::string what = "byte " + std::to_string(at);
      const bool strings = at % 2 == 0;
      const uint32_t workers = at % 7 == 0 ? 2 : 0;
      ASSERT_NO_FATAL_FAILURE(expect_skipped(strings, workers, {{record}}, what));
      ASSERT_NO_FATAL_FAILURE(expect_raised(strings, record, Code::kDataLoss, what));
    }
  }
}

TEST_F(TFRecordChain, cut_off_at_any_byte_the_rest_of_the_file_is_lost) {
  for (size_t record = 0; record < kEach; ++record) {
    for (uint64_t at = begins[record]; at < begins[record + 1]; ++at) {
      put(sound.substr(0, at));
      Lost lost{{}, at == begins[record] ? 0u : 1u};
      for (size_t i = record; i < kEach; ++i) lost.records.push_back(i);
      const std::string what = "cut at " + std::to_string(at);
      const bool strings = at % 2 == 0;
      ASSERT_NO_FATAL_FAILURE(expect_skipped(strings, at % 7 == 0 ? 2 : 0, lost, what));
      if (lost.places == 0) continue;
      ASSERT_NO_FATAL_FAILURE(expect_raised(strings, record, Code::kDataLoss, what));
    }
  }
}

TEST_F(TFRecordChain, cut_off_after_it_was_indexed_each_record_that_is_gone_is_counted) {
  for (size_t record = 0; record < kEach; ++record) {
    for (uint64_t at = begins[record]; at < begins[record + 1]; at += 5) {
      Lost lost{{}, kEach - record};
      for (size_t i = record; i < kEach; ++i) lost.records.push_back(i);
      const std::string what = "cut at " + std::to_string(at);
      const bool strings = at % 2 == 0;
      put(sound);
      const Dataset built = dataset(strings);
      Loader skip = built.build({.workers = at % 2, .on_error = OnError::kSkip});
      Loader raise = built.build({.workers = 0});
      std::filesystem::resize_file(path(0), at);
      ASSERT_NO_FATAL_FAILURE(expect_skipped(skip, strings, lost, what));
      ASSERT_NO_FATAL_FAILURE(expect_raised(raise, record, Code::kDataLoss, what));
    }
  }
}

TEST_F(TFRecordChain, garbage_between_records_is_one_place_that_costs_no_record) {
  for (size_t before = 0; before <= kEach; ++before) {
    for (size_t length : {1, 16, 300, 70'000}) {
      std::string bytes = sound;
      bytes.insert(begins[before], length, 'x');
      put(bytes);
      const std::string what = std::to_string(length) + " before " + std::to_string(before);
      const bool strings = before % 2 == 0;
      ASSERT_NO_FATAL_FAILURE(expect_skipped(strings, 0, {{}, 1}, what));
      ASSERT_NO_FATAL_FAILURE(expect_raised(strings, before, Code::kDataLoss, what));
    }
  }
}

TEST_F(TFRecordChain, a_length_beyond_the_file_takes_no_memory) {
  for (uint64_t length : {uint64_t{1} << 40, uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 15}) {
    std::string bytes = sound;
    const uint32_t crc = masked(crc32c(std::as_bytes(std::span(&length, 1))));
    std::memcpy(&bytes[begins[4]], &length, 8);
    std::memcpy(&bytes[begins[4] + 8], &crc, 4);
    put(bytes);
    ASSERT_NO_FATAL_FAILURE(expect_skipped(true, 0, {{4}}, std::to_string(length)));
  }
}

TEST_F(TFRecordChain, a_file_that_vanishes_after_the_build_is_read_to_its_end) {
  for (bool strings : {false, true}) {
    put(sound);
    // The file is open since it was indexed.
    Loader open = dataset(strings).build({.workers = 0, .on_error = OnError::kSkip});
    std::filesystem::remove(path(0));
    ASSERT_NO_FATAL_FAILURE(expect_skipped(open, strings, {{}, 0}, "still open"));
  }
}

TEST_F(TFRecordChain, a_file_that_is_replaced_after_the_build_gives_nothing_of_another) {
  Loader feed = dataset(true).build({.workers = 0, .on_error = OnError::kSkip});
  put(std::string(sound.size(), 'x'));
  Lost lost{{}, kEach};
  for (size_t i = 0; i < kEach; ++i) lost.records.push_back(i);
  expect_skipped(feed, true, lost, "overwritten");
}

TEST_F(TFRecordChain, a_message_that_is_none_is_the_error_of_the_stage_that_reads_it) {
  TFRecordWriter writer(*posix_files(), path(0));
  writer.write({});
  writer.close();
  Loader feed = dataset(true).build({.workers = 0});
  EXPECT_THROW((void)feed.next(), Error);
  EXPECT_EQ(feed.failure()->stage, "map(parse_example)");
  EXPECT_EQ(feed.failure()->index, 0u);
  Loader skip = dataset(true).build({.workers = 0, .on_error = OnError::kSkip});
  EXPECT_EQ(skip.next()->at("n").as_span<const int64_t>()[0], static_cast<int64_t>(kEach));
  EXPECT_EQ(skip.stats().losses[0].reason,
            "map(parse_example): parse_example: feature 'n': is missing and has no default, of " +
                path(0) + ", record 0");
}

TEST_F(TFRecordChain, no_bytes_are_no_records_and_no_files_are_an_error) {
  put("");
  Lost lost{{}, 0};
  for (size_t i = 0; i < kEach; ++i) lost.records.push_back(i);
  expect_skipped(true, 0, lost, "empty");
  std::filesystem::resize_file(path(1), 0);
  Loader feed = dataset(false).build({.workers = 1});
  EXPECT_FALSE(feed.next());
  EXPECT_EQ(feed.size(), 0u);
  for (const char* nothing : {"/none-*", "/part-7"}) {
    try {
      Dataset::tfrecord(folder + nothing).batch(2).build({.workers = 0});
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kNotFound);
      EXPECT_NE(std::string(error.what()).find(nothing), std::string::npos);
    }
  }
}

TEST_F(TFRecordChain, records_as_they_are_in_batches_of_byte_strings) {
  std::string bytes = sound;
  bytes[begins[2] + 13] ^= 1;
  put(bytes);
  for (uint32_t workers : {0, 2}) {
    Loader feed = Dataset::tfrecord({path(0), path(1)})
                      .batch(kAll)
                      .build({.workers = workers, .on_error = OnError::kSkip});
    auto batch = feed.next();
    ASSERT_TRUE(batch);
    auto offsets = batch->at("/offsets").as_span<const int64_t>();
    ASSERT_EQ(offsets.size(), kAll);  // one is lost
    auto values = batch->at("").as_span<const uint8_t>();
    EXPECT_EQ(std::memcmp(&values[static_cast<size_t>(offsets[2])], &sound[begins[3] + 12],
                          begins[4] - begins[3] - 16),
              0);
    EXPECT_FALSE(feed.next());
    EXPECT_EQ(feed.stats().skipped, 1u);
  }
}

}  // namespace
}  // namespace penstock
