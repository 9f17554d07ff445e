#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/base/os.h"
#include "penstock/io/file.h"

namespace penstock {

// True for a URL, such as "https://host/train.tar" or "simplecache::s3://bucket/train.tar". False
// for a path.
bool is_url(std::string_view name);
// A URL as far as it names a file: without its parameters. A path as it is.
std::string_view without_query(std::string_view name);

// Access to files that URLs name. The engine itself has none: Python's front sets one that uses
// fsspec. Each version of a file has an identity. Any thread; members wait for servers, and call
// Cancellation::check() meanwhile.
class RemoteFiles {
 public:
  struct About {
    uint64_t bytes = 0;
    File::Identity identity;
  };

  virtual ~RemoteFiles() = default;

  // The URLs that a pattern matches, sorted; of a URL that is no pattern, itself. The versions of
  // these are looked up anew when they are opened. Error kNotFound: there is none; kSystem.
  virtual std::vector<std::string> glob(const std::string& url) = 0;
  // The names in a folder, which ends with '/'; empty if it cannot be listed. Error kSystem.
  virtual std::vector<FileSystem::Entry> list(const std::string& folder) = 0;
  // Error kNotFound; kInvalidArgument: a folder, or an unknown kind of URL; kSystem.
  virtual About find(const std::string& url) = 0;
  // The first bytes of a version, at most `bytes`. Empty: read its copy. Errors: as of find().
  virtual std::vector<std::byte> front(const std::string& url, const About& about,
                                       uint64_t bytes) = 0;
  // The local copy of a version, complete. Error kDataLoss: that version is gone; as of find().
  virtual os::Fd fetch(const std::string& url, const File::Identity& identity) = 0;
  // Fetches these in the background, because they will be read soon.
  virtual void announce(const std::vector<std::string>& urls) noexcept = 0;
};

// Sets the process's access, once, before any URL is opened.
void set_remote_files(std::shared_ptr<RemoteFiles> remote);
// Error kInvalidArgument: there is none.
RemoteFiles& remote_files(const std::string& url);

// A File by URL. Its copy is fetched when more than its first bytes are read. `identity` known: of
// the version that was found before. Errors: as of FileSystem::open().
std::shared_ptr<File> open_remote(const std::string& url, const File::Identity& identity = {});
// RemoteFiles::announce(), if there is access.
void announce_remote(const std::vector<std::string>& urls) noexcept;

}  // namespace penstock
