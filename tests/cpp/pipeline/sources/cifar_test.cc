#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "../../io/tfrecords.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/sources/sources.h"
#include "tests/cpp/temporary_folder.h"

namespace penstock {
namespace {

class Cifar : public ::testing::Test {
 protected:
  static uint8_t pixel(int record, int i) { return static_cast<uint8_t>(record * 31 + i % 251); }
  static std::string records(int begin, int end, bool coarse) {
    std::string bytes;
    for (int record = begin; record < end; ++record) {
      if (coarse) bytes += static_cast<char>(record % 20);
      bytes += static_cast<char>(coarse ? record % 100 : record % 10);
      for (int i = 0; i < 3072; ++i) bytes += static_cast<char>(pixel(record, i));
    }
    return bytes;
  }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder + "/" + name, std::ios::binary) << bytes;
    return folder + "/" + name;
  }
  static int check(const Dataset& dataset, bool coarse, uint32_t workers) {
    Loader feed = dataset.batch(32).build({.workers = workers});
    int next = 0;
    for (auto& batch : feed.epoch()) {
      const Tensor& images = batch.at("image");
      EXPECT_EQ(images.shape(), (Shape{images.shape()[0], 3, 32, 32}));
      for (int64_t row = 0; row < images.shape()[0]; ++row, ++next) {
        EXPECT_EQ(batch.at("label").as_span<const uint8_t>()[row], next % (coarse ? 100 : 10));
        if (coarse) {
          EXPECT_EQ(batch.at("coarse_label").as_span<const uint8_t>()[row], next % 20);
        }
        for (int i : {0, 1, 31, 32, 1024, 2048, 3071}) {
          EXPECT_EQ(images.as_span<const uint8_t>()[row * 3072 + i], pixel(next, i));
        }
      }
    }
    return next;
  }

  const testing::TemporaryFolder temporary;
  const std::string folder = temporary.path();
};

TEST_F(Cifar, records_are_images_and_labels) {
  for (bool coarse : {false, true}) {
    for (bool packed : {false, true}) {
      const auto pack = [&](const std::string& bytes) {
        return packed ? compressed(bytes, Compression::kGzip) : bytes;
      };
      write("1", pack(records(0, 70, coarse)));
      write("2", pack(records(70, 120, coarse)));
      for (bool stream : {false, true}) {
        const Dataset dataset = coarse ? Dataset::cifar100(folder + "/*", {.stream = stream})
                                       : Dataset::cifar10(folder + "/*", {.stream = stream});
        for (uint32_t workers : {0, 2}) EXPECT_EQ(check(dataset, coarse, workers), 120);
      }
    }
  }
}

TEST_F(Cifar, files_of_no_whole_number_of_records_are_refused) {
  const std::string bytes = records(0, 3, false);
  for (size_t end = 0; end <= bytes.size(); end += 439) {  // 7 times a record's bytes
    const std::string path = write("cut", bytes.substr(0, end));
    try {
      Dataset::cifar10(path).build({.workers = 0});
      EXPECT_EQ(end % 3073, 0u);
    } catch (const Error& error) {
      EXPECT_NE(end % 3073, 0u);
      EXPECT_EQ(error.code(), Code::kDataLoss);
      const std::string what = error.what();
      EXPECT_EQ(what.find("cifar10: " + path), 0u) << what;
      EXPECT_NE(what.find("at byte " + std::to_string(end / 3073 * 3073)), std::string::npos);
    }
  }
}

TEST_F(Cifar, labels_that_cannot_be_are_lost_alone) {
  for (bool packed : {false, true}) {
    std::string bytes = records(0, 5, true);
    bytes[3074] = 20;
    bytes[2 * 3074 + 1] = 100;
    const std::string path = write("x", packed ? compressed(bytes, Compression::kGzip) : bytes);
    Loader feed =
        Dataset::cifar100(path).batch(5).build({.workers = 0, .on_error = OnError::kSkip});
    auto batch = feed.next();
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->at("label").shape(), Shape{3});
    EXPECT_EQ(batch->at("label").as_span<const uint8_t>()[1], 3);
    EXPECT_EQ(feed.stats().skipped, 2u);
    Loader strict = Dataset::cifar100(path).batch(5).build({.workers = 0});
    try {
      strict.next();
      FAIL();
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(path + ", record 1 at byte 3074"), std::string::npos) << what;
      EXPECT_NE(what.find("'coarse_label', its byte 0, is 20 and not below 20"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace penstock
