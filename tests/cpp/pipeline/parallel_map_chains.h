#pragma once

// Plans with a costly part before a stage of a stream, and their results.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "numbers.h"
#include "ops.h"
#include "penstock/pipeline/api/dataset.h"

namespace penstock::test {

// User code, with an inferred or a known schema.
inline OpRef costly(NumberOp::Function f) { return inferred_from_elements(std::move(f)); }
inline OpRef costly_and_known(NumberOp::Function f) {
  return std::make_shared<NumberOp>(std::move(f), true, true);
}

inline OpRef drawn(int64_t times) {
  return costly([times](int64_t n, const Keys& keys, uint32_t j) {
    return times * n + static_cast<int64_t>(keys.sample(j).rng().next_u64() & 0xff) * 100'000;
  });
}

// The same for elements of many numbers.
inline Example scaled(const Example& element, SampleContext& sample) {
  const auto from = element.at("").as_span<const int64_t>();
  Tensor to = Tensor::make(DType::kInt64, element.at("").shape());
  const auto drawn = static_cast<int64_t>(sample.rng().next_u64() & 0xff) * 100'000;
  std::ranges::transform(from, to.as_span<int64_t>().begin(), [&](int64_t n) { return n + drawn; });
  Example made;
  made.set("", std::move(to));
  return made;
}

inline bool not_of_three(const Example& element, SampleContext&) {
  return number_of(element) % 3 != 0;
}

inline std::string text_of(const Example& batch) {
  std::string text;
  for (const auto& [name, column] : batch) {
    text += name + "[";
    for (int64_t axis : column.shape()) text += std::to_string(axis) + " ";
    text += "]";
    for (int64_t n : column.as_span<const int64_t>()) text += std::to_string(n) + " ";
  }
  return text;
}

inline std::vector<std::string> texts_of(Loader& feed) {
  std::vector<std::string> all;
  for (auto& batch : feed.epoch()) all.push_back(text_of(batch));
  return all;
}

struct Case {
  const char* name;
  Dataset dataset;
};

class ParallelMapWorkers : public ::testing::TestWithParam<uint32_t> {
 protected:
  LoaderOptions options() const { return {.workers = GetParam()}; }
};

}  // namespace penstock::test
