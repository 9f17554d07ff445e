#include <gtest/gtest.h>
#include <png.h>

#include "../../io/memory_files.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

// A PNG of one grey pixel value.
std::string grey_png(uint32_t width, uint32_t height, uint8_t value) {
  png_image about{};
  about.version = PNG_IMAGE_VERSION;
  about.width = width;
  about.height = height;
  about.format = PNG_FORMAT_GRAY;
  const std::vector<uint8_t> pixels(size_t{width} * height, value);
  std::string made(1000, '\0');
  png_alloc_size_t bytes = made.size();
  EXPECT_NE(png_image_write_to_memory(&about, made.data(), &bytes, 0, pixels.data(), 0, nullptr),
            0);
  made.resize(bytes);
  return made;
}

// Rows of a built stage, read as one chunk.
struct WholeFilesTest : ::testing::Test {
  std::shared_ptr<MemoryFiles> files = std::make_shared<MemoryFiles>();
  Scratch scratch;
  Context context{scratch, 3};

  void read(const Node::Ref& node, std::vector<uint64_t> positions) {
    builder = std::make_unique<Builder>(files);
    built = builder->build(*node);
    chunk = std::make_unique<Chunk>(scratch);
    chunk->reset(built.indexed->spec(), static_cast<uint32_t>(positions.size()));
    built.indexed->reader(context)->fetch({}, positions, *chunk, 0);
  }
  std::string text(const char* leaf, uint32_t row) const {
    const size_t place = chunk->spec()->find(leaf).value();
    return {reinterpret_cast<const char*>(chunk->at(place, row)), chunk->bytes(place, row)};
  }
  int64_t number(const char* leaf, uint32_t row) const {
    int64_t value;
    std::memcpy(&value, chunk->at(chunk->spec()->find(leaf).value(), row), sizeof(value));
    return value;
  }

  std::unique_ptr<Builder> builder;
  Built built;
  std::unique_ptr<Chunk> chunk;
};

TEST_F(WholeFilesTest, elements_are_the_bytes_the_path_and_the_label) {
  (*files)["in/a"] = "one";
  (*files)["in/b"] = "";
  read(nodes::files("in/*", std::vector<int64_t>{-5, 7}, ""), {1, 0, 1});
  EXPECT_EQ(text("bytes", 0), "");
  EXPECT_EQ(text("bytes", 1), "one");
  EXPECT_EQ(text("path", 2), "in/b");
  EXPECT_EQ(number("label", 1), -5);
  EXPECT_EQ(number("label", 2), 7);
  read(nodes::files("in/a", std::nullopt, ""), {0});
  EXPECT_EQ(chunk->spec()->leaves().size(), 2u);
}

TEST_F(WholeFilesTest, a_file_that_cannot_be_read_fails_alone) {
  (*files)["in/a"] = "one";
  (*files)["in/b"] = "two";
  const Node::Ref node = nodes::files("in/*", std::nullopt, "");
  read(node, {0});
  files->remove("in/a");
  chunk->reset(built.indexed->spec(), 2);
  const std::vector<uint64_t> both{0, 1};
  built.indexed->reader(context)->fetch({}, both, *chunk, 0);
  EXPECT_EQ(chunk->alive(), 2u);
  ASSERT_EQ(chunk->failures().size(), 1u);
  EXPECT_EQ(chunk->failures()[0].second.stage, "files(*)");
  try {
    std::rethrow_exception(chunk->failures()[0].second.error);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kNotFound);
    EXPECT_NE(std::string(error.what()).find("in/a"), std::string::npos);
  }
}

TEST_F(WholeFilesTest, one_label_for_each_file) {
  (*files)["in/a"] = "one";
  EXPECT_THROW(read(nodes::files("in/*", std::vector<int64_t>{1, 2}, ""), {0}), Error);
  EXPECT_THROW(nodes::files(std::vector<std::string>{}, std::nullopt, ""), Error);
}

TEST_F(WholeFilesTest, operations_on_images_that_follow_each_other_are_one_stage) {
  (*files)["in/a/0.png"] = grey_png(8, 6, 100);
  (*files)["in/b/0.png"] = grey_png(5, 9, 200);
  Dataset dataset = Dataset(nodes::image_folder("in", {}))
                        .map(image::decode())
                        .map(image::resize(4, 3))
                        .map(image::random_flip())
                        .map(image::normalize({50}, {10}))
                        .map(image::to_chw());
  read(dataset.node(), {0, 1});
  EXPECT_EQ(chunk->failures().size(), 0u);
  EXPECT_EQ(chunk->spec()->to_string(), "{image: float32 (3, 4, 3), label: int64 (), path: text}");
  for (uint32_t row : {0, 1}) {
    EXPECT_EQ(number("label", row), row);
    const auto* values = reinterpret_cast<const float*>(chunk->at(0, row));
    for (size_t i = 0; i < 36; ++i) EXPECT_EQ(values[i], row == 0 ? 5.0F : 15.0F);
  }
  EXPECT_EQ(builder->titles().back(), "map(image.to_chw())");
  EXPECT_EQ(builder->titles().size(), 6u);
}

TEST_F(WholeFilesTest, a_damaged_image_names_its_step_and_its_file) {
  (*files)["in/a/0.png"] = grey_png(8, 6, 100).substr(0, 40);
  Dataset dataset =
      Dataset(nodes::image_folder("in", {})).map(image::decode()).map(image::resize(4, 3));
  read(dataset.node(), {0});
  ASSERT_EQ(chunk->failures().size(), 1u);
  const Failure& failure = chunk->failures()[0].second;
  EXPECT_EQ(failure.stage, "map(image.decode(3))");
  EXPECT_EQ(failure.position, 0u);
  try {
    std::rethrow_exception(failure.error);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kDataLoss);
    EXPECT_NE(std::string(error.what()).find(", of in/a/0.png"), std::string::npos);
  }
}

}  // namespace
}  // namespace penstock
