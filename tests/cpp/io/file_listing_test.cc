#include "penstock/io/file_listing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "memory_files.h"

namespace penstock {
namespace {

struct FileListingTest : ::testing::Test {
  FileListingTest() {
    for (int i = 0; i < 40; ++i) files["root/b/" + std::to_string(100 + i) + ".jpg"];
    for (int i = 0; i < 10; ++i) files["root/a/in/" + std::to_string(i) + ".PNG"];
    files["root/a/x.JPEG"];
    files["root/a/.hidden.jpg"];
    files["root/a/notes.txt"];
    files["root/.cache/0.jpg"];
    files["root/loose.jpg"];
  }
  std::vector<std::pair<std::string, int64_t>> listed(const ImageFolderQuery& query) {
    auto listing = list_image_folder(files, "root", query, nullptr);
    std::vector<std::pair<std::string, int64_t>> all;
    for (uint64_t i = 0; i < listing->size(); ++i) {
      all.emplace_back(listing->path(i), listing->label(i));
    }
    return all;
  }
  Code refused(const std::string& root, const ImageFolderQuery& query) {
    try {
      list_image_folder(files, root, query, nullptr);
    } catch (const Error& error) {
      return error.code();
    }
    return Code::kInternal;
  }

  MemoryFiles files;
};

TEST_F(FileListingTest, folders_are_classes_and_names_are_sorted) {
  const auto all = listed({});
  ASSERT_EQ(all.size(), 51u);
  EXPECT_EQ(all[0], (std::pair<std::string, int64_t>{"root/a/in/0.PNG", 0}));
  EXPECT_EQ(all[10], (std::pair<std::string, int64_t>{"root/a/x.JPEG", 0}));
  EXPECT_EQ(all[11], (std::pair<std::string, int64_t>{"root/b/100.jpg", 1}));
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  EXPECT_EQ(listed({.classes = {"b"}}).front().second, 0);
  EXPECT_EQ(listed({.include = "*.txt"}).size(), 1u);
}

TEST_F(FileListingTest, names_of_classes_are_in_the_order_of_labels) {
  EXPECT_EQ(image_classes(files, "root", false), (std::vector<std::string>{"a", "b"}));
  EXPECT_THROW(image_classes(files, "root/b", false), Error);
  EXPECT_THROW(image_classes(files, "nothing", false), Error);
}

TEST_F(FileListingTest, two_subsets_have_every_file_once_in_every_class) {
  for (double split : {0.01, 0.1, 0.25, 0.5, 0.99}) {
    ImageFolderQuery query{.validation_split = split, .validation = true, .seed = 5};
    const auto validation = listed(query);
    query.validation = false;
    auto all = listed(query);
    for (int64_t label : {0, 1}) {
      const auto count = std::count_if(validation.begin(), validation.end(),
                                       [&](const auto& file) { return file.second == label; });
      EXPECT_EQ(count, std::lround((label == 0 ? 11 : 40) * split));
    }
    all.insert(all.end(), validation.begin(), validation.end());
    EXPECT_EQ(all.size(), 51u);
    EXPECT_EQ(std::set(all.begin(), all.end()).size(), 51u);
  }
}

TEST_F(FileListingTest, a_class_is_split_by_itself) {
  ImageFolderQuery query{.validation_split = 0.25, .validation = true, .seed = 5};
  auto both = listed(query);
  std::erase_if(both, [](const auto& file) { return file.second == 0; });
  query.classes = {"b"};
  auto one = listed(query);
  for (auto& file : one) file.second = 1;
  EXPECT_EQ(one, both);
  query.seed = 6;
  EXPECT_NE(listed(query),
            listed({.classes = {"b"}, .validation_split = 0.25, .validation = true, .seed = 5}));
}

TEST_F(FileListingTest, what_is_not_there_is_said) {
  EXPECT_EQ(refused("nowhere", {}), Code::kNotFound);
  EXPECT_EQ(refused("root/b", {}), Code::kNotFound);
  EXPECT_EQ(refused("root", {.classes = {"c"}}), Code::kNotFound);
  EXPECT_EQ(refused("root", {.include = "*.gif"}), Code::kNotFound);
  std::string deep = "deep/a";
  for (int i = 0; i < 70; ++i) deep += "/in";
  files[deep + "/0.jpg"];
  EXPECT_EQ(refused("deep", {}), Code::kInvalidArgument);
}

TEST_F(FileListingTest, listing_can_be_stopped) {
  Progress progress;
  progress.stop = true;
  try {
    list_image_folder(files, "root", {}, &progress);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kClosed);
  }
}

TEST_F(FileListingTest, parts_that_do_not_fit_together_are_refused) {
  const std::string paths = "aabb";
  const std::vector<uint64_t> ends{2, 4}, beyond{2, 5}, back{3, 2};
  const std::vector<int64_t> labels{7, 8}, few{7};
  const FileListing good({paths, ends, labels}, nullptr);
  EXPECT_EQ(good.path(1), "bb");
  EXPECT_EQ(good.label(1), 8);
  EXPECT_FALSE(FileListing({paths, ends, {}}, nullptr).labelled());
  EXPECT_THROW(FileListing({paths, beyond, labels}, nullptr), Error);
  EXPECT_THROW(FileListing({paths, back, labels}, nullptr), Error);
  EXPECT_THROW(FileListing({paths, ends, few}, nullptr), Error);
}

}  // namespace
}  // namespace penstock
