#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/io/file.h"
#include "penstock/io/record_index.h"

namespace penstock {

// Many files, by number, and perhaps a label of each: 16 bytes a file and its path. Immutable: any
// thread.
class FileListing {
 public:
  // The arrays, for another process that maps them.
  struct Parts {
    std::span<const char> paths;      // one after the other
    std::span<const uint64_t> ends;   // of each path
    std::span<const int64_t> labels;  // none, or one for each file
  };
  class Builder;

  // `owner` keeps the parts alive. Error kInvalidArgument: the parts do not fit together.
  FileListing(const Parts& parts, std::shared_ptr<const void> owner);

  uint64_t size() const { return parts_.ends.size(); }
  bool labelled() const { return !parts_.labels.empty(); }
  const Parts& parts() const { return parts_; }
  // REQUIRED: file < size(); of label(): labelled().
  std::string_view path(uint64_t file) const {
    const uint64_t begin = file == 0 ? 0 : parts_.ends[file - 1];
    return {parts_.paths.data() + begin, static_cast<size_t>(parts_.ends[file] - begin)};
  }
  int64_t label(uint64_t file) const { return parts_.labels[file]; }

 private:
  Parts parts_;
  std::shared_ptr<const void> owner_;
};

// One thread.
class FileListing::Builder {
 public:
  void add(std::string_view path);
  void add(std::string_view path, int64_t label) {
    add(path);
    lists_.labels.push_back(label);
  }
  uint64_t size() const { return lists_.ends.size(); }
  // The Builder is empty afterwards.
  std::shared_ptr<const FileListing> finish();

 private:
  struct Lists {
    std::string paths;
    std::vector<uint64_t> ends;
    std::vector<int64_t> labels;
  };
  Lists lists_;
};

// Which files of a folder's folders are listed.
struct ImageFolderQuery {
  std::vector<std::string> classes = {};  // in the order of their labels; none: all, sorted
  // This part of each class, or the others.
  std::optional<double> validation_split = {};
  bool validation = false;
  uint64_t seed = 0;
  std::string include = {};  // a pattern of names, as of a shell; "": images that are decoded
  bool follow_links = false;
  // What the folders list is stored beside the root, and only folders that changed are listed again
  // (folder_index.h).
  bool keep_folders = false;
};

// The images in the folders of `root`, at any depth. A folder of it is a class, whose number is the
// files' label. Classes and, in each, names are sorted bytewise; names that begin with a dot are
// left out. Which files of a class are its validation files depends only on the seed, the class's
// name and the number of its files: of n files round(n * validation_split), and the two subsets of
// one seed have no file in common. `progress` may be nullptr.
//
// Error kNotFound: no such folder, no folder in it, none of a given name, no image at all;
// kInvalidArgument: folders lie in each other more than 64 deep, as when a link leads back;
// kClosed: stopped.
std::shared_ptr<const FileListing> list_image_folder(FileSystem& files, const std::string& root,
                                                     const ImageFolderQuery& query,
                                                     Progress* progress);

// The names of the classes in `root`, in the order of their labels. Error kNotFound: no such
// folder, no folder in it.
std::vector<std::string> image_classes(FileSystem& files, const std::string& root,
                                       bool follow_links);

}  // namespace penstock
