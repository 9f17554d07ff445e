#include "penstock/io/idx.h"

#include <gtest/gtest.h>

#include <string>

#include "tfrecords.h"

namespace penstock {
namespace {

std::string header(unsigned dtype, const std::vector<uint32_t>& lengths) {
  std::string bytes{0, 0, static_cast<char>(dtype), static_cast<char>(lengths.size())};
  for (const uint32_t length : lengths) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(length >> shift);
  }
  return bytes;
}

struct Idx : ::testing::Test {
  IdxHeader read(const std::string& bytes, Compression compression = Compression::kNone) {
    files["file"] = bytes;
    return read_idx_header(files.open("file"), compression);
  }
  // The error of a file with these bytes; empty: none.
  std::string wrong(const std::string& bytes, Compression compression = Compression::kNone) {
    try {
      read(bytes, compression);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kDataLoss);
      const std::string what = error.what();
      EXPECT_NE(what.find("file"), std::string::npos);
      EXPECT_NE(what.find("byte"), std::string::npos) << what;
      return what;
    }
    return {};
  }
  MemoryFiles files;
};

TEST_F(Idx, headers_say_dtype_shape_and_rows) {
  const std::pair<unsigned, DType> dtypes[] = {{0x08, DType::kUint8},   {0x09, DType::kInt8},
                                               {0x0B, DType::kInt16},   {0x0C, DType::kInt32},
                                               {0x0D, DType::kFloat32}, {0x0E, DType::kFloat64}};
  for (const auto& [code, dtype] : dtypes) {
    const std::string bytes = header(code, {5, 3, 2}) + std::string(30 * size_of(dtype), 'x');
    for (Compression compression : {Compression::kNone, Compression::kGzip, Compression::kZlib}) {
      const IdxHeader got = read(
          compression == Compression::kNone ? bytes : compressed(bytes, compression), compression);
      EXPECT_EQ(got.dtype, dtype);
      EXPECT_EQ(got.shape, (Shape{3, 2}));
      EXPECT_EQ(got.rows, 5u);
      EXPECT_EQ(got.row_bytes, 6 * size_of(dtype));
      EXPECT_EQ(got.bytes, 16u);
      EXPECT_EQ(compression_of_idx(*files.open("file")), compression);
    }
  }
  const IdxHeader labels = read(header(0x08, {7}) + "1234567");
  EXPECT_EQ(labels.shape, Shape{});
  EXPECT_EQ(labels.rows, 7u);
  EXPECT_EQ(labels.row_bytes, 1u);
  EXPECT_EQ(read(header(0x08, {0, 28, 28})).rows, 0u);
  EXPECT_EQ(read(header(0x08, std::vector<uint32_t>(32, 1)) + "x").shape, Shape(31, 1));
}

TEST_F(Idx, files_are_as_long_as_they_say) {
  const std::string whole = header(0x0B, {4, 3}) + std::string(24, 'x');
  ASSERT_EQ(wrong(whole), "");
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_NE(wrong(whole.substr(0, bytes)).find("ends at byte " + std::to_string(bytes)),
              std::string::npos)
        << bytes;
  }
  for (size_t more : {1, 5, 6, 4096}) {
    EXPECT_NE(
        wrong(whole + std::string(more, 'x')).find(std::to_string(more) + " more come at byte 36"),
        std::string::npos)
        << more;
  }
}

// For any bytes of the header, opening fails, or the header agrees with the file.
TEST_F(Idx, damage_of_each_bit_of_a_header_is_found) {
  const std::string whole = header(0x0C, {4, 3, 2}) + std::string(96, 'x');
  for (size_t bit = 0; bit < 16 * 8; ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    if (bit / 8 == 2 && bytes[2] == 0x0D) {  // float32, of the same size
      EXPECT_EQ(read(bytes).dtype, DType::kFloat32);
    } else {
      EXPECT_NE(wrong(bytes), "") << bit;
    }
  }
}

TEST_F(Idx, what_is_none_is_said) {
  EXPECT_NE(wrong("PK\3\4 and more").find("begins with 0x50 0x4b at byte 0"), std::string::npos);
  EXPECT_NE(wrong(header(0x0A, {1}) + "x").find("0x0a at byte 2"), std::string::npos);
  EXPECT_NE(wrong(header(0x08, {})).find("0 axes by byte 3"), std::string::npos);
  EXPECT_NE(wrong(header(0x08, std::vector<uint32_t>(33, 1)) + "x").find("33 axes"),
            std::string::npos);
  EXPECT_NE(wrong(header(0x08, {3, 2, 0})).find("at byte 12 that axis 2 has length 0"),
            std::string::npos);
  const uint32_t most = UINT32_MAX;
  EXPECT_NE(wrong(header(0x08, {0, most, most, 2})).find("fit into no memory"), std::string::npos);
  EXPECT_NE(wrong(header(0x08, {2, most, most})).find("more than any file"), std::string::npos);
  EXPECT_NE(wrong(header(0x08, {most, most})).find("it was cut short"), std::string::npos);
  EXPECT_NE(wrong("").find("ends at byte 0"), std::string::npos);
}

TEST_F(Idx, of_compressed_files_what_cannot_be_inflated_from_them_is_refused) {
  const std::string bytes = header(0x08, {1 << 20}) + "few";
  const std::string gzip = compressed(bytes, Compression::kGzip);
  EXPECT_NE(wrong(gzip, Compression::kGzip).find("can be inflated from it"), std::string::npos);
  for (size_t end = 0; end < gzip.size(); ++end) {
    EXPECT_NE(wrong(gzip.substr(0, end), Compression::kGzip), "") << end;
  }
}

}  // namespace
}  // namespace penstock
