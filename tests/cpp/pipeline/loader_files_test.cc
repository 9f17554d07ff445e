// Which files a Loader of a Dataset has open.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "numbers.h"
#include "penstock/pipeline/api/dataset.h"
#include "snapshot_folder.h"

namespace penstock {
namespace {

class LoaderFiles : public testing::SnapshotFolder {
 protected:
  Paths texts(int count) const {
    std::vector<std::string> paths;
    for (int i = 0; i < count; ++i) {
      paths.push_back(folder_ / std::to_string(i));
      std::ofstream(paths.back()) << "a\nb\nc\n";
    }
    return paths;
  }
  size_t open_there() const {
    size_t count = 0;
    for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;  // for the descriptor that reads this folder
      count += std::filesystem::read_symlink(fd, gone).string().starts_with(folder_.string());
    }
    return count;
  }
};

TEST_F(LoaderFiles, a_closed_loader_has_none_open) {
  for (const Dataset& dataset :
       {Dataset::lines(texts(4)), Dataset::lines(texts(4), {.stream = true}),
        Dataset::lines(texts(4)).shuffle({.seed = 1, .buffer = 3}),
        Dataset::lines(texts(4), {.stream = true}).shuffle({.seed = 1, .buffer = 3})}) {
    for (uint32_t workers : {0u, 2u}) {
      Loader loader = dataset.build({.workers = workers});
      EXPECT_TRUE(loader.next().has_value());
      EXPECT_GT(open_there(), 0u) << workers;
      loader.close();
      EXPECT_EQ(open_there(), 0u) << workers;
    }
  }
}

TEST_F(LoaderFiles, what_was_only_built_has_none_open) {
  const Dataset dataset = Dataset::lines(texts(4));
  EXPECT_EQ(dataset.build({.workers = 0}).size(), 12u);
  EXPECT_EQ(open_there(), 0u);
}

}  // namespace
}  // namespace penstock
