#include "penstock/train/server/shard_files.h"

#include <charconv>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/train/safetensors.h"

namespace penstock::train {
namespace {

using Json = nlohmann::json;

std::string state_name(size_t i) { return "optimizer/" + std::to_string(i); }

// The record as JSON: version, step, counts, and the used rows.
std::string to_json(const ShardRecord& record) {
  Json rows = Json::array();
  for (const LedgerRow& row : record.rows) {
    if (row.worker == 0) continue;
    rows.push_back({row.worker, row.sequence, row.clock, static_cast<uint32_t>(row.outcome)});
  }
  return Json{{"server", record.server},   {"version", record.version},       {"step", record.step},
              {"skipped", record.skipped}, {"non_finite", record.non_finite}, {"workers", rows}}
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
  size_t i = 0;
  for (const Json& row : json.at("workers")) {
    if (i == kMaxWorkers) throw Error(Code::kDataLoss, "restore", "too many workers");
    const auto outcome = row.at(3).get<uint32_t>();
    record.rows[i++] = {row.at(0).get<uint64_t>(), row.at(1).get<uint64_t>(),
                        row.at(2).get<uint64_t>(),
                        outcome <= 2 ? static_cast<Outcome>(outcome) : Outcome::kApplied};
  }
  return record;
}

std::map<std::string, std::string> identity(const ShardFile& file) {
  return {{"optimizer", file.optimizer},
          {"layout", std::to_string(file.layout_hash)},
          {"floats", std::to_string(file.range.begin) + "-" + std::to_string(file.range.end)}};
}

}  // namespace

ShardFile file_of(const std::string& folder, size_t shard, const std::vector<Range>& ranges,
                  const Optimizer& optimizer, const Layout& layout) {
  const std::string path = folder + "/shard-" + std::to_string(shard) + "-of-" +
                           std::to_string(ranges.size()) + ".safetensors";
  return {path, optimizer.name(), ranges[shard], layout.hash()};
}

void save(const Shard& shard, const ShardFile& file, FileSystem& files) {
  const auto checkpoint = shard.checkpoint();
  const Shape shape{static_cast<int64_t>(checkpoint->weights.size())};
  std::vector<ArrayToStore> arrays{{"weights", shape, checkpoint->weights}};
  for (size_t i = 0; i < checkpoint->states.size(); ++i) {
    arrays.push_back({state_name(i), shape, checkpoint->states[i]});
  }
  auto metadata = identity(file);
  metadata["record"] = to_json(checkpoint->record);
  write_safetensors(files, file.path, arrays, metadata);
  shard.memory()->set_saved({checkpoint->record.version, checkpoint->commits});
}

bool has_unsaved(const ShardMemory& memory) { return memory.commits() != memory.saved().commits; }

Error unsaved(const std::vector<std::string>& failures) {
  std::string text = "the last snapshot could not be written: ";
  for (size_t i = 0; i < failures.size(); ++i) text += (i == 0 ? "" : "; ") + failures[i];
  return Error(Code::kSystem, "close", text);
}

bool load(Shard& shard, const ShardFile& file, FileSystem& files) {
  std::shared_ptr<File> opened;
  try {
    opened = files.open(file.path);
  } catch (const Error& error) {
    if (error.code() == Code::kNotFound) return false;
    throw;
  }
  const SafetensorsReader reader(std::move(opened));
  for (const auto& [name, value] : identity(file)) {
    const auto found = reader.metadata().find(name);
    if (found == reader.metadata().end() || found->second != value) {
      throw Error(Code::kInvalidArgument, "restore",
                  file.path + " belongs to another server: its " + name + " is " +
                      (found == reader.metadata().end() ? "missing" : found->second) + ", not " +
                      value);
    }
  }
  Shard::Checkpoint checkpoint;
  const auto record = reader.metadata().find("record");
  try {
    if (record == reader.metadata().end()) throw Error(Code::kDataLoss, "restore", "no record");
    checkpoint.record = record_of(record->second);
  } catch (const std::exception& error) {
    throw Error(Code::kDataLoss, "restore", file.path + ": " + error.what());
  }
  auto read = [&](const std::string& name) {
    const StoredArray* array = reader.find(name);
    if (array == nullptr) throw Error(Code::kDataLoss, "restore", file.path + ": no " + name);
    std::vector<float> values(file.range.size());
    reader.read(*array, values);
    return values;
  };
  checkpoint.weights = read("weights");
  for (uint32_t i = 0; i < shard.memory()->shape().states; ++i) {
    checkpoint.states.push_back(read(state_name(i)));
  }
  shard.restore(checkpoint);
  return true;
}

ShardSaver::ShardSaver(std::shared_ptr<Shard> shard, ShardFile file, double seconds)
    : shard_(std::move(shard)), file_(std::move(file)), seconds_(seconds) {
  thread_ = std::thread([this] { run(); });
}

ShardSaver::~ShardSaver() {
  if (thread_.joinable()) end();
}

std::string ShardSaver::end() noexcept {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
  return std::move(failure_);
}

void ShardSaver::run() noexcept {
  os::block_all_signals();
  std::unique_lock lock(mutex_);
  for (bool last = false; !last;) {
    stop_.wait_for(lock, std::chrono::duration<double>(seconds_), [&] { return stopping_; });
    last = stopping_;
    lock.unlock();
    save_if_changed();  // also the last time, even if the end came before this thread began
    lock.lock();
  }
}

void ShardSaver::save_if_changed() noexcept {
  if (!has_unsaved(*shard_->memory())) return;
  failure_.clear();
  try {
    save(*shard_, file_);
  } catch (const std::exception& error) {
    failure_ = error.what();  // reported by stats(); the next attempt may succeed
  }
  shard_->saving_failed(failure_);
}

}  // namespace penstock::train
