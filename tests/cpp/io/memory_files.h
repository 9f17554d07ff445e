#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/io/file.h"

namespace penstock {

// Files in memory, which fail on command. Open files see changes at once.
class MemoryFiles : public FileSystem {
 public:
  struct Content {
    std::string bytes;
    std::function<void()> before_read;  // may throw, or change the bytes
    std::atomic<int64_t> modified_ns{0};
  };

  // For writing; changes the file's modification time.
  std::string& operator[](const std::string& path) {
    Content& content = *at(path);
    content.modified_ns = ++clock_;
    return content.bytes;
  }
  void remove(const std::string& path) {  // open ones stay readable
    std::lock_guard lock(mutex_);
    if (contents_.erase(path) > 0) folder_changes(path);
  }
  std::atomic<int64_t>& modified_ns(const std::string& path) { return at(path)->modified_ns; }

  // Called at each read() of this file.
  void before_read(const std::string& path, std::function<void()> what) {
    at(path)->before_read = std::move(what);
  }

  std::shared_ptr<File> open(const std::string& path) override {
    ++opened;
    std::lock_guard lock(mutex_);
    if (*open_ >= descriptors) throw TooManyOpenFiles({Code::kSystem, "open", path});
    auto found = contents_.find(path);
    if (found == contents_.end()) throw Error(Code::kNotFound, "open", "no such file: " + path);
    return std::make_shared<Open>(*this, path, found->second);
  }

  std::unique_ptr<Sink> create(const std::string& path) override {
    if (read_only) throw Error(Code::kSystem, "create", path + ": nobody may write here");
    return std::make_unique<Writing>(*this, path);
  }

  Kind kind(const std::string& path) override {
    std::lock_guard lock(mutex_);
    if (contents_.contains(path)) return Kind::kFile;
    auto inside = contents_.lower_bound(path + "/");
    return inside != contents_.end() && inside->first.starts_with(path + "/") ? Kind::kFolder
                                                                              : Kind::kNothing;
  }

  std::vector<std::string> list(const std::string& folder) override {
    ++listed;
    std::vector<std::string> names;
    std::lock_guard lock(mutex_);
    for (const auto& [path, content] : contents_) {
      if (!path.starts_with(folder)) continue;
      std::string name = path.substr(folder.size(), path.find('/', folder.size()) - folder.size());
      if (names.empty() || names.back() != name) names.push_back(name);
    }
    return names;
  }

  std::optional<int64_t> folder_modified_ns(const std::string& folder) override {
    std::lock_guard lock(mutex_);
    const auto found = folders_.find(folder.substr(0, folder.find_last_not_of('/') + 1));
    return found == folders_.end() ? std::nullopt : std::optional(found->second);
  }

  std::atomic<int> listed{0};            // calls of list()
  std::atomic<int> opened{0}, reads{0};  // calls of open(), and contiguous reads
  std::atomic<int> expected{0};          // calls of File::will_need()
  size_t descriptors = SIZE_MAX;         // files that may be open
  uint64_t full_after = UINT64_MAX;      // bytes after which writing fails
  bool read_only = false;                // nothing can be created

 private:
  class Open : public TimestampedFile {
   public:
    Open(MemoryFiles& files, std::string path, std::shared_ptr<Content> content)
        : open_(files.open_), files_(files), path_(std::move(path)), content_(std::move(content)) {
      ++*open_;
    }
    ~Open() override { --*open_; }
    const std::string& path() const override { return path_; }
    uint64_t size() override { return content_->bytes.size(); }
    int64_t modified_ns() override { return content_->modified_ns; }
    void read(std::span<const Segment> segments) override {
      if (content_->before_read) content_->before_read();
      uint64_t end = UINT64_MAX;
      for (const Segment& segment : segments) {
        if (segment.offset < end || segment.offset - end > kGap) ++files_.reads;
        end = segment.offset + segment.bytes;
        if (end > size()) {
          throw Error(Code::kDataLoss, "read", path_ + " ends at byte " + std::to_string(size()));
        }
        if (segment.bytes > 0) {
          std::memcpy(segment.to, content_->bytes.data() + segment.offset, segment.bytes);
        }
      }
    }
    void will_need(uint64_t, uint64_t) noexcept override { ++files_.expected; }

   private:
    const std::shared_ptr<std::atomic<size_t>> open_;
    MemoryFiles& files_;
    const std::string path_;
    const std::shared_ptr<Content> content_;
  };

  class Writing : public Sink {
   public:
    Writing(MemoryFiles& files, std::string path) : files_(files), path_(std::move(path)) {}
    void write(std::span<const std::byte> bytes) override {
      if (bytes_.size() + bytes.size() > files_.full_after) {
        throw Error(Code::kSystem, "write", path_ + ": the disk is full");
      }
      bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    void commit() override { files_[path_] = bytes_; }

   private:
    MemoryFiles& files_;
    const std::string path_;
    std::string bytes_;
  };

  std::shared_ptr<Content> at(const std::string& path) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<Content>& content = contents_[path];
    if (content == nullptr) {
      content = std::make_shared<Content>();
      folder_changes(path);
    }
    return content;
  }

  // A name in the folder of `path` appeared or vanished, and perhaps that of the folder. Under the
  // mutex.
  void folder_changes(std::string path) {
    bool known = false;
    while (!known && !path.empty()) {
      const size_t slash = path.rfind('/');
      path.resize(slash == path.npos ? 0 : slash);
      known = folders_.contains(path);
      folders_[path] = ++clock_;
    }
  }

  // Shared, because files may be closed after this was destroyed.
  const std::shared_ptr<std::atomic<size_t>> open_ = std::make_shared<std::atomic<size_t>>(0);
  std::atomic<int64_t> clock_{0};
  std::mutex mutex_;  // of the map

  std::map<std::string, std::shared_ptr<Content>> contents_;
  std::map<std::string, int64_t> folders_;  // their modification times
};

}  // namespace penstock
