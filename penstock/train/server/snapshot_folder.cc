#include "penstock/train/server/snapshot_folder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/train/server/epoch.h"

namespace penstock::train {
namespace {

using Json = nlohmann::json;

constexpr const char* kServer = "ParameterServer";
constexpr std::string_view kManifestBegin = "snapshot", kManifestEnd = ".json";
constexpr std::string_view kShardBegin = "shard-", kShardEnd = ".safetensors";
constexpr uint64_t kClaim = UINT64_MAX;  // in place of an epoch: claim one
constexpr uint32_t kMaxIncarnation = (1u << 30) - 1;
constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 24;

Error damaged_snapshot(const std::string& path, const std::string& why) {
  return Error(Code::kDataLoss, kServer, path + ": " + why);
}

std::string state_name(size_t i) { return "optimizer/" + std::to_string(i); }

// Takes a number off the end of a name, with the dot in front of it.
std::optional<uint64_t> take_number(std::string_view& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  uint64_t number = 0;
  const auto [last, error] =
      std::from_chars(name.data() + dot + 1, name.data() + name.size(), number);
  if (error != std::errc() || last != name.data() + name.size()) return std::nullopt;
  name.remove_suffix(name.size() - dot);
  return number;
}

// The generation in the name of a file: the numbers in front of `end`. nullopt: another file's
// name.
std::optional<SnapshotFolder::Id> generation_in(std::string_view name, std::string_view begin,
                                                std::string_view end) {
  if (!name.starts_with(begin) || !name.ends_with(end)) return std::nullopt;
  name.remove_suffix(end.size());
  const auto generation = take_number(name);
  const auto epoch = generation ? take_number(name) : std::nullopt;
  if (!epoch || name.size() < begin.size()) return std::nullopt;
  return SnapshotFolder::Id{.epoch = *epoch, .generation = *generation};
}

std::string suffix_of(const SnapshotFolder::Id& id) {
  return std::string(".") + std::to_string(id.epoch) + "." + std::to_string(id.generation);
}

// The record as JSON: version, step, counts, and the used rows.
std::string to_json(const ShardRecord& record) {
  Json rows = Json::array();
  for (const LedgerRow& row : record.rows) {
    if (row.worker == 0) continue;
    rows.push_back({row.worker, row.sequence, row.clock, static_cast<uint32_t>(row.outcome),
                    uint32_t{row.incarnation}, uint32_t{row.chosen}, uint32_t{row.departed}});
  }
  return Json{{"server", record.server},
              {"version", record.version},
              {"step", record.step},
              {"skipped", record.skipped},
              {"non_finite", record.non_finite},
              {"evictions", record.evictions},
              {"workers", rows}}
      .dump();
}

ShardRecord record_of(const std::string& text) {
  ShardRecord record;
  const Json json = Json::parse(text);
  json.at("server").get_to(record.server);
  json.at("version").get_to(record.version);
  json.at("step").get_to(record.step);
  json.at("skipped").get_to(record.skipped);
  json.at("non_finite").get_to(record.non_finite);
  json.at("evictions").get_to(record.evictions);
  size_t i = 0;
  for (const Json& row : json.at("workers")) {
    if (i == kMaxWorkers) throw Error(Code::kDataLoss, kServer, "too many workers");
    const auto outcome = row.at(3).get<uint32_t>();
    record.rows[i++] = {.worker = row.at(0).get<uint64_t>(),
                        .sequence = row.at(1).get<uint64_t>(),
                        .clock = row.at(2).get<uint64_t>(),
                        .outcome = outcome <= 2 ? static_cast<Outcome>(outcome) : Outcome::kApplied,
                        .incarnation = row.at(4).get<uint32_t>() & kMaxIncarnation,
                        .chosen = row.at(5).get<uint32_t>() & 1,
                        .departed = row.at(6).get<uint32_t>() & 1};
  }
  return record;
}

std::string text_of(File& file) {
  const uint64_t bytes = file.size();
  if (bytes > kMaxManifestBytes) throw damaged_snapshot(file.path(), "it is no manifest");
  std::string text(bytes, '\0');
  const File::Segment all{0, reinterpret_cast<std::byte*>(text.data()), bytes};
  if (bytes > 0) file.read({&all, 1});
  return text;
}

}  // namespace

SnapshotFolder::SnapshotFolder(std::string folder, std::vector<Range> ranges,
                               const Optimizer& optimizer, const Layout& layout,
                               std::shared_ptr<FileSystem> files)
    : SnapshotFolder(folder, std::move(ranges), optimizer, layout,
                     std::make_unique<FolderLock>(
                         folder, kServer, "end that server, or give another folder for snapshots"),
                     kClaim, std::move(files)) {}

SnapshotFolder::SnapshotFolder(std::string folder, std::vector<Range> ranges,
                               const Optimizer& optimizer, const Layout& layout,
                               std::unique_ptr<FolderLock> lock, uint64_t epoch,
                               std::shared_ptr<FileSystem> files)
    : folder_(std::move(folder)),
      ranges_(std::move(ranges)),
      optimizer_(optimizer.name()),
      layout_hash_(layout.hash()),
      states_(static_cast<uint32_t>(optimizer.state_slabs())),
      files_(std::move(files)),
      lock_(std::move(lock)),
      epoch_(epoch == kClaim ? claim_epoch(folder_, kWriterRole) : epoch) {}

std::string SnapshotFolder::shard_path(size_t shard, const Id& id) const {
  return folder_ + "/" + std::string(kShardBegin) + std::to_string(shard) + "-of-" +
         std::to_string(ranges_.size()) + suffix_of(id) + std::string(kShardEnd);
}

std::string SnapshotFolder::manifest_path(const Id& id) const {
  return folder_ + "/" + std::string(kManifestBegin) + suffix_of(id) + std::string(kManifestEnd);
}

// Those that have a manifest, ascending.
std::vector<SnapshotFolder::Id> SnapshotFolder::generations() const {
  std::vector<Id> found;
  for (const std::string& name : files_->list(folder_ + "/")) {
    if (const auto its = generation_in(name, kManifestBegin, kManifestEnd)) found.push_back(*its);
  }
  std::ranges::sort(found);
  return found;
}

// ---- restoring ----------------------------------------------------------------------------------

bool SnapshotFolder::find(std::optional<size_t> shard) {
  good_ = generations();
  if (good_.empty()) return false;
  std::optional<Error> newest;
  for (; !good_.empty(); good_.pop_back()) {
    try {
      check(good_.back(), shard);
      return true;
    } catch (const Error& error) {
      if (error.code() != Code::kDataLoss && error.code() != Code::kNotFound) throw;
      damaged_.emplace_back(error.what());
      if (!newest) newest = error;
    }
  }
  throw Error(Code::kDataLoss, kServer,
              "every snapshot in " + folder_ + " is damaged; restore its files, or start with an " +
                  "empty folder. The newest: " + newest->what());
}

// Errors kDataLoss, kNotFound: the manifest or a file is damaged or missing, of all shards or of
// the given one.
void SnapshotFolder::check(const Id& id, std::optional<size_t> shard) const {
  const std::string path = manifest_path(id);
  std::vector<FileDigest> written;
  const std::string text = text_of(*files_->open(path));
  try {
    const Json json = Json::parse(text);
    if (json.at("generation").get<uint64_t>() != id.generation ||
        json.at("epoch").get<uint64_t>() != id.epoch) {
      throw damaged_snapshot(path, "it is the manifest of another generation");
    }
    for (const Json& each : json.at("shards")) {
      written.push_back({each.at("bytes").get<uint64_t>(), each.at("crc32c").get<uint32_t>()});
    }
  } catch (const Json::exception& error) {
    throw damaged_snapshot(path, error.what());
  }
  if (written.size() != ranges_.size()) {
    throw Error(Code::kInvalidArgument, kServer,
                folder_ + " has snapshots of a server with another number of shards (" +
                    std::to_string(written.size()) + "), this server has " +
                    std::to_string(ranges_.size()) +
                    ": give the same number of shards, or another folder");
  }
  for (size_t i = 0; i < written.size(); ++i) {
    if (shard && *shard != i) continue;
    const auto file = files_->open(shard_path(i, id));
    if (file->size() != written[i].bytes || digest_of(*file) != written[i]) {
      throw damaged_snapshot(file->path(), "its checksum is not that of the manifest, " + path);
    }
  }
}

ShardCheckpoint SnapshotFolder::load(size_t shard) const {
  const SafetensorsReader reader(files_->open(shard_path(shard, good_.back())));
  const Range range = ranges_[shard];
  const std::map<std::string, std::string> identity{
      {"optimizer", optimizer_},
      {"layout", std::to_string(layout_hash_)},
      {"floats", std::to_string(range.begin) + "-" + std::to_string(range.end)}};
  for (const auto& [name, value] : identity) {
    const auto found = reader.metadata().find(name);
    if (found == reader.metadata().end() || found->second != value) {
      throw Error(Code::kInvalidArgument, kServer,
                  reader.path() + " belongs to another server: its " + name + " is " +
                      (found == reader.metadata().end() ? "missing" : found->second) + ", not " +
                      value);
    }
  }
  ShardCheckpoint checkpoint;
  try {
    checkpoint.record = record_of(reader.metadata().at("record"));
  } catch (const std::exception& error) {
    throw damaged_snapshot(reader.path(), error.what());
  }
  auto read = [&](const std::string& name) {
    const StoredArray* array = reader.find(name);
    if (array == nullptr) throw damaged_snapshot(reader.path(), "no " + name);
    std::vector<float> values(range.size());
    reader.read(*array, values);
    return values;
  };
  checkpoint.weights = read("weights");
  for (uint32_t i = 0; i < states_; ++i) checkpoint.states.push_back(read(state_name(i)));
  return checkpoint;
}

// ---- saving -------------------------------------------------------------------------------------

SnapshotFolder::Id SnapshotFolder::next() const {
  const std::vector<Id> before = generations();
  return {epoch_, before.empty() ? 1 : before.back().generation + 1};
}

void SnapshotFolder::save(std::span<const std::unique_ptr<ShardCheckpoint>> shards) {
  const Id id = next();
  std::vector<Part> parts;
  for (size_t i = 0; i < shards.size(); ++i) parts.push_back(write(i, id, *shards[i]));
  commit(id, parts);
}

SnapshotFolder::Part SnapshotFolder::write(size_t shard, const Id& id,
                                           const ShardCheckpoint& state) const {
  const Shape shape{static_cast<int64_t>(state.weights.size())};
  std::vector<ArrayToStore> arrays{{"weights", shape, state.weights}};
  for (size_t k = 0; k < state.states.size(); ++k) {
    arrays.push_back({state_name(k), shape, state.states[k]});
  }
  const Range range = ranges_[shard];
  const FileDigest written =
      write_safetensors(*files_, shard_path(shard, id), arrays,
                        {{"optimizer", optimizer_},
                         {"layout", std::to_string(layout_hash_)},
                         {"floats", std::to_string(range.begin) + "-" + std::to_string(range.end)},
                         {"record", to_json(state.record)}});
  return {.file = written, .version = state.record.version};
}

// A writer that is replaced between the check and the manifest's appearance adds a generation of
// its own epoch, which is older than all of its successor's.
void SnapshotFolder::commit(const Id& id, std::span<const Part> parts) {
  if (const uint64_t newest = newest_epoch(folder_, kWriterRole); newest > epoch_) {
    throw Error(Code::kClosed, "snapshot",
                "epoch " + std::to_string(newest) + " writes the snapshots in " + folder_ +
                    " now, instead of epoch " + std::to_string(epoch_) + "; this one was refused");
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].epoch == 0) continue;
    const uint64_t newest = newest_epoch(folder_, shard_role(i));
    if (newest == parts[i].epoch) continue;
    throw Error(Code::kClosed, "snapshot",
                "shard " + std::to_string(i) + " with epoch " + std::to_string(parts[i].epoch) +
                    " has been replaced by epoch " + std::to_string(newest) +
                    "; its state was refused");
  }
  Json manifest{{"epoch", id.epoch}, {"generation", id.generation}, {"shards", Json::array()}};
  for (const Part& part : parts) {
    manifest["shards"].push_back({{"bytes", part.file.bytes},
                                  {"crc32c", part.file.crc32c},
                                  {"version", part.version},
                                  {"epoch", part.epoch}});
  }
  const std::string text = manifest.dump() + "\n";
  const auto sink = files_->create(manifest_path(id));
  sink->write(std::as_bytes(std::span(text)));
  sink->commit();
  good_.push_back(id);
  remove_old();
}

// A generation's manifest goes before its other files, so an interruption leaves no manifest
// without them. Files that cannot be removed now are removed after a later save.
void SnapshotFolder::remove_old() const {
  if (good_.size() <= kKept) return;
  const Id oldest = good_[good_.size() - kKept];
  std::error_code ignored;
  for (const Id& generation : generations()) {
    if (generation < oldest) std::filesystem::remove(manifest_path(generation), ignored);
  }
  for (const std::string& name : files_->list(folder_ + "/")) {
    const auto generation = generation_in(name, kShardBegin, kShardEnd);
    if (generation && *generation < oldest) {
      std::filesystem::remove(folder_ + "/" + name, ignored);
    }
  }
}

}  // namespace penstock::train
