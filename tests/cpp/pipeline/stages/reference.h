#pragma once

// Each transformation as a few lines over std::vector, written from what tf.data's documentation
// says of it (for elements that are single numbers), and from docs/pipeline.md where tf.data has no
// such thing. Slow, obvious, and sharing no code with the stages that are compared with it.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "penstock/base/bijection.h"
#include "penstock/base/random.h"

namespace penstock::testing::reference {

using Elements = std::vector<int64_t>;
// A dataset: the elements of an epoch.
using Dataset = std::function<Elements(uint64_t epoch)>;

inline Dataset range(int64_t begin, int64_t end, int64_t step = 1) {
  return [=](uint64_t) {
    Elements out;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) out.push_back(i);
    return out;
  };
}

inline Dataset take(Dataset input, uint64_t n) {
  return [=](uint64_t epoch) {
    Elements out = input(epoch);
    if (out.size() > n) out.resize(n);
    return out;
  };
}

inline Dataset skip(Dataset input, uint64_t n) {
  return [=](uint64_t epoch) {
    Elements out;
    uint64_t seen = 0;
    for (int64_t element : input(epoch)) {
      if (seen++ >= n) out.push_back(element);
    }
    return out;
  };
}

enum class Rest { kKeep, kDrop, kPad };

// tf.data's shard(num_shards, index) where the remainder is kept.
inline Dataset shard(Dataset input, uint64_t rank, uint64_t world, Rest rest = Rest::kKeep,
                     uint64_t used = 0) {
  return [=](uint64_t epoch) {
    Elements all = input(epoch), left, out;
    for (uint64_t i = used; i < all.size(); ++i) left.push_back(all[i]);
    if (rest == Rest::kDrop) {
      while (left.size() % world != 0) left.pop_back();
    }
    if (rest == Rest::kPad) {
      for (uint64_t i = 0; left.size() % world != 0; ++i) left.push_back(all[i % all.size()]);
    }
    for (uint64_t i = 0; i < left.size(); ++i) {
      if (i % world == rank) out.push_back(left[i]);
    }
    return out;
  };
}

inline Dataset shuffle(Dataset input, uint64_t seed, bool reshuffle = true) {
  return [=](uint64_t epoch) {
    Elements all = input(epoch), out;
    Bijection order(all.size(), derive_key(seed, reshuffle ? epoch : 0, KeyUse::kOrder));
    for (uint64_t i = 0; i < all.size(); ++i) out.push_back(all[order(i)]);
    return out;
  };
}

inline Dataset repeat(Dataset input, uint64_t count) {
  return [=](uint64_t epoch) {
    Elements out;
    for (uint64_t round = 0; round < count; ++round) {
      for (int64_t element : input(epoch * count + round)) out.push_back(element);
    }
    return out;
  };
}

inline Dataset concatenate(std::vector<Dataset> inputs) {
  return [=](uint64_t epoch) {
    Elements out;
    for (const Dataset& input : inputs) {
      for (int64_t element : input(epoch)) out.push_back(element);
    }
    return out;
  };
}

// Its elements are lists.
using Lists = std::vector<Elements>;

inline Lists zip(const std::vector<Dataset>& inputs, uint64_t epoch) {
  Lists out;
  for (uint64_t i = 0;; ++i) {
    Elements element;
    for (const Dataset& input : inputs) {
      Elements all = input(epoch);
      if (i >= all.size()) return out;
      element.push_back(all[i]);
    }
    out.push_back(element);
  }
}

inline Lists batch(const Dataset& input, uint64_t size, bool drop_remainder, uint64_t epoch) {
  Lists out;
  Elements now;
  for (int64_t element : input(epoch)) {
    now.push_back(element);
    if (now.size() == size) out.push_back(std::exchange(now, {}));
  }
  if (!now.empty() && !drop_remainder) out.push_back(now);
  return out;
}

}  // namespace penstock::testing::reference
