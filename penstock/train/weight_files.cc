#include "penstock/train/weight_files.h"

#include <charconv>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/train/safetensors.h"

namespace penstock::train {
namespace {

using Metadata = std::map<std::string, std::string>;

std::string state_prefix(size_t slab) { return "optimizer/" + std::to_string(slab) + "/"; }

void add(std::vector<ArrayToStore>& arrays, const Slab& slab, const std::string& prefix) {
  for (const Block& block : slab.layout().blocks()) {
    arrays.push_back({prefix + block.name, block.shape, slab.values_of(block)});
  }
}

Error refuse(const SafetensorsReader& reader, const std::string& why) {
  return Error(Code::kInvalidArgument, "load", reader.path() + ": " + why);
}

// Checks that the file has exactly the slab's blocks under this prefix.
void check(const SafetensorsReader& reader, const Layout& layout, const std::string& prefix) {
  for (const Block& block : layout.blocks()) {
    const StoredArray* array = reader.find(prefix + block.name);
    if (array == nullptr) throw refuse(reader, "the file has no '" + prefix + block.name + "'");
    if (array->shape != block.shape) {
      throw refuse(reader, "block '" + array->name + "' is " + to_string(block.shape) +
                               " here and " + to_string(array->shape) + " in the file");
    }
    if (array->dtype != DType::kFloat32 && array->dtype != DType::kFloat16 &&
        array->dtype != DType::kBfloat16) {
      throw refuse(reader, "'" + array->name + "' is " + std::string(name_of(array->dtype)) +
                               "; weights are float32, float16 or bfloat16");
    }
  }
  for (const StoredArray& array : reader.arrays()) {
    const bool of_optimizer = array.name.starts_with("optimizer/");
    if (prefix.empty() && !of_optimizer && layout.find(array.name) == nullptr) {
      throw refuse(reader,
                   "the file has a block '" + array.name + "', which these parameters do not have");
    }
  }
}

void read(const SafetensorsReader& reader, const Slab& slab, const std::string& prefix) {
  for (const Block& block : slab.layout().blocks()) {
    reader.read(*reader.find(prefix + block.name), slab.values_of(block));
  }
}

// A number in the metadata; nullopt if it is missing.
std::optional<uint64_t> number(const SafetensorsReader& reader, const std::string& name) {
  const auto found = reader.metadata().find(name);
  if (found == reader.metadata().end()) return std::nullopt;
  const std::string& text = found->second;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(Code::kDataLoss, "load",
                reader.path() + ": its metadata '" + name + "' is '" + text + "', no number");
  }
  return value;
}

}  // namespace

void save(const Parameters& parameters, const std::string& path, DType dtype, FileSystem& files) {
  std::vector<ArrayToStore> arrays;
  add(arrays, parameters.slab(), "");
  write_safetensors(files, path, arrays, {{"version", std::to_string(parameters.version())}},
                    dtype);
}

void load(const Parameters& parameters, const std::string& path, FileSystem& files) {
  const SafetensorsReader reader(files.open(path));
  check(reader, parameters.layout(), "");
  const auto version = number(reader, "version");
  read(reader, parameters.slab(), "");
  parameters.set_version(version.value_or(0));
}

Parameters load_parameters(const std::string& path, Slab::Kind kind, FileSystem& files) {
  const SafetensorsReader reader(files.open(path));
  std::vector<BlockSpec> specs;
  for (const StoredArray& array : reader.arrays()) {
    if (!array.name.starts_with("optimizer/")) specs.push_back({array.name, array.shape});
  }
  if (specs.empty()) throw refuse(reader, "the file has no weights");
  const Layout layout(specs);
  check(reader, layout, "");
  const auto version = number(reader, "version");
  Parameters parameters(layout, kind);
  read(reader, parameters.slab(), "");
  parameters.set_version(version.value_or(0));
  return parameters;
}

void save(const Updater& updater, const std::string& path, FileSystem& files) {
  std::lock_guard lock(updater.mutex_);
  std::vector<ArrayToStore> arrays;
  add(arrays, updater.parameters().slab(), "");
  for (size_t i = 0; i < updater.state().size(); ++i) {
    add(arrays, updater.state()[i], state_prefix(i));
  }
  write_safetensors(files, path, arrays,
                    {{"version", std::to_string(updater.parameters().version())},
                     {"step", std::to_string(updater.step_)},
                     {"optimizer", updater.optimizer().name()}});
}

void load(Updater& updater, const std::string& path, FileSystem& files) {
  const SafetensorsReader reader(files.open(path));
  const auto formula = reader.metadata().find("optimizer");
  const auto step = number(reader, "step");
  if (formula == reader.metadata().end() || !step) {
    throw refuse(reader, "the file has weights only, without the state of an optimizer");
  }
  const std::string& mine = updater.optimizer().name();
  if (formula->second != mine) {
    throw refuse(reader, "the file has the state of " + formula->second +
                             "; this updater's optimizer is " + mine);
  }
  std::lock_guard lock(updater.mutex_);
  const Layout& layout = updater.parameters().layout();
  check(reader, layout, "");
  for (size_t i = 0; i < updater.state().size(); ++i) check(reader, layout, state_prefix(i));
  // Centered RMSProp has one slab more than the plain one.
  if (reader.find(state_prefix(updater.state().size()) + layout.blocks()[0].name) != nullptr) {
    throw refuse(reader, "the file has more state than this " + mine + " has");
  }
  const auto version = number(reader, "version");
  read(reader, updater.parameters().slab(), "");
  for (size_t i = 0; i < updater.state().size(); ++i) {
    read(reader, updater.state()[i], state_prefix(i));
  }
  updater.step_ = *step;
  updater.parameters().set_version(version.value_or(*step));
}

}  // namespace penstock::train
