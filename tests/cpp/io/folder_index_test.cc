#include "penstock/io/folder_index.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "memory_files.h"
#include "penstock/io/file_listing.h"
#include "penstock/io/glob.h"

namespace penstock {
namespace {

using Names = std::vector<std::string>;

struct FolderIndexTest : ::testing::Test {
  FolderIndexTest() {
    for (int i = 0; i < 20; ++i) files["root/b/" + std::to_string(100 + i) + ".jpg"];
    for (int i = 0; i < 5; ++i) files["root/a/in/" + std::to_string(i) + ".png"];
    files["root/a/notes.txt"];
    files["root/a/.hidden.jpg"];
  }
  Names names(ImageFolderQuery query = {}) {
    query.keep_folders = true;
    const auto listing = list_image_folder(files, "root", query, nullptr);
    Names all;
    for (uint64_t i = 0; i < listing->size(); ++i) all.emplace_back(listing->path(i));
    query.keep_folders = false;
    const auto plain = list_image_folder(unkept(), "root", query, nullptr);
    EXPECT_EQ(plain->size(), all.size());
    for (uint64_t i = 0; i < plain->size(); ++i) EXPECT_EQ(plain->path(i), all[i]);
    return all;
  }
  // How many folders are listed for the names.
  int listed(const ImageFolderQuery& query = {}) {
    ImageFolderQuery kept = query;
    kept.keep_folders = true;
    const int before = files.listed;
    list_image_folder(files, "root", kept, nullptr);
    return files.listed - before;
  }
  FileSystem& unkept() { return files; }

  MemoryFiles files;
  const std::string index = "root.penstock-index";
};

TEST_F(FolderIndexTest, folders_are_listed_once) {
  EXPECT_EQ(listed(), 4);
  EXPECT_FALSE(files[index].empty());
  EXPECT_EQ(listed(), 0);
  EXPECT_EQ(names().size(), 25u);
}

TEST_F(FolderIndexTest, any_query_uses_one_index) {
  listed();
  EXPECT_EQ(listed({.include = "*.txt"}), 0);
  EXPECT_EQ(names({.include = "*.txt"}), Names{"root/a/notes.txt"});
  EXPECT_EQ(listed({.classes = {"b"}, .validation_split = 0.5, .validation = true}), 0);
  EXPECT_EQ(names({.classes = {"b"}, .validation_split = 0.5}).size(), 10u);
}

TEST_F(FolderIndexTest, a_folder_that_is_not_asked_for_stays) {
  EXPECT_EQ(listed({.classes = {"b"}}), 1);
  EXPECT_EQ(listed(), 3);
  files["root/b/new.jpg"];
  EXPECT_EQ(listed({.classes = {"b"}}), 1);
  EXPECT_EQ(listed(), 0);
}

TEST_F(FolderIndexTest, only_a_folder_that_changed_is_listed_again) {
  listed();
  files["root/a/in/9.png"];
  files.remove("root/b/100.jpg");
  const Names all = names();
  EXPECT_EQ(all.size(), 25u);
  EXPECT_EQ(all[5], "root/a/in/9.png");
  EXPECT_EQ(all[6], "root/b/101.jpg");
  EXPECT_EQ(listed(), 0);
  files["root/c/0.jpg"];
  EXPECT_EQ(listed(), 2);  // the root and the new folder
  EXPECT_EQ(listed(), 0);
}

TEST_F(FolderIndexTest, without_a_place_to_write_nothing_is_kept) {
  files.read_only = true;
  EXPECT_EQ(listed(), 4);
  EXPECT_EQ(listed(), 4);
  files.read_only = false;
  files.full_after = 10;
  EXPECT_EQ(listed(), 4);
  EXPECT_EQ(names().size(), 25u);
}

TEST_F(FolderIndexTest, any_damage_makes_the_index_again) {
  listed();
  const std::string sound = files[index];
  for (size_t i = 0; i < sound.size(); ++i) {
    std::string& bytes = files[index];
    bytes = sound;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x10);
    EXPECT_EQ(listed(), 4) << i;
    EXPECT_EQ(files[index], sound);
    files[index] = sound.substr(0, i);
    EXPECT_EQ(listed(), 4) << i;
  }
  files[index] = sound + "x";
  EXPECT_EQ(listed(), 4);
}

TEST_F(FolderIndexTest, patterns_have_the_index_of_the_folder_before_their_wildcard) {
  const Names found = glob(files, "root/*/*.jpg", true);
  EXPECT_EQ(found, glob(files, "root/*/*.jpg"));
  EXPECT_EQ(found.size(), 20u);
  EXPECT_EQ(listed(), 1);  // a/in, which no component of the pattern matches
  const int before = files.listed;
  EXPECT_EQ(glob(files, {"root/b/10*.jpg", "root/*/*.txt"}, true).size(), 11u);
  EXPECT_EQ(files.listed - before, 2);  // root/b has an index of its own, which is new in root
  EXPECT_FALSE(files["root/b.penstock-index"].empty());
}

TEST_F(FolderIndexTest, a_name_that_does_not_fit_is_not_kept) {
  files["root/b/" + std::string(300, 'x') + ".jpg"];
  EXPECT_EQ(listed(), 4);
  EXPECT_EQ(listed(), 1);
  EXPECT_EQ(names().size(), 26u);
}

}  // namespace
}  // namespace penstock
