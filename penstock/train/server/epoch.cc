#include "penstock/train/server/epoch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string_view>
#include <system_error>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/io/file.h"

namespace penstock::train {
namespace {

constexpr const char* kEpochs = "ParameterServer";
constexpr std::string_view kEpochEnd = ".epoch";

constexpr size_t kMaxAssignmentBytes = 4096;

// A file's contents before it has its name. One that is older was left by a process that was
// killed.
constexpr std::string_view kDraft = ".epoch-";
constexpr std::chrono::hours kMaxDraftAge{1};

std::string epoch_path(const std::string& folder, const std::string& role, uint64_t epoch) {
  return folder + "/" + role + "." + std::to_string(epoch) + std::string(kEpochEnd);
}

// Ascending. With an error, some may be missing.
std::vector<uint64_t> epochs_of(const std::string& folder, const std::string& role,
                                std::error_code& error) {
  std::vector<uint64_t> found;
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

Error no_folder(const std::string& folder) {
  return Error(Code::kNotFound, kEpochs, "there is no folder " + folder);
}

Error cannot_read(const std::string& folder, std::error_code error) {
  return Error::from_errno(error.value(), kEpochs, "cannot read " + folder);
}

void remove_old_drafts(const std::string& folder) {
  std::error_code error, ignored;
  const auto now = std::filesystem::file_time_type::clock::now();
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(kDraft)) continue;
    const auto written = entry->last_write_time(ignored);
    if (!ignored && now - written > kMaxDraftAge) std::filesystem::remove(entry->path(), ignored);
  }
}

// Removes the files of epochs below `epoch`. False: there is a higher one, so that a process may
// have removed the file of `epoch` before this process created it again; it is removed.
bool settle_epoch(const std::string& folder, const std::string& role, uint64_t epoch) {
  sync_posix_folder(folder, kEpochs);
  remove_old_drafts(folder);
  std::error_code error, ignored;
  const std::vector<uint64_t> all = epochs_of(folder, role, error);
  if (error) throw cannot_read(folder, error);
  if (!all.empty() && all.back() > epoch) {
    std::filesystem::remove(epoch_path(folder, role, epoch), ignored);
    return false;
  }
  for (const uint64_t each : all) {
    if (each < epoch) std::filesystem::remove(epoch_path(folder, role, each), ignored);
  }
  return true;
}

// The contents of a file; nullopt: there is no such file.
std::optional<std::string> contents(const std::string& path) {
  const os::Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) {
    if (errno == ENOENT) return std::nullopt;
    throw Error::from_errno(errno, kEpochs, "cannot open " + path);
  }
  std::string text(kMaxAssignmentBytes, '\0');
  const ssize_t got = read(file.get(), text.data(), text.size());
  if (got < 0) throw Error::from_errno(errno, kEpochs, "cannot read " + path);
  text.resize(static_cast<size_t>(got));
  return text;
}

// Creates a file with its contents at once. False: it exists.
bool create_with(const std::string& folder, const std::string& path, const std::string& text) {
  std::random_device device;
  const std::string draft =
      folder + "/" + std::string(kDraft) + std::to_string(uint64_t{device()} << 32 | device());
  const os::Fd file(
      open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file) {
    if (errno == ENOENT || errno == ENOTDIR) throw no_folder(folder);
    throw Error::from_errno(errno, kEpochs, "cannot create " + draft);
  }
  int error = 0;
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    error = errno != 0 ? errno : EIO;
  } else if (fsync(file.get()) != 0 || link(draft.c_str(), path.c_str()) != 0) {
    error = errno;
  }
  unlink(draft.c_str());
  if (error == EEXIST) return false;
  if (error != 0) throw Error::from_errno(error, kEpochs, "cannot create " + path);
  return true;
}

}  // namespace

std::string shard_role(size_t shard) { return "shard-" + std::to_string(shard); }

uint64_t claim_epoch(const std::string& folder, const std::string& role) {
  for (;;) {
    std::error_code ignored;  // the file cannot be created then
    const std::vector<uint64_t> before = epochs_of(folder, role, ignored);
    const uint64_t epoch = before.empty() ? 1 : before.back() + 1;
    const std::string path = epoch_path(folder, role, epoch);
    const os::Fd file(
        open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!file) {
      if (errno == EEXIST) continue;  // another process was faster
      if (errno == ENOENT || errno == ENOTDIR) throw no_folder(folder);
      throw Error::from_errno(errno, kEpochs, "cannot create " + path);
    }
    if (settle_epoch(folder, role, epoch)) return epoch;
  }
}

uint64_t newest_epoch(const std::string& folder, const std::string& role) {
  std::error_code ignored;
  const std::vector<uint64_t> epochs = epochs_of(folder, role, ignored);
  return epochs.empty() ? 0 : epochs.back();
}

Assignment newest_assignment(const std::string& folder, const std::string& role) {
  for (;;) {
    std::error_code error;
    const std::vector<uint64_t> epochs = epochs_of(folder, role, error);
    if (error) throw cannot_read(folder, error);
    if (epochs.empty()) return {};
    Assignment found{.epoch = epochs.back()};
    const std::string path = epoch_path(folder, role, found.epoch);
    const auto text = contents(path);
    if (!text) continue;  // a higher epoch has replaced it
    if (text->empty()) return found;
    try {
      const auto json = nlohmann::json::parse(*text);
      json.at("server").get_to(found.server);
      json.at("leader").get_to(found.leader);
      json.at("follower").get_to(found.follower);
    } catch (const nlohmann::json::exception& damage) {
      throw Error(Code::kDataLoss, kEpochs, path + ": " + damage.what());
    }
    return found;
  }
}

bool assign(const std::string& folder, const std::string& role, const Assignment& next) {
  const nlohmann::json json = {
      {"server", next.server}, {"leader", next.leader}, {"follower", next.follower}};
  return create_with(folder, epoch_path(folder, role, next.epoch), json.dump()) &&
         settle_epoch(folder, role, next.epoch);
}

}  // namespace penstock::train
