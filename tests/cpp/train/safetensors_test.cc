#include "penstock/train/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "penstock/base/error.h"
#include "penstock/base/half.h"
#include "tests/cpp/io/memory_files.h"

namespace penstock::train {
namespace {

struct Safetensors : ::testing::Test {
  // A file of this header and so many bytes of data.
  void put(const std::string& header, size_t data) {
    uint64_t length = header.size();
    files["file"].assign(reinterpret_cast<const char*>(&length), 8);
    files["file"] += header + std::string(data, '\1');
  }
  std::string error() {
    try {
      SafetensorsReader reader(files.open("file"));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kDataLoss) << error.what();
      return error.what();
    }
    return "";
  }
  std::vector<float> read(const std::string& name) {
    SafetensorsReader reader(files.open("file"));
    const StoredArray* array = reader.find(name);
    std::vector<float> values(array->bytes / size_of(array->dtype));
    reader.read(*array, values);
    return values;
  }

  MemoryFiles files;
};

std::vector<float> drawn(size_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

// As the package safetensors 0.8.0 for Python wrote it.
TEST_F(Safetensors, reads_files_of_the_reference_implementation) {
  put(R"({"__metadata__":{"step":"3"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("w":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]}}      )",
      0);
  files["file"] += std::string("\0\0\x80\x3f\0\0\0\xc0\0\0\0\x3f", 12);
  EXPECT_EQ(error(), "");
  EXPECT_EQ(read("b"), (std::vector<float>{1, -2}));
  EXPECT_EQ(read("w"), (std::vector<float>{0.5}));
  EXPECT_EQ(SafetensorsReader(files.open("file")).metadata().at("step"), "3");
}

TEST_F(Safetensors, its_bytes_are_those_of_the_format) {
  const std::vector<float> values = {1, -2};
  const ArrayToStore arrays[] = {{"b", {2}, values}, {"none", {0, 3}, {}}};
  write_safetensors(files, "file", arrays, {{"k", "v"}});
  const std::string header =
      R"({"__metadata__":{"k":"v"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("none":{"dtype":"F32","shape":[0,3],"data_offsets":[8,8]}})";
  const std::string& file = files["file"];
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(file.substr(8, header.size()), header);
  EXPECT_EQ(file.substr(8 + header.size(), length - header.size()),
            std::string(length - header.size(), ' '));
  EXPECT_EQ(file.substr(8 + length), std::string("\0\0\x80\x3f\0\0\0\xc0", 8));
}

TEST_F(Safetensors, reads_back_written_arrays) {
  const auto large = drawn(200'003);
  const ArrayToStore arrays[] = {{"large", {200'003}, large},
                                 {"none", {4, 0}, {}},
                                 {"scalar", {}, std::span(large).first(1)},
                                 {"n\u00e4me \"x\"", {3, 2}, std::span(large).first(6)}};
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
    write_safetensors(files, "file", arrays, {}, dtype);
    SafetensorsReader reader(files.open("file"));
    ASSERT_EQ(reader.arrays().size(), 4u);
    for (const ArrayToStore& array : arrays) {
      const StoredArray* stored = reader.find(array.name);
      ASSERT_NE(stored, nullptr);
      EXPECT_EQ(stored->shape, array.shape);
      EXPECT_EQ(stored->dtype, dtype);
      std::vector<float> values(array.values.size());
      reader.read(*stored, values);
      for (size_t i = 0; i < values.size(); ++i) {
        const float x = array.values[i];
        const float expected = dtype == DType::kFloat32   ? x
                               : dtype == DType::kFloat16 ? float16_to_float(float_to_float16(x))
                                                          : bfloat16_to_float(float_to_bfloat16(x));
        ASSERT_EQ(values[i], expected);
      }
    }
  }
}

// With a linear search for each name this would take half a minute.
TEST_F(Safetensors, a_file_can_have_many_arrays) {
  const std::vector<float> one{1.5F};
  std::vector<ArrayToStore> arrays;
  for (int i = 30'000; i > 0; --i) {
    const bool empty = i % 2 == 0;
    arrays.push_back({std::to_string(i), {empty ? 0 : 1}, std::span(one).first(empty ? 0 : 1)});
  }
  const auto begun = std::chrono::steady_clock::now();
  write_safetensors(files, "file", arrays, {});
  const SafetensorsReader reader(files.open("file"));
  ASSERT_EQ(reader.arrays().size(), arrays.size());
  for (size_t i = 0; i < arrays.size(); ++i) {
    ASSERT_EQ(reader.arrays()[i].name, arrays[i].name);  // also for empty arrays
    ASSERT_EQ(reader.find(arrays[i].name), &reader.arrays()[i]);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
}

TEST_F(Safetensors, a_number_too_large_for_its_dtype_is_no_silent_infinity) {
  files["file"] = "as it was";
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> large = {1, 70000}, infinite = {infinity, NAN};
  const ArrayToStore one{"w", {2}, large}, other{"w", {2}, infinite};
  EXPECT_THROW(write_safetensors(files, "file", {&one, 1}, {}, DType::kFloat16), Error);
  EXPECT_EQ(files["file"], "as it was");
  EXPECT_NO_THROW(write_safetensors(files, "file", {&one, 1}, {}, DType::kBfloat16));
  EXPECT_NO_THROW(write_safetensors(files, "file", {&other, 1}, {}, DType::kFloat16));
  EXPECT_THROW(write_safetensors(files, "file", {&one, 1}, {}, DType::kFloat64), Error);
}

TEST_F(Safetensors, a_full_disk_leaves_the_former_file) {
  files["file"] = "as it was";
  const auto values = drawn(1000);
  const ArrayToStore array{"w", {1000}, values};
  for (uint64_t space : {0, 8, 50, 500, 4000}) {
    files.full_after = space;
    EXPECT_THROW(write_safetensors(files, "file", {&array, 1}, {}), Error) << space;
    EXPECT_EQ(files["file"], "as it was");
  }
}

TEST_F(Safetensors, every_truncation_and_every_extension_is_noticed) {
  const auto values = drawn(5);
  const ArrayToStore arrays[] = {{"w", {5}, values}, {"b", {2}, std::span(values).first(2)}};
  write_safetensors(files, "file", arrays, {{"step", "1"}});
  const std::string whole = files["file"];
  EXPECT_EQ(error(), "");
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    files["file"] = whole.substr(0, cut);
    EXPECT_NE(error(), "") << cut;
  }
  files["file"] = whole + "x";
  EXPECT_NE(error().find("arrays end at"), std::string::npos);
}

// Any byte of the file changed to any other: an error, or arrays that lie inside the file.
TEST_F(Safetensors, no_changed_byte_leads_outside_the_file) {
  const auto values = drawn(3);
  const ArrayToStore arrays[] = {{"w", {3}, values}, {"b", {1, 2}, std::span(values).first(2)}};
  write_safetensors(files, "file", arrays, {{"k", "v"}}, DType::kBfloat16);
  const std::string whole = files["file"];
  size_t refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      files["file"] = whole;
      files["file"][at] = static_cast<char>(byte);
      try {
        SafetensorsReader reader(files.open("file"));
        uint64_t end = 0;
        for (const StoredArray& array : reader.arrays()) {
          EXPECT_GE(array.offset, end);
          end = array.offset + array.bytes;
        }
        EXPECT_EQ(end, whole.size());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kDataLoss);
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, whole.size() * 64);
}

TEST_F(Safetensors, invalid_headers_are_refused_with_the_position) {
  auto one = [](const std::string& members) { return R"({"w":{)" + members + "}}"; };
  const struct {
    std::string header;
    size_t data;
    const char* text;
  } cases[] = {
      {"", 0, "no JSON object"},
      {"[]", 0, "no JSON object"},
      {"{", 0, "no JSON object"},
      {R"({"w":1})", 0, "'w' in its header has no 'dtype'"},
      {one(R"("dtype":"F32","shape":[1])"), 4, "no list 'data_offsets'"},
      {one(R"("dtype":"F32","data_offsets":[0,4])"), 4, "no list 'shape'"},
      {one(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])"), 4, "the dtype F33"},
      {one(R"("dtype":4,"shape":[1],"data_offsets":[0,4])"), 4, "no 'dtype'"},
      {one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4, "an invalid 'shape'"},
      {one(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4, "an invalid 'shape'"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4, "(2,) of F32 and 4 bytes"},
      {one(R"("dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16])"), 16,
       "an invalid 'shape'"},
      {one(R"("dtype":"F32","shape":[2147483648,2147483648,4],"data_offsets":[0,0])"), 0, "(21"},
      {one(R"("dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0])"), 0, "(0,"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4, "invalid 'data_offsets'"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), 4, "invalid 'data_offsets'"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8, "is due"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 8, "arrays end at"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 0, "arrays end at"},
      {R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("v":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "is due"},
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "'w' occurs twice"},
      {R"({"__metadata__":1})", 0, "metadata is no object"},
      {R"({"__metadata__":{"k":1}})", 0, "metadata 'k' is no string"},
      {R"({"w":[[[[[[]]]]]]})", 0, "nested too deeply"},
      {std::string(100'000, '['), 0, "nested too deeply"},
  };
  for (const auto& wrong : cases) {
    put(wrong.header, wrong.data);
    EXPECT_NE(error().find(wrong.text), std::string::npos) << wrong.header.substr(0, 80) << "\n"
                                                           << error();
  }
  put("{}", 0);
  EXPECT_EQ(error(), "") << "no arrays at all are none";
  files["file"] = std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
  EXPECT_NE(error().find("say that 18446744073709551615 bytes"), std::string::npos);
}

TEST_F(Safetensors, arrays_of_other_dtypes_are_listed_and_not_read) {
  put(R"({"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", 8);
  SafetensorsReader reader(files.open("file"));
  ASSERT_EQ(reader.arrays().size(), 1u);
  EXPECT_EQ(reader.arrays()[0].dtype, DType::kInt64);
  std::vector<float> into(1);
  EXPECT_THROW(reader.read(reader.arrays()[0], into), Error);
}

}  // namespace
}  // namespace penstock::train
