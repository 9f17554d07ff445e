#include "penstock/pipeline/stages/inputs.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {

std::vector<IndexedRef> indexed_of(const std::vector<Built>& inputs) {
  std::vector<IndexedRef> indexed;
  indexed.reserve(inputs.size());
  for (const Built& input : inputs) indexed.push_back(input.indexed);
  return indexed;
}

bool any_costly(std::span<const IndexedRef> inputs) {
  return std::any_of(inputs.begin(), inputs.end(),
                     [](const IndexedRef& input) { return input->costly(); });
}

bool any_python(std::span<const IndexedRef> inputs) {
  return std::any_of(inputs.begin(), inputs.end(),
                     [](const IndexedRef& input) { return input->python(); });
}

Decision common_decision(std::span<const IndexedRef> inputs) {
  std::optional<Decision> common;
  for (const IndexedRef& input : inputs) {
    if (input->spec() != nullptr) continue;
    if (common.value_or(input->decision()) != input->decision()) return Decision::kUndecided;
    common = input->decision();
  }
  return common.value_or(Decision::kUndecided);
}

bool any_python(std::span<const StreamedRef> inputs) {
  return std::any_of(inputs.begin(), inputs.end(),
                     [](const StreamedRef& input) { return input->python(); });
}

bool any_stream(const std::vector<Built>& inputs) {
  return std::any_of(inputs.begin(), inputs.end(),
                     [](const Built& input) { return input.stream != nullptr; });
}

namespace {

template <class Ref>
SpecRef common_of(std::span<const Ref> inputs, const std::string& stage) {
  SpecRef common;
  bool known = true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    SpecRef own = inputs[i]->spec();
    if (own == nullptr) {
      known = false;
    } else if (common == nullptr) {
      common = own;
    } else if (*common != *own) {
      auto both = common->merged(*own);
      if (!both) {
        throw Error(Code::kInvalidArgument, stage,
                    "inputs must have elements that are alike: " + common->to_string() +
                        ", and input " + std::to_string(i) + " has " + own->to_string() +
                        advice_on_lists(*common, *own));
      }
      common = std::make_shared<ElementSpec>(std::move(*both));
    }
  }
  return known ? common : nullptr;
}

}  // namespace

SpecRef common_spec(std::span<const IndexedRef> inputs, const std::string& stage) {
  return common_of(inputs, stage);
}

SpecRef common_spec(std::span<const StreamedRef> inputs, const std::string& stage) {
  return common_of(inputs, stage);
}

std::optional<uint64_t> total_length(std::span<const StreamedRef> inputs) {
  uint64_t sum = 0;
  for (const StreamedRef& input : inputs) {
    const std::optional<uint64_t> own = input->length();
    if (!own) return own;
    if (*own == kEndless || __builtin_add_overflow(sum, *own, &sum)) return kEndless;
  }
  return sum;
}

void InputReaders::fetch(size_t input, const At& at, std::span<const uint64_t> positions,
                         Chunk& out, uint32_t row) {
  Reader& reader = readers_[input];
  if (reader.reader == nullptr) {
    reader.reader = inputs_[input]->open(context_);
    reader.spec = inputs_[input]->spec();
  }
  rows_.fetch(*reader.reader, reader.spec, at, positions, out, row);
  if (rows_.spec() == nullptr) return;
  if (agree(reader, out)) return rows_.forward(out);
  auto error = std::make_exception_ptr(
      Error(Code::kInvalidArgument, stage_,
            "inputs must have elements that are alike: " + out.spec()->to_string() +
                ", and input " + std::to_string(input) + " has " + rows_.spec()->to_string()));
  for (size_t i = 0; i < positions.size(); ++i) {
    out.fail(static_cast<uint32_t>(row + i), {stage_, positions[i], error});
  }
}

// The stage's spec covers all inputs: its lengths are variable where the inputs differ.
bool InputReaders::agree(Reader& reader, Chunk& out) {
  if (out.settle(rows_.spec())) return true;
  if (reader.whole == out.spec() && reader.part == rows_.spec()) return true;
  auto both = out.spec()->merged(*rows_.spec());
  if (!both || *both != *out.spec()) return false;
  reader.whole = out.spec();
  reader.part = rows_.spec();
  return true;
}

void InputRows::fetch(IndexedReader& reader, const SpecRef& spec, const At& at,
                      std::span<const uint64_t> positions, Chunk& out, uint32_t row, size_t first) {
  make(reader, spec, at, positions, out, row, first);
  for (auto& [lost, failure] : rows_.failures()) out.fail(lost, std::move(failure));
  out.move_notes_from(rows_);
}

Chunk& InputRows::make(IndexedReader& reader, const SpecRef& spec, const At& at,
                       std::span<const uint64_t> positions, Chunk& out, uint32_t row,
                       size_t first) {
  row_ = row;
  rows_.reset(spec, static_cast<uint32_t>(row + positions.size()));
  if (spec != nullptr && !out.inferred()) {
    for (size_t leaf = 0; leaf < spec->leaves().size(); ++leaf) {
      size_t to = first + leaf;
      if (out.bound(to)) rows_.bind(leaf, out.dense(to), out.stride(to));
    }
  }
  reader.fetch(at, positions, rows_, row);
  return rows_;
}

void InputRows::forward(Chunk& out, size_t first) {
  const uint64_t alive = (rows_.alive() & out.alive()) >> row_ << row_;
  const size_t leaves = rows_.spec()->leaves().size();
  for (size_t leaf = 0; leaf < leaves; ++leaf) {
    const size_t to = first + leaf;
    if (out.bound(to) && rows_.bound(leaf)) continue;  // written there already
    for (uint64_t left = alive; left != 0; left &= left - 1) {
      auto row = static_cast<uint32_t>(__builtin_ctzll(left));
      out.view(to, row, rows_.at(leaf, row), rows_.shape(leaf, row));
    }
  }
  out.keep_owners_of(rows_);
}

}  // namespace penstock
