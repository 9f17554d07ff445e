#include "penstock/net/user_folder.h"

#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

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

}  // namespace penstock::net
