#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "../../io/tfrecords.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/sources/sources.h"
#include "tests/cpp/temporary_folder.h"

namespace penstock {
namespace {

class IdxFiles : public ::testing::Test {
 protected:
  static void append(std::string& bytes, uint32_t number, int size) {
    for (int shift = 8 * (size - 1); shift >= 0; shift -= 8) {
      bytes += static_cast<char>(number >> shift);
    }
  }
  // Rows of three int16 each: i, -i, 256 i of the i-th.
  static std::string images(int begin, int end) {
    std::string bytes{0, 0, 0x0B, 2};
    append(bytes, end - begin, 4);
    append(bytes, 3, 4);
    for (int i = begin; i < end; ++i) {
      for (int value : {i, -i, 256 * i}) append(bytes, static_cast<uint32_t>(value), 2);
    }
    return bytes;
  }
  static std::string labels(int begin, int end) {
    std::string bytes{0, 0, 0x08, 1};
    append(bytes, end - begin, 4);
    for (int i = begin; i < end; ++i) bytes += static_cast<char>(i);
    return bytes;
  }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder + "/" + name, std::ios::binary) << bytes;
    return folder + "/" + name;
  }
  static Code code(const std::function<void()>& what, const std::string& says) {
    try {
      what();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
      return error.code();
    }
    return Code::kInternal;
  }
  static int check(Loader& feed, int begin = 0) {
    int next = begin;
    for (auto& batch : feed.epoch()) {
      auto rows = batch.at("image").as_span<const int16_t>();
      auto labels = batch.at("label").as_span<const uint8_t>();
      EXPECT_EQ(rows.size(), 3 * labels.size());
      for (size_t i = 0; i < labels.size(); ++i, ++next) {
        EXPECT_EQ(labels[i], next);
        EXPECT_EQ(rows[3 * i], next);
        EXPECT_EQ(rows[3 * i + 1], -next);
        EXPECT_EQ(rows[3 * i + 2], static_cast<int16_t>(256 * next));
      }
    }
    return next;
  }

  const testing::TemporaryFolder temporary;
  const std::string folder = temporary.path();
};

TEST_F(IdxFiles, are_rows_beside_their_labels) {
  for (Compression compression : {Compression::kNone, Compression::kGzip, Compression::kZlib}) {
    const auto pack = [&](const std::string& bytes) {
      return compression == Compression::kNone ? bytes : compressed(bytes, compression);
    };
    write("a", pack(images(0, 70)));
    write("b", pack(images(70, 70)));
    write("c", pack(images(70, 100)));
    write("a-labels", pack(labels(0, 70)));
    write("b-labels", pack(labels(70, 70)));
    write("c-labels", pack(labels(70, 100)));
    for (bool stream : {false, true}) {
      Dataset dataset =
          Dataset::idx(folder + "/?", {.labels = {folder + "/?-labels"}, .stream = stream});
      EXPECT_EQ(dataset.node()->title,
                stream ? "zip(image=idx(?, stream), label=idx(?-labels, stream))"
                       : "zip(image=idx(?), label=idx(?-labels))");
      for (uint32_t workers : {0, 2}) {
        Loader feed = dataset.batch(32).build({.workers = workers});
        EXPECT_EQ(check(feed), 100);
        EXPECT_EQ(check(feed), 100);
      }
    }
  }
}

TEST_F(IdxFiles, are_shuffled_as_a_whole_with_their_labels) {
  const std::string paths[] = {write("x", images(0, 100)), write("y", labels(0, 100))};
  Loader feed =
      Dataset::idx(paths[0], {.labels = {paths[1]}}).shuffle({.seed = 3}).batch(100).build();
  auto batch = feed.next();
  ASSERT_TRUE(batch);
  auto rows = batch->at("image").as_span<const int16_t>();
  auto order = batch->at("label").as_span<const uint8_t>();
  std::vector<bool> seen(100);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(rows[3 * i], order[i]);
    seen[order[i]] = true;
  }
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 100);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
}

TEST_F(IdxFiles, have_as_many_labels_as_rows_file_by_file) {
  write("a", images(0, 5));
  write("b", images(5, 9));
  write("a-labels", labels(0, 4));
  write("b-labels", labels(4, 9));
  const auto build = [&](const std::vector<std::string>& named) {
    Dataset::idx(folder + "/?", {.labels = named}).build({.workers = 0});
  };
  EXPECT_EQ(
      code([&] { build({folder + "/?-labels"}); }, "a-labels has 4 labels (byte 4) for the 5"),
      Code::kInvalidArgument);
  EXPECT_EQ(code([&] { build({folder + "/a-labels"}); }, "2 files of images and 1 of labels"),
            Code::kInvalidArgument);
  write("b", labels(5, 9));
  EXPECT_EQ(code([&] { build({folder + "/?-labels"}); }, "b has rows of uint8"),
            Code::kInvalidArgument);
}

// For each byte at which a file may be truncated, and each way to read it.
TEST_F(IdxFiles, that_are_cut_short_are_never_fewer_rows) {
  const std::string bytes = images(0, 40), good = write("labels", labels(0, 40));
  const auto fails = [&](const std::string& cut, size_t at) {
    const std::string path = write("cut", cut);
    for (OnError policy : {OnError::kRaise, OnError::kSkip}) {
      EXPECT_EQ(code(
                    [&] {
                      Loader feed = Dataset::idx(path, {.labels = {good}})
                                        .batch(7)
                                        .build({.workers = 0, .on_error = policy});
                      for (auto& batch : feed.epoch()) ASSERT_EQ(batch.at("label").shape()[0], 7);
                    },
                    path),
                Code::kDataLoss)
          << at;
    }
  };
  for (size_t end = 0; end < bytes.size(); end += 5) {
    fails(bytes.substr(0, end), end);
    if (end + 6 <= bytes.size()) {  // otherwise one row is lost and reported
      fails(compressed(bytes.substr(0, end), Compression::kGzip), end);
    }
  }
  const std::string gzip = compressed(bytes, Compression::kGzip);
  for (size_t end = 3; end < gzip.size(); end += 3) fails(gzip.substr(0, end), end);
  fails(bytes + "x", bytes.size());
  fails(compressed(bytes + "x", Compression::kGzip), bytes.size());
  fails(compressed(bytes + std::string(6, 'x'), Compression::kGzip), bytes.size());
}

TEST_F(IdxFiles, that_change_later_lose_what_they_lack) {
  const std::string path = write("x", images(0, 40)), good = write("y", labels(0, 40));
  Loader feed = Dataset::idx(path, {.labels = {good}})
                    .batch(40)
                    .build({.workers = 0, .on_error = OnError::kSkip});
  std::filesystem::resize_file(path, 12 + 6 * 10 + 3);
  EXPECT_EQ(check(feed), 10);
  EXPECT_EQ(feed.stats().skipped, 30u);
}

}  // namespace
}  // namespace penstock
