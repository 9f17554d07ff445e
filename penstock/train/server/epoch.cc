#include "penstock/train/server/epoch.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/io/posix_files.h"

namespace penstock::train {
namespace {

constexpr const char* kEpochs = "ParameterServer";
constexpr std::string_view kEpochEnd = ".epoch";

std::string epoch_path(const std::string& folder, const std::string& role, uint64_t epoch) {
  return folder + "/" + role + "." + std::to_string(epoch) + std::string(kEpochEnd);
}

// Ascending.
std::vector<uint64_t> epochs_of(const std::string& folder, const std::string& role) {
  std::vector<uint64_t> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().filename().string();
    std::string_view name = path;
    if (!name.starts_with(role + ".") || !name.ends_with(kEpochEnd)) continue;
    name.remove_prefix(role.size() + 1);
    name.remove_suffix(std::min(kEpochEnd.size(), name.size()));
    uint64_t epoch = 0;
    const auto [last, wrong] = std::from_chars(name.data(), name.data() + name.size(), epoch);
    if (wrong == std::errc() && last == name.data() + name.size()) found.push_back(epoch);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::string shard_role(size_t shard) { return "shard-" + std::to_string(shard); }

uint64_t claim_epoch(const std::string& folder, const std::string& role) {
  for (;;) {
    const std::vector<uint64_t> before = epochs_of(folder, role);
    const uint64_t epoch = before.empty() ? 1 : before.back() + 1;
    const std::string path = epoch_path(folder, role, epoch);
    const os::Fd file(
        open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!file) {
      if (errno == EEXIST) continue;  // another process was faster
      if (errno == ENOENT || errno == ENOTDIR) {
        throw Error(Code::kNotFound, kEpochs, "there is no folder " + folder);
      }
      throw Error::from_errno(errno, kEpochs, "cannot create " + path);
    }
    sync_posix_folder(folder, kEpochs);
    std::error_code ignored;
    // The file of a higher epoch may have been created, and that of this epoch removed, before this
    // process created it again.
    if (newest_epoch(folder, role) > epoch) {
      std::filesystem::remove(path, ignored);
      continue;
    }
    for (const uint64_t old : before) {
      std::filesystem::remove(epoch_path(folder, role, old), ignored);
    }
    return epoch;
  }
}

uint64_t newest_epoch(const std::string& folder, const std::string& role) {
  const std::vector<uint64_t> epochs = epochs_of(folder, role);
  return epochs.empty() ? 0 : epochs.back();
}

}  // namespace penstock::train
