#pragma once

// Streams for tests of stages.

#include <functional>
#include <stdexcept>
#include <utility>

#include "../numbers.h"
#include "../ops.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "reference.h"
#include "stream_contract.h"

namespace penstock::testing {

using test::number_of;

inline OpRef predicate(std::function<bool(int64_t)> holds) {
  return test::number_op(
      [holds](int64_t n, const Keys&, uint32_t) { return static_cast<int64_t>(holds(n)); });
}

inline Node::Ref filtered(Node::Ref input, std::function<bool(int64_t)> holds) {
  return nodes::filter(std::move(input), predicate(std::move(holds)));
}

inline bool is_odd(int64_t n) { return n % 2 != 0; }

// The odd numbers below `end`, in another order each epoch.
inline Node::Ref odds(int64_t end) { return filtered(nodes::shuffle(range(end), 4), is_odd); }
inline reference::Dataset ref_odds(int64_t end) {
  return reference::filter(reference::shuffle(reference::range(0, end), 4), is_odd);
}

// 0, 1, ...; every number that ends in 7 fails.
inline Node::Ref faulty(int64_t end) {
  return nodes::filter(range(end), test::number_op([](int64_t n, const Keys&, uint32_t) {
                         if (n % 10 == 7) throw std::runtime_error("a seven");
                         return int64_t{1};
                       }));
}

}  // namespace penstock::testing
