#include "penstock/net/user_folder.h"

#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"

namespace penstock::net {

namespace {

constexpr char kUserFolder[] = "user folder";
constexpr double kLockS = 5;
constexpr size_t kSecretBytes = 32;
constexpr mode_t kPermissions = 07777;

Error unsafe_folder(const std::string& folder, const std::string& why, const std::string& remedy) {
  return Error(Code::kInvalidArgument, kUserFolder, folder + " " + why + ": " + remedy);
}

// Throws unless the folder is a directory that only this user can use.
void require_private(const std::string& folder) {
  struct stat is {};
  if (lstat(folder.c_str(), &is) != 0) throw Error::from_errno(errno, kUserFolder, folder);
  const std::string other = "; or set XDG_RUNTIME_DIR to a directory of this user";
  if (!S_ISDIR(is.st_mode)) throw unsafe_folder(folder, "is no directory", "remove it" + other);
  if (is.st_uid != geteuid()) {
    throw unsafe_folder(
        folder,
        "belongs to user " + std::to_string(is.st_uid) + ", not to " + std::to_string(geteuid()),
        "have its owner remove it" + other);
  }
  if ((is.st_mode & kPermissions) != S_IRWXU) {
    char mode[8];
    std::snprintf(mode, sizeof(mode), "%04o", is.st_mode & kPermissions);
    throw unsafe_folder(folder, std::string("has mode ") + mode,
                        "chmod 700 '" + folder + "'" + other);
  }
}

bool is_own_directory(const std::string& path) {
  struct stat is {};
  return stat(path.c_str(), &is) == 0 && S_ISDIR(is.st_mode) && is.st_uid == geteuid();
}

std::string chosen_folder() {
  const std::string user = std::to_string(geteuid());
  const char* given = std::getenv("XDG_RUNTIME_DIR");
  // Containers and sudo often pass the variable on, without the directory or to another user.
  for (const std::string& place :
       {std::string(given == nullptr ? "" : given), "/run/user/" + user}) {
    if (place.starts_with('/') && is_own_directory(place)) return place + "/penstock";
  }
  return "/tmp/penstock-" + user;
}

// Nothing: there is no secret yet, or only a part of one.
std::optional<std::string> read_secret(const std::string& path) {
  const os::Fd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) {
    if (errno == ENOENT) return std::nullopt;
    throw Error::from_errno(errno, kUserFolder, "cannot read " + path);
  }
  std::array<char, 2 * kSecretBytes + 1> text;
  const ssize_t got = read(fd.get(), text.data(), text.size());
  if (got != static_cast<ssize_t>(2 * kSecretBytes)) return std::nullopt;
  return std::string(text.data(), 2 * kSecretBytes);
}

std::string new_secret() {
  std::array<unsigned char, kSecretBytes> bytes;
  std::array<char, 2 * kSecretBytes + 1> text;
  if (sodium_init() < 0) throw Error(Code::kSystem, kUserFolder, "cannot initialise libsodium");
  randombytes_buf(bytes.data(), bytes.size());
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  return text.data();
}

void write_secret(const std::string& path, const std::string& secret) {
  const std::string unfinished = path + ".new";
  const os::Fd fd(
      open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  // The sticky bit keeps programs that clean temporary folders from removing an old file
  // (XDG base directory specification).
  if (!fd || fchmod(fd.get(), S_ISVTX | S_IRUSR | S_IWUSR) != 0 ||
      write(fd.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size()) ||
      rename(unfinished.c_str(), path.c_str()) != 0) {
    throw Error::from_errno(errno, kUserFolder, "cannot write " + path);
  }
}

}  // namespace

std::string user_folder() {
  std::string folder = chosen_folder();
  if (mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    throw Error::from_errno(
        errno, kUserFolder,
        "cannot make " + folder + "; set XDG_RUNTIME_DIR to a directory that this user can write");
  }
  require_private(folder);
  return folder;
}

std::string host_secret() {
  const std::string folder = user_folder(), path = folder + "/secret";
  if (const auto secret = read_secret(path)) return *secret;
  const FolderLock lock(folder);
  if (const auto secret = read_secret(path)) return *secret;
  const std::string secret = new_secret();
  write_secret(path, secret);
  return secret;
}

FolderLock::FolderLock(const std::string& folder)
    : fd_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (!fd_) throw Error::from_errno(errno, kUserFolder, "cannot open " + folder);
  const Deadline deadline(kLockS);
  while (!os::lock_file(fd_.get())) {
    if (deadline.passed()) {
      throw Error(Code::kTimeout, kUserFolder,
                  "other processes have held the lock of " + folder + " for " +
                      std::to_string(static_cast<int>(kLockS)) + " s; find them with: fuser -v " +
                      folder);
    }
    poll(nullptr, 0, 1);
  }
}

// Explicitly: a forked child may have a copy of the descriptor.
FolderLock::~FolderLock() { flock(fd_.get(), LOCK_UN); }

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

void remove_dead_sockets() {
  const std::string folder = user_folder();
  const FolderLock lock(folder);
  remove_dead_sockets(folder);
}

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
