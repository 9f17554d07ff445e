#pragma once

// Reads a stage without an engine: builds a node, fetches positions into free and into bound
// chunks, and returns the elements as Examples.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/sources.h"
#include "tests/cpp/errors.h"

namespace penstock::testing {

inline Node::Ref range(int64_t end) { return nodes::range(0, end, 1); }

// An element; nothing if it was lost.
using Made = std::optional<Example>;

inline Tensor copy_of(const Leaf& leaf, std::span<const int64_t> shape, const std::byte* data) {
  Tensor tensor = Tensor::make(leaf.dtype, Shape(shape.begin(), shape.end()));
  if (tensor.nbytes() > 0) std::memcpy(tensor.data(), data, tensor.nbytes());
  return tensor;
}

inline std::vector<Made> elements_of(const Chunk& chunk, uint32_t row) {
  std::vector<Made> made(chunk.rows() - row);
  for (uint32_t i = row; i < chunk.rows(); ++i) {
    if ((chunk.alive() >> i & 1) == 0) continue;
    made[i - row].emplace();
    for (size_t leaf = 0; leaf < chunk.spec()->leaves().size(); ++leaf) {
      const Leaf& of = chunk.spec()->leaves()[leaf];
      made[i - row]->set(of.name, copy_of(of, chunk.shape(leaf, i), chunk.at(leaf, i)));
    }
  }
  return made;
}

inline bool equal(const Made& a, const Made& b) {
  if (a.has_value() != b.has_value()) return false;
  if (!a) return true;
  if (a->size() != b->size()) return false;
  for (size_t i = 0; i < a->size(); ++i) {
    if ((*a)[i].first != (*b)[i].first || !bit_equal((*a)[i].second, (*b)[i].second)) return false;
  }
  return true;
}

// A built stage and a reader of it.
class Reading {
 public:
  explicit Reading(const Node::Ref& node, uint64_t seed = 0)
      : stage_(builder_.build(*node).indexed), context_{scratch_, seed} {
    reader_ = stage_->reader(context_);
  }

  const Indexed& stage() const { return *stage_; }
  Context& context() { return context_; }
  uint64_t length(uint64_t base = 0) const { return stage_->length(base); }
  const std::vector<std::string>& titles() const { return builder_.titles(); }
  // The failures of the lost rows of the last fetch.
  const std::vector<std::pair<uint32_t, Failure>>& failures() const { return failures_; }
  // The losses before delivered rows.
  const std::vector<std::pair<uint32_t, Failure>>& notes() const { return notes_; }

  // The elements at `positions`, at most 64 - row, fetched into rows from `row` on: into free
  // columns and, if the spec is known and fixed, also into bound ones, with the same result.
  std::vector<Made> at(const At& at, const std::vector<uint64_t>& positions, uint32_t row = 0) {
    Chunk chunk(scratch_);
    chunk.reset(stage_->spec(), static_cast<uint32_t>(row + positions.size()));
    reader_->fetch(at, positions, chunk, row);
    std::vector<Made> made = elements_of(chunk, row);
    failures_ = chunk.failures();
    notes_ = chunk.notes();
    SpecRef spec = stage_->spec();
    if (spec != nullptr && spec->fixed()) check_bound(at, positions, row, made);
    scratch_.empty();
    return made;
  }

  // A whole epoch, or its first `most` elements, in chunks of `step`.
  std::vector<Made> epoch(uint64_t number = 0, uint64_t base = 0, uint64_t most = 1000,
                          uint64_t step = Chunk::kRows) {
    std::vector<Made> all;
    const uint64_t end = std::min(most, length(base));
    for (uint64_t i = 0; i < end; i += step) {
      std::vector<uint64_t> positions;
      for (uint64_t j = i; j < std::min(end, i + step); ++j) positions.push_back(j);
      for (Made& made : at({number, base}, positions)) all.push_back(std::move(made));
    }
    return all;
  }

 private:
  // Bound rows with gaps between them, whose bytes must not change.
  void check_bound(const At& at, const std::vector<uint64_t>& positions, uint32_t row,
                   const std::vector<Made>& expected) {
    SpecRef spec = stage_->spec();
    constexpr auto kUntouched = std::byte{0xA5};
    for (uint64_t gap : {0, 24}) {
      Chunk chunk(scratch_);
      chunk.reset(spec, static_cast<uint32_t>(row + positions.size()));
      std::vector<std::vector<std::byte>> memory;
      for (size_t leaf = 0; leaf < spec->leaves().size(); ++leaf) {
        const uint64_t stride = chunk.row_bytes(leaf) + gap;
        memory.emplace_back((row + positions.size()) * stride, kUntouched);
        chunk.bind(leaf, memory.back().data(), stride);
      }
      reader_->fetch(at, positions, chunk, row);
      std::vector<Made> made = elements_of(chunk, row);
      ASSERT_EQ(made.size(), expected.size());
      for (size_t i = 0; i < made.size(); ++i) EXPECT_TRUE(equal(made[i], expected[i])) << i;
      for (size_t leaf = 0; leaf < spec->leaves().size(); ++leaf) {
        const uint64_t bytes = chunk.row_bytes(leaf), stride = bytes + gap;
        for (uint64_t at_byte = 0; at_byte < memory[leaf].size(); ++at_byte) {
          bool between = at_byte < row * stride || at_byte % stride >= bytes;
          ASSERT_TRUE(!between || memory[leaf][at_byte] == kUntouched) << leaf << " " << at_byte;
        }
      }
    }
  }

  Builder builder_;
  IndexedRef stage_;
  Scratch scratch_;
  Context context_;
  std::unique_ptr<IndexedReader> reader_;
  std::vector<std::pair<uint32_t, Failure>> failures_, notes_;
};

// The values of an int64 leaf, element after element; -1 for a lost one.
inline std::vector<int64_t> numbers(const std::vector<Made>& made, std::string_view leaf = "") {
  std::vector<int64_t> all;
  for (const Made& element : made) {
    if (!element) {
      all.push_back(-1);
      continue;
    }
    auto values = element->at(leaf).as_span<const int64_t>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

inline std::string text_of(const Failure& failure) {
  try {
    std::rethrow_exception(failure.error);
  } catch (const std::exception& error) {
    return error.what();
  }
}

inline Tensor text(std::string_view value) {
  Tensor tensor = Tensor::make(DType::kUint8, {static_cast<int64_t>(value.size())});
  if (!value.empty()) std::memcpy(tensor.data(), value.data(), value.size());
  return tensor;
}

template <class T>
Tensor tensor(Shape shape, std::vector<T> values) {
  Tensor made = Tensor::make(dtype_of<T>(), std::move(shape));
  std::copy(values.begin(), values.end(), made.as_span<T>().begin());
  return made;
}

}  // namespace penstock::testing
