#include "penstock/pipeline/element/origins.h"

#include <algorithm>
#include <cstring>

namespace penstock {
namespace {

struct OriginsHead {
  uint64_t runs, names;
};

constexpr uint64_t kNoName = UINT64_MAX;

template <class T>
std::byte* put(std::byte* to, const T* from, size_t count) {
  if (count != 0) std::memcpy(to, from, count * sizeof(T));
  return to + count * sizeof(T);
}

template <class T>
T get(const std::byte*& from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  from += sizeof(value);
  return value;
}

}  // namespace

std::string Origin::text() const {
  return file == nullptr ? "" : *file + ", record " + std::to_string(record);
}

void Origins::clear() {
  elements_ = names_bytes_ = 0;
  known_ = false;
  runs_.clear();
  names_.clear();
}

void Origins::add_run(uint64_t element, const Origin& origin) {
  if (!known_ && element > 0) runs_.push_back({0, kNoName, 0});
  const uint64_t name = name_of(origin.file);
  if (!runs_.empty() && runs_.back().name == name) {
    const Run& last = runs_.back();
    if (name == kNoName || last.record + (element - last.first) == origin.record) return;
  }
  runs_.push_back({element, name, origin.record});
}

uint64_t Origins::name_of(const std::shared_ptr<const std::string>& file) {
  if (file == nullptr) return kNoName;
  known_ = true;
  const auto place = std::ranges::find(names_, file);
  if (place == names_.end()) {
    names_.push_back(file);
    names_bytes_ += file->size();
    return names_.size() - 1;
  }
  return static_cast<uint64_t>(place - names_.begin());
}

uint64_t Origins::bytes() const {
  if (!known_) return 0;
  const uint64_t names = names_.size() * sizeof(uint64_t) + (names_bytes_ + 7) / 8 * 8;
  return sizeof(OriginsHead) + runs_.size() * sizeof(Run) + names;
}

void Origins::write(std::byte* to) const {
  if (!known_) return;
  std::byte* const end = to + bytes();
  const OriginsHead head{runs_.size(), names_.size()};
  to = put(to, &head, 1);
  to = put(to, runs_.data(), runs_.size());
  for (const auto& name : names_) {
    const uint64_t bytes = name->size();
    to = put(to, &bytes, 1);
  }
  for (const auto& name : names_) to = put(to, name->data(), name->size());
  std::memset(to, 0, static_cast<size_t>(end - to));
}

std::string Origins::text(std::span<const std::byte> of, uint64_t element) {
  if (of.empty()) return {};
  const std::byte* from = of.data();
  const auto head = get<OriginsHead>(from);
  Run run{0, kNoName, 0};
  const std::byte* runs = from;
  for (uint64_t i = 0; i < head.runs; ++i) {
    const auto next = get<Run>(runs);
    if (next.first > element) break;
    run = next;
  }
  if (run.name == kNoName) return {};
  from += head.runs * sizeof(Run);
  const std::byte* text = from + head.names * sizeof(uint64_t);
  for (uint64_t i = 0; i < run.name; ++i) text += get<uint64_t>(from);
  std::string name(reinterpret_cast<const char*>(text), get<uint64_t>(from));
  return name + ", record " + std::to_string(run.record + (element - run.first));
}

}  // namespace penstock
