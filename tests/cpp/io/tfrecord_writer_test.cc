#include <gtest/gtest.h>

#include <numeric>

#include "bytes.h"
#include "penstock/io/tfrecord.h"
#include "tfrecords.h"

namespace penstock {
namespace {

struct TFRecordWriterTest : ::testing::Test, TFRecords {};

// The same records, written by TensorFlow 2.
TEST_F(TFRecordWriterTest, writes_what_TensorFlow_writes) {
  const char golden[] =
      "000000000000000029039807d8ea82a20800000000000000ff86240f70656e73746f636b67533d79"
      "200000000000000029eda950000102030405060708090a0b0c0d0e0f101112131415161718191a1b"
      "1c1d1e1f92781f95";
  std::string hex;
  std::string counting(32, '\0');
  std::iota(counting.begin(), counting.end(), '\0');
  for (unsigned char byte : write("file", {"", "penstock", counting})) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  EXPECT_EQ(hex, golden);
}

TEST_F(TFRecordWriterTest, what_was_written_is_read) {
  auto some = payloads(500);
  some[100] = std::string(300'000, 'x');  // larger than its buffer
  some[101] = std::string(262'144 - 16, 'y');
  write("file", some);
  EXPECT_EQ(read_all(open({"file"})).payloads, some);
}

TEST_F(TFRecordWriterTest, counts_records_and_bytes) {
  TFRecordWriter writer(*files, "file");
  writer.write(bytes_of("ten bytes."));
  writer.write({});
  EXPECT_EQ(writer.records(), 2u);
  EXPECT_EQ(writer.bytes(), 42u);
  writer.close();
  EXPECT_EQ((*files)["file"].size(), 42u);
}

TEST_F(TFRecordWriterTest, the_file_is_there_after_close_and_not_before) {
  {
    TFRecordWriter writer(*files, "file");
    writer.write(bytes_of(std::string(1'000'000, 'x')));
    EXPECT_EQ(files->kind("file"), FileSystem::Kind::kNothing);
  }
  EXPECT_EQ(files->kind("file"), FileSystem::Kind::kNothing);
  TFRecordWriter writer(*files, "file");
  writer.close();
  writer.close();
  EXPECT_EQ(files->kind("file"), FileSystem::Kind::kFile);
  EXPECT_THROW(writer.write({}), Error);
}

TEST_F(TFRecordWriterTest, after_an_error_nothing_appears) {
  files->full_after = 300'000;
  TFRecordWriter writer(*files, "file");
  EXPECT_THROW(
      {
        for (int i = 0; i < 100; ++i) writer.write(bytes_of(std::string(10'000, 'x')));
      },
      Error);
  files->full_after = UINT64_MAX;
  writer.close();
  EXPECT_EQ(files->kind("file"), FileSystem::Kind::kNothing);
}

}  // namespace
}  // namespace penstock
