#pragma once

// Elements that are a number, batches of them, and passes.

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/pipeline/api/loader.h"

namespace penstock::test {

using Numbers = std::vector<int64_t>;

inline int64_t number_of(const Example& element) {
  return element.at("").as_span<const int64_t>()[0];
}
inline bool kept(const Example&, SampleContext&) { return true; }
inline bool odd(const Example& element, SampleContext&) { return number_of(element) % 2 != 0; }

inline Numbers numbers_of(const Example& batch, const std::string& name = "") {
  auto column = batch.at(name).as_span<const int64_t>();
  return {column.begin(), column.end()};
}

inline std::vector<Numbers> pass_of(Loader& feed) {
  std::vector<Numbers> all;
  for (auto& batch : feed.epoch()) all.push_back(numbers_of(batch));
  return all;
}

}  // namespace penstock::test
