#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/io/file.h"

namespace penstock {

// The files below a folder, with what each folder lists stored in `<root>.penstock-index`, so that
// later runs need not list the folders again; docs/formats.md has the bytes. Of each folder the
// index records the modification time. A folder that has another time is listed again, and the
// others are not. So is a folder that changed within the last two seconds, because file systems
// record times in steps. The kinds of links are those that they had when their folder was listed.
//
// One thread. The destructor stores nothing; call store().
class FolderIndex : public FileSystem {
 public:
  // Reads the stored index of `root` ("" or ".": the working directory); a damaged one is ignored.
  // By a URL there is none. `files` must outlive the FolderIndex.
  FolderIndex(FileSystem& files, const std::string& root);
  FolderIndex(const FolderIndex&) = delete;
  FolderIndex& operator=(const FolderIndex&) = delete;

  // Sorted by name. Folders beyond the root are listed by `files`.
  std::vector<Entry> entries(const std::string& folder) override;

  // Stores the index, if a folder was listed anew. A failure to do so (a read-only folder, a full
  // disk) is ignored. Several processes may store one index at the same time.
  void store();

  std::shared_ptr<File> open(const std::string& path) override { return files_.open(path); }
  std::unique_ptr<Sink> create(const std::string& path) override { return files_.create(path); }
  Kind kind(const std::string& path) override { return files_.kind(path); }
  std::vector<std::string> list(const std::string& folder) override { return files_.list(folder); }
  std::optional<int64_t> folder_modified_ns(const std::string& folder) override {
    return files_.folder_modified_ns(folder);
  }

 private:
  struct Folder {
    int64_t modified_ns = 0;
    uint64_t entries = 0;
    std::span<const std::byte> list;  // of `stored_` or of `made`
    std::vector<std::byte> made = {};
    bool current = false;  // known to be as it is now
  };

  void read(File& index);
  void keep(const std::string& name, int64_t modified_ns, const std::vector<Entry>& entries);

  FileSystem& files_;
  std::string root_;   // ends with '/', or is empty
  std::string index_;  // the index's path; empty: none
  std::vector<std::byte> stored_;
  std::map<std::string, Folder> folders_;  // by their path below the root, without '/' at its end
  bool changed_ = false;
};

}  // namespace penstock
