#include "penstock/pipeline/element/chunk.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/pipeline/element/block.h"

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

namespace {

// The nest without the leaves of its lists ("[...]"), so that lists of any length compare equal.
std::string without_lists(const std::string& nest) {
  std::string out;
  for (char c : nest) {
    if (c != '.' || !out.ends_with('[')) out += c;
  }
  return out;
}

}  // namespace

Error schema_error(const ElementSpec& there, const ElementSpec& here) {
  return {Code::kInvalidArgument, "element",
          "elements must be alike: there are " + there.to_string() + " and " + here.to_string() +
              advice_on_lists(there, here)};
}

std::string advice_on_lists(const ElementSpec& there, const ElementSpec& here) {
  if (there.nest() == here.nest()) return "";
  if (without_lists(there.nest()) != without_lists(here.nest())) return "";
  return "; a list is a nest of so many elements: give np.asarray(list) for an array";
}

void Chunk::reset(SpecRef spec, uint32_t rows) {
  spec_ = std::move(spec);
  rows_ = rows;
  alive_ = rows == kRows ? ~uint64_t{0} : (uint64_t{1} << rows) - 1;
  inferred_ = spec_ == nullptr;
  mixed_ = false;
  failures_.clear();
  notes_.clear();
  kept_.release();
  known_ = 0;
  open_columns();
}

void Chunk::remember_origin(uint32_t row, const std::shared_ptr<const std::string>& file,
                            uint64_t record) {
  if (origins_.empty()) origins_.resize(kRows);
  known_ |= uint64_t{1} << row;
  Origin& origin = origins_[row];
  if (origin.file != file) origin.file = file;
  origin.record = record;
}

void Chunk::open_columns() {
  size_t leaves = spec_ == nullptr ? 0 : spec_->leaves().size();
  if (columns_.size() < leaves) columns_.resize(leaves);
  for (size_t i = 0; i < leaves; ++i) {
    const Leaf& leaf = spec_->leaves()[i];
    Column& column = columns_[i];
    column.first = nullptr;
    column.stride = 0;
    column.fixed = leaf.fixed();
    column.bound = false;
    column.viewed = !column.fixed;
    if (column.fixed) {
      column.row_bytes = static_cast<uint64_t>(leaf.fixed_values()) * size_of(leaf.dtype);
    } else {
      column.dims.assign(size_t{rows_} * leaf.shape.size(), 0);
      column.at.fill(nullptr);
    }
  }
}

void Chunk::bind(size_t leaf, std::byte* first, uint64_t stride) {
  Column& column = columns_[leaf];
  column.first = first;
  column.stride = stride;
  column.bound = true;
}

bool Chunk::settle(const SpecRef& spec) {
  if (spec == spec_) return true;
  if (spec_ == nullptr) {
    spec_ = spec;
    open_columns();
    return true;
  }
  if (*spec == *spec_) return true;
  if (!inferred_) return false;
  const bool alike = relax(*spec);
  mixed_ |= !alike;
  return alike;
}

// Makes lengths that differ -1 in the spec, and stores the shapes of the existing rows by row.
bool Chunk::relax(const ElementSpec& other) {
  std::optional<ElementSpec> both = spec_->merged(other);
  if (!both) return false;
  for (size_t i = 0; i < spec_->leaves().size(); ++i) {
    const Leaf& leaf = spec_->leaves()[i];
    Column& column = columns_[i];
    if (!column.fixed || both->leaves()[i].fixed()) continue;
    size_t axes = leaf.shape.size();
    column.dims.resize(size_t{rows_} * axes);
    for (uint32_t row = 0; row < rows_; ++row) {
      std::copy(leaf.shape.begin(), leaf.shape.end(), column.dims.begin() + row * axes);
      if (!column.viewed) column.at[row] = column.first + row * column.stride;
    }
    column.fixed = false;
    column.viewed = true;
  }
  spec_ = std::make_shared<ElementSpec>(std::move(*both));
  return true;
}

bool Chunk::drop_row(uint32_t row) {
  std::vector<Failure> lost = take_notes(row);
  if (lost.empty()) return false;
  lose(row, std::move(lost));
  return true;
}

void Chunk::lose(uint32_t row, std::vector<Failure> lost) {
  lost.front().skip_if_undecided();
  fail(row, std::move(lost.front()));
  for (size_t i = 1; i < lost.size(); ++i) note(row, std::move(lost[i]));
}

void Chunk::remove(uint64_t rows) {
  if (rows == 0) return;
  std::array<uint32_t, kRows> to;
  uint32_t left = 0;
  uint64_t alive = 0, known = 0;
  for (uint32_t row = 0; row < rows_; ++row) {
    to[row] = left;
    if ((rows >> row & 1) != 0) continue;
    alive |= (alive_ >> row & 1) << left;
    known |= (known_ >> row & 1) << left;
    if (left != row && (known_ >> row & 1) != 0) std::swap(origins_[left], origins_[row]);
    ++left;
  }
  const size_t leaves = spec_ == nullptr ? 0 : spec_->leaves().size();
  for (size_t leaf = 0; leaf < leaves; ++leaf) {
    Column& column = columns_[leaf];
    const size_t axes = spec_->leaves()[leaf].shape.size();
    for (uint32_t row = 0; row < rows_; ++row) {
      if ((rows >> row & 1) != 0) continue;
      if (!column.viewed) {
        column.at[to[row]] = column.first == nullptr ? nullptr : at(leaf, row);
      } else {
        column.at[to[row]] = column.at[row];
      }
      if (column.fixed) continue;
      std::copy_n(column.dims.begin() + row * axes, axes, column.dims.begin() + to[row] * axes);
    }
    column.viewed = true;
  }
  for (auto* said : {&failures_, &notes_}) {
    std::erase_if(*said, [&](const auto& of) { return (rows >> of.first & 1) != 0; });
    for (auto& [row, failure] : *said) row = to[row];
  }
  rows_ = left;
  alive_ = alive;
  known_ = known;
}

