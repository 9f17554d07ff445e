#include "penstock/io/glob.h"

#include <gtest/gtest.h>

#include "memory_files.h"
#include "penstock/base/error.h"
#include "tests/cpp/errors.h"

namespace penstock {
namespace {

using Names = std::vector<std::string>;

struct GlobTest : ::testing::Test {
  GlobTest() {
    for (const char* path : {"b-2", "b-10", "a/x.tfrecord", "a/y.tfrecord", "a/.z.tfrecord",
                             "c/x.tfrecord", "c/deep/x.tfrecord", "what[1]?"}) {
      files[path] = "";
    }
  }
  Code code_of(const Paths& paths) {
    return testing::code_of([&] { glob(files, paths); });
  }
  MemoryFiles files;
};

TEST_F(GlobTest, files_of_a_pattern_are_sorted_by_name) {
  EXPECT_EQ(glob(files, "b-*"), (Names{"b-10", "b-2"}));
  EXPECT_EQ(glob(files, "b-?"), (Names{"b-2"}));
  EXPECT_EQ(glob(files, "[ab]-[0-9]"), (Names{"b-2"}));
}

TEST_F(GlobTest, patterns_match_folders_too_but_no_slash) {
  EXPECT_EQ(glob(files, "*/x.tfrecord"), (Names{"a/x.tfrecord", "c/x.tfrecord"}));
  EXPECT_EQ(glob(files, "c/*/x*"), (Names{"c/deep/x.tfrecord"}));
}

TEST_F(GlobTest, hidden_files_are_found_only_by_their_dot) {
  EXPECT_EQ(glob(files, "a/*"), (Names{"a/x.tfrecord", "a/y.tfrecord"}));
  EXPECT_EQ(glob(files, "a/.*"), (Names{"a/.z.tfrecord"}));
}

TEST_F(GlobTest, indices_beside_files_are_found_only_by_their_names) {
  files["a/x.tfrecord.penstock-index"] = "";
  EXPECT_EQ(glob(files, "a/*"), (Names{"a/x.tfrecord", "a/y.tfrecord"}));
  EXPECT_EQ(glob(files, "a/x.tfrecord.penstock-index"), (Names{"a/x.tfrecord.penstock-index"}));
  EXPECT_EQ(code_of("a/*.penstock-index"), Code::kNotFound);
}

TEST_F(GlobTest, folders_are_no_files) { EXPECT_EQ(glob(files, "?*").size(), 3u); }

TEST_F(GlobTest, a_list_keeps_its_order_and_its_repetitions) {
  EXPECT_EQ(glob(files, {"b-2", "a/*", "b-2"}),
            (Names{"b-2", "a/x.tfrecord", "a/y.tfrecord", "b-2"}));
}

TEST_F(GlobTest, a_file_of_just_that_name_is_meant) {
  EXPECT_EQ(glob(files, "what[1]?"), (Names{"what[1]?"}));
}

TEST_F(GlobTest, what_is_not_there_is_an_error) {
  EXPECT_EQ(code_of("b-3"), Code::kNotFound);
  EXPECT_EQ(code_of("b-3*"), Code::kNotFound);
  EXPECT_EQ(code_of({"b-2", "nowhere/*"}), Code::kNotFound);
  EXPECT_EQ(code_of(Names{}), Code::kInvalidArgument);
}

}  // namespace
}  // namespace penstock
