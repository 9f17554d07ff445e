#include "penstock/io/remote_files.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/file.h"

namespace penstock {
namespace {

// Enough for the first bytes, by which compression is recognised, and for a header.
constexpr uint64_t kFrontBytes = 64 << 10;

std::shared_ptr<RemoteFiles>& access() {
  static std::shared_ptr<RemoteFiles> remote;
  return remote;
}

class RemoteFile final : public File {
 public:
  RemoteFile(std::string url, const RemoteFiles::About& about)
      : url_(std::move(url)), about_(about) {}
  RemoteFile(std::string url, const File::Identity& identity) : url_(std::move(url)) {
    about_.identity = identity;
    about_.bytes = copy().size();
  }

  const std::string& path() const override { return url_; }
  uint64_t size() override { return about_.bytes; }
  Identity identity() override { return about_.identity; }

  void read(std::span<const Segment> segments) override {
    if (ready_.load(std::memory_order_acquire) == nullptr && read_front(segments)) return;
    copy().read(segments);
  }

  void will_need(uint64_t offset, uint64_t bytes) noexcept override {
    if (File* file = ready_.load(std::memory_order_acquire)) file->will_need(offset, bytes);
  }

  Mapping mapping() noexcept override {
    File* file = ready_.load(std::memory_order_acquire);
    return file == nullptr ? Mapping() : file->mapping();
  }

 private:
  File& copy() {
    if (File* file = ready_.load(std::memory_order_acquire)) return *file;
    std::lock_guard lock(mutex_);
    if (copy_ == nullptr) {
      copy_ = posix_file(url_, remote_files(url_).fetch(url_, about_.identity));
      front_ = {};
      ready_.store(copy_.get(), std::memory_order_release);
    }
    return *copy_;
  }

  // True: the first bytes were enough.
  bool read_front(std::span<const Segment> segments) {
    const bool within = std::ranges::all_of(segments, [this](const Segment& segment) {
      return segment.offset + segment.bytes <= std::min(kFrontBytes, about_.bytes);
    });
    if (!within) return false;
    std::lock_guard lock(mutex_);
    if (copy_ != nullptr) return false;
    if (!asked_) {
      front_ = remote_files(url_).front(url_, about_, std::min(kFrontBytes, about_.bytes));
      asked_ = true;
    }
    for (const Segment& segment : segments) {
      if (segment.offset + segment.bytes > front_.size()) return false;
      std::memcpy(segment.to, front_.data() + segment.offset, segment.bytes);
    }
    return true;
  }

  const std::string url_;
  RemoteFiles::About about_;
  std::mutex mutex_;
  // With the lock:
  std::vector<std::byte> front_;
  bool asked_ = false;  // for front_
  std::shared_ptr<File> copy_;
  std::atomic<File*> ready_{nullptr};  // copy_, once it is there
};

}  // namespace

bool is_url(std::string_view name) {
  const size_t end = name.find("://");
  if (end == name.npos || end < 2) return false;
  return std::ranges::all_of(name.substr(0, end), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '-' || c == '.' || c == ':';
  });
}

std::string_view without_query(std::string_view name) {
  return is_url(name) ? name.substr(0, name.find('?')) : name;
}

void set_remote_files(std::shared_ptr<RemoteFiles> remote) { access() = std::move(remote); }

RemoteFiles& remote_files(const std::string& url) {
  if (access() == nullptr) {
    throw Error(Code::kInvalidArgument, "open",
                url +
                    " is a URL, and this program has no access to those: "
                    "set_remote_files() gives it one");
  }
  return *access();
}

void announce_remote(const std::vector<std::string>& urls) noexcept {
  if (access() != nullptr) access()->announce(urls);
}

std::shared_ptr<File> open_remote(const std::string& url, const File::Identity& identity) {
  if (identity.known()) return std::make_shared<RemoteFile>(url, identity);
  return std::make_shared<RemoteFile>(url, remote_files(url).find(url));
}

}  // namespace penstock