void Chunk::move_notes_from(Chunk& other) {
  mixed_ |= other.mixed_;
  for (auto& [row, failure] : other.notes_) note(row, std::move(failure));
  other.notes_.clear();
}

void Chunk::keep(std::shared_ptr<void> owner, uint64_t bytes) {
  constexpr uint64_t kCounted = 1024;  // smaller results never add up to much in one chunk
  if (bytes >= kCounted && scratch_.memory() != nullptr) {
    owner = scratch_.memory()->counted(std::move(owner), bytes);
  }
  kept_.add(std::move(owner), bytes);
}

void Chunk::keep_owners_of(Chunk& other) {
  kept_.add(other.kept_);
  move_notes_from(other);
}

std::byte* Chunk::dense(size_t leaf) {
  Column& column = columns_[leaf];
  if (column.first == nullptr) {
    column.stride = column.row_bytes;
    column.first = scratch_.take(column.row_bytes * rows_);
  }
  column.viewed = false;
  return column.first;
}

void Chunk::view(size_t leaf, uint32_t row, const std::byte* data, std::span<const int64_t> shape) {
  Column& column = columns_[leaf];
  if (column.bound) {
    if (column.row_bytes > 0) {
      std::memcpy(column.first + row * column.stride, data, column.row_bytes);
    }
    return;
  }
  column.viewed = true;
  column.at[row] = data;
  if (!column.fixed) {
    std::copy(shape.begin(), shape.end(), column.dims.begin() + row * shape.size());
  }
}

void Chunk::fail(uint32_t row, Failure failure) {
  uint64_t bit = uint64_t{1} << row;
  if ((alive_ & bit) == 0) return;  // failed already: the first failure counts
  alive_ &= ~bit;
  failures_.emplace_back(row, std::move(failure));
}

Failure Chunk::take_failure(uint32_t row) {
  for (auto& [failed, failure] : failures_) {
    if (failed == row) return std::move(failure);
  }
  return {};
}

uint64_t Chunk::bytes(size_t leaf, uint32_t row) const {
  if (columns_[leaf].fixed) return columns_[leaf].row_bytes;
  uint64_t bytes = size_of(spec_->leaves()[leaf].dtype);
  for (int64_t length : shape(leaf, row)) bytes *= static_cast<uint64_t>(length);
  return bytes;
}

bool Chunk::sure(uint32_t row) const {
  const auto provisional = [&](const auto& said) {
    return said.first == row && said.second.provisional;
  };
  return std::ranges::none_of(failures_, provisional) && std::ranges::none_of(notes_, provisional);
}

bool Chunk::left_out(uint32_t row) const {
  const auto said = std::ranges::find(failures_, row, &std::pair<uint32_t, Failure>::first);
  return said != failures_.end() && said->second.settled();
}

std::vector<Failure> Chunk::take_notes(uint32_t row) {
  std::vector<Failure> taken;
  if (notes_.empty()) return taken;
  std::erase_if(notes_, [&](auto& note) {
    if (note.first != row) return false;
    taken.push_back(std::move(note.second));
    return true;
  });
  return taken;
}

namespace {

uint64_t values_in(std::span<const int64_t> shape) {
  uint64_t values = 1;
  for (int64_t length : shape) values *= static_cast<uint64_t>(length);
  return values;
}

}  // namespace

BlockLayout row_layout(const Chunk& in, uint32_t row) {
  std::vector<uint64_t> value_bytes;
  const auto leaves = in.spec()->leaves();
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].fixed()) {
      value_bytes.push_back(values_in(in.shape(i, row)) * size_of(leaves[i].dtype));
    }
  }
  return BlockLayout(*in.spec(), 1, value_bytes);
}

void write_row(const Chunk& in, uint32_t row, const BlockLayout& layout, std::byte* to) {
  std::memset(to, 0, layout.bytes());
  const auto leaves = in.spec()->leaves();
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Leaf& leaf = leaves[i];
    const std::byte* from = in.at(i, row);
    if (leaf.fixed()) {
      const uint64_t bytes = in.row_bytes(i);
      if (bytes > 0) {
        std::memcpy(layout.fixed().row(to, layout.fixed_place(i), 0), from, bytes);
      }
      continue;
    }
    const auto shape = in.shape(i, row);
    const uint64_t values = values_in(shape);
    const int64_t steps = leaf.deep() ? static_cast<int64_t>(values) : shape[0];
    std::memcpy(to + layout.offsets(i) + sizeof(int64_t), &steps, sizeof(steps));
    if (leaf.deep()) std::memcpy(to + layout.dims(i), shape.data(), shape.size_bytes());
    if (values > 0) std::memcpy(to + layout.values(i), from, values * size_of(leaf.dtype));
  }
}

}  // namespace penstock
