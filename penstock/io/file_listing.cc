#include "penstock/io/file_listing.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

#include "penstock/base/bijection.h"
#include "penstock/base/error.h"
#include "penstock/base/random.h"
#include "penstock/io/crc32c.h"
#include "penstock/io/folder_index.h"

namespace penstock {
namespace {

constexpr const char* kImageFolder = "image_folder";
constexpr std::string_view kImages[] = {".bmp", ".gif", ".jpeg", ".jpg",
                                        ".pgm", ".png", ".ppm",  ".webp"};

bool has_suffix(std::string_view name, std::string_view suffix) {
  if (name.size() < suffix.size()) return false;
  return std::equal(suffix.begin(), suffix.end(), name.end() - static_cast<long>(suffix.size()),
                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + 32 : b); });
}

class FolderWalk {
 public:
  FolderWalk(FileSystem& files, const ImageFolderQuery& query, Progress* progress)
      : files_(files), query_(query), progress_(progress) {}

  // The files in `folder`, at any depth.
  std::vector<std::string> files_in(const std::string& folder) {
    std::vector<std::string> found;
    add(folder, 0, found);
    return found;
  }

  std::vector<std::string> classes_of(const std::string& root) {
    if (files_.kind(root) != FileSystem::Kind::kFolder) {
      throw Error(Code::kNotFound, kImageFolder, "no such folder: " + root);
    }
    std::vector<std::string> classes;
    for (const FileSystem::Entry& entry : sorted_entries(root)) {
      if (enters(entry)) classes.push_back(entry.name);
    }
    if (classes.empty()) {
      throw Error(Code::kNotFound, kImageFolder,
                  root +
                      " has no folder; each class is a folder of images in it. Dataset.files "
                      "takes images without classes");
    }
    return classes;
  }

 private:
  std::vector<FileSystem::Entry> sorted_entries(const std::string& folder) {
    if (progress_ != nullptr) progress_->reached(seen_, folder);
    std::vector<FileSystem::Entry> entries = files_.entries(folder + "/");
    std::erase_if(entries, [](const FileSystem::Entry& entry) { return entry.name[0] == '.'; });
    const auto in_order = [](const auto& a, const auto& b) { return a.name < b.name; };
    if (!std::is_sorted(entries.begin(), entries.end(), in_order)) {
      std::sort(entries.begin(), entries.end(), in_order);
    }
    seen_ += entries.size();
    return entries;
  }

  bool enters(const FileSystem::Entry& entry) const {
    return entry.kind == FileSystem::Kind::kFolder && (query_.follow_links || !entry.link);
  }

  static constexpr int kDeepest = 64;

  void add(const std::string& folder, int depth, std::vector<std::string>& found) {
    if (depth > kDeepest) {
      throw Error(Code::kInvalidArgument, kImageFolder,
                  "folders lie in each other more than 64 deep: " + folder +
                      "; does a link lead back? follow_links=False follows none");
    }
    for (const FileSystem::Entry& entry : sorted_entries(folder)) {
      const bool enter = enters(entry);
      if (!enter && (entry.kind != FileSystem::Kind::kFile || !wanted(entry.name))) continue;
      std::string path;
      path.reserve(folder.size() + 1 + entry.name.size());
      path.append(folder).append("/").append(entry.name);
      if (enter) {
        add(path, depth + 1, found);
      } else {
        found.push_back(std::move(path));
      }
    }
  }

  bool wanted(const std::string& name) const {
    if (!query_.include.empty()) return fnmatch(query_.include.c_str(), name.c_str(), 0) == 0;
    return std::any_of(std::begin(kImages), std::end(kImages),
                       [&](std::string_view suffix) { return has_suffix(name, suffix); });
  }

  FileSystem& files_;
  const ImageFolderQuery& query_;
  Progress* progress_;
  uint64_t seen_ = 0;
};

// Of `count` files of a class, which ones are in the subset that is asked for.
std::vector<bool> chosen(const ImageFolderQuery& query, const std::string& name, uint64_t count) {
  std::vector<bool> chosen(count, true);
  if (!query.validation_split) return chosen;
  const auto validation =
      static_cast<uint64_t>(std::round(static_cast<double>(count) * *query.validation_split));
  const uint64_t key =
      derive_key(query.seed, crc32c(std::as_bytes(std::span(name)), 0), KeyUse::kSplit);
  const Bijection order(count, key);
  for (uint64_t i = 0; i < count; ++i) {
    chosen[i] = (order(i) < validation) == query.validation;
  }
  return chosen;
}

}  // namespace

FileListing::FileListing(const Parts& parts, std::shared_ptr<const void> owner)
    : parts_(parts), owner_(std::move(owner)) {
  uint64_t before = 0;
  bool fits = parts.labels.empty() || parts.labels.size() == parts.ends.size();
  for (uint64_t end : parts.ends) {
    fits = fits && end >= before && end <= parts.paths.size();
    before = end;
  }
  if (!fits) throw Error(Code::kInvalidArgument, "files", "the listing is damaged");
}

void FileListing::Builder::add(std::string_view path) {
  lists_.paths += path;
  lists_.ends.push_back(lists_.paths.size());
}

std::shared_ptr<const FileListing> FileListing::Builder::finish() {
  auto lists = std::make_shared<const Lists>(std::move(lists_));
  lists_ = {};
  return std::make_shared<const FileListing>(Parts{lists->paths, lists->ends, lists->labels},
                                             lists);
}

std::vector<std::string> image_classes(FileSystem& files, const std::string& root,
                                       bool follow_links) {
  const ImageFolderQuery query{.follow_links = follow_links};
  return FolderWalk(files, query, nullptr).classes_of(root);
}

std::shared_ptr<const FileListing> list_image_folder(FileSystem& files, const std::string& root,
                                                     const ImageFolderQuery& query,
                                                     Progress* progress) {
  if (query.keep_folders) {
    ImageFolderQuery plain = query;
    plain.keep_folders = false;
    FolderIndex index(files, root);
    auto listing = list_image_folder(index, root, plain, progress);
    index.store();
    return listing;
  }
  FolderWalk walk(files, query, progress);
  const std::vector<std::string> classes =
      query.classes.empty() ? walk.classes_of(root) : query.classes;
  FileListing::Builder listing;
  uint64_t all = 0;
  for (size_t label = 0; label < classes.size(); ++label) {
    const std::string folder = root + "/" + classes[label];
    if (files.kind(folder) != FileSystem::Kind::kFolder) {
      throw Error(Code::kNotFound, kImageFolder, "no such folder: " + folder);
    }
    const std::vector<std::string> found = walk.files_in(folder);
    const std::vector<bool> wanted = chosen(query, classes[label], found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      if (wanted[i]) listing.add(found[i], static_cast<int64_t>(label));
    }
    all += found.size();
  }
  if (all == 0) {
    throw Error(
        Code::kNotFound, kImageFolder,
        "no image in the folders of " + root +
            (query.include.empty() ? ": no .jpg, .png or the like; include takes other names"
                                   : " is named " + query.include));
  }
  return listing.finish();
}

}  // namespace penstock
