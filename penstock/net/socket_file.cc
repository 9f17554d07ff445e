#include "penstock/net/socket_file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/net/user_folder.h"

namespace penstock::net {
namespace {

constexpr char kListen[] = "listen";

bool is_socket(const std::string& path) {
  struct stat is {};
  return lstat(path.c_str(), &is) == 0 && S_ISSOCK(is.st_mode);
}

// 0: connected; or an errno.
int probe(const SocketAddress& address, os::Fd& fd) {
  fd = make_socket(address);
  return ::connect(fd.get(), address.get(), address.length) == 0 ? 0 : errno;
}

Error taken(const SocketAddress& address, int why, const os::Fd& connected) {
  std::string by = "another process";
  if (why == 0) {
    if (const auto who = unix_peer(connected.get())) {
      by = "process " + std::to_string(who->pid);
      if (who->user != geteuid()) by += " of another user, " + std::to_string(who->user);
    }
  }
  const std::string what = address.name.empty() ? address.text() + " is in use: "
                                                : "the name '" + address.name + "' is taken: ";
  return Error(Code::kInvalidArgument, kListen, what + by + " serves it");
}

// The paths of Unix sockets in this network namespace.
std::set<std::string> paths_in_use() {
  std::set<std::string> paths;
  std::ifstream list("/proc/net/unix");
  for (std::string line; std::getline(list, line);) {
    if (const size_t at = line.find('/'); at != std::string::npos) paths.insert(line.substr(at));
  }
  return paths;
}

// Removes the sockets of killed processes from a folder. REQUIRED: the folder is locked. Sockets
// that are in use are not connected to, except those of other network namespaces.
void remove_dead_sockets(const std::filesystem::path& folder) {
  std::error_code failed;
  std::filesystem::directory_iterator files(folder, failed);
  if (failed) return;
  std::set<std::string> in_use;
  for (const auto end = std::filesystem::directory_iterator(); files != end;
       files.increment(failed)) {
    const std::string path = files->path();
    if (!is_socket(path)) continue;
    if (in_use.empty()) in_use = paths_in_use();
    if (in_use.contains(path)) continue;
    os::Fd fd;
    if (probe(resolve("unix:" + path).front(), fd) == ECONNREFUSED) unlink(path.c_str());
  }
}

}  // namespace

SocketFile::SocketFile(const SocketAddress& address) {
  const std::filesystem::path file = address.file();
  const FolderLock lock(file.parent_path());
  os::Fd fd = make_socket(address);
  fchmod(fd.get(), S_IRUSR | S_IWUSR);  // Linux gives the file these permissions
  int error = bind(fd.get(), address.get(), address.length) == 0 ? 0 : errno;
  if (error == EADDRINUSE && is_socket(file)) {
    os::Fd connected;
    const int why = probe(address, connected);
    if (why != ECONNREFUSED) throw taken(address, why, connected);
    unlink(file.c_str());
    error = bind(fd.get(), address.get(), address.length) == 0 ? 0 : errno;
  }
  if (error == EADDRINUSE) {
    throw Error(Code::kInvalidArgument, kListen,
                address.text() + " is in use: " + file.string() + " exists, and is no socket");
  }
  struct stat is {};
  if (error == 0 && (lstat(file.c_str(), &is) != 0 || ::listen(fd.get(), SOMAXCONN) != 0)) {
    error = errno;
    unlink(file.c_str());
  }
  if (error != 0) throw Error::from_errno(error, kListen, "cannot listen at " + address.text());
  fd_ = std::move(fd);
  path_ = file;
  device_ = is.st_dev;
  inode_ = is.st_ino;
  if (!address.name.empty()) remove_dead_sockets(file.parent_path());
}

SocketFile::SocketFile(SocketFile&& other) noexcept { *this = std::move(other); }

SocketFile& SocketFile::operator=(SocketFile&& other) noexcept {
  if (this == &other) return *this;
  close();
  fd_ = std::move(other.fd_);
  path_ = std::exchange(other.path_, {});
  device_ = other.device_;
  inode_ = other.inode_;
  return *this;
}

// The file of a socket that still listens is not replaced by anyone, so no lock is needed.
void SocketFile::remove_file() noexcept {
  struct stat is {};
  if (!path_.empty() && lstat(path_.c_str(), &is) == 0 && is.st_dev == device_ &&
      is.st_ino == inode_) {
    unlink(path_.c_str());
  }
  path_.clear();
}

void SocketFile::close() noexcept {
  remove_file();
  fd_.reset();
}

void SocketFile::abandon() noexcept {
  path_.clear();
  fd_.reset();
}

}  // namespace penstock::net
