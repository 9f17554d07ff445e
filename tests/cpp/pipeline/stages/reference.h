#pragma once

// Each transformation as a few lines over std::vector, for elements that are single numbers.
// Written from tf.data's documentation, or from docs/design/pipeline.md for stages that tf.data
// lacks. Slow, simple, and without code in common with the tested stages.

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

inline Dataset filter(Dataset input, std::function<bool(int64_t)> predicate) {
  return [=](uint64_t epoch) {
    Elements out;
    for (int64_t element : input(epoch)) {
      if (predicate(element)) out.push_back(element);
    }
    return out;
  };
}

inline Dataset take_while(Dataset input, std::function<bool(int64_t)> predicate) {
  return [=](uint64_t epoch) {
    Elements out;
    for (int64_t element : input(epoch)) {
      if (!predicate(element)) break;
      out.push_back(element);
    }
    return out;
  };
}

enum class Rest { kKeep, kDrop, kPad };

// tf.data's shard(num_shards, index), if the remainder is kept.
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

// tf.data's: "maintains a fixed-size buffer and chooses the next element uniformly at random from
// that buffer", which is filled up first.
inline Dataset shuffle_buffer(Dataset input, uint64_t seed, uint64_t size, bool reshuffle = true) {
  return [=](uint64_t epoch) {
    const uint64_t key = derive_key(seed, reshuffle ? epoch : 0, KeyUse::kBuffer);
    Elements all = input(epoch), buffer, out;
    std::reverse(all.begin(), all.end());
    for (uint64_t draw = 0;; ++draw) {
      while (buffer.size() < size && !all.empty()) {
        buffer.push_back(all.back());
        all.pop_back();
      }
      if (buffer.empty()) return out;
      const uint64_t place = RandomStream({key, 0, draw, 0}).below(buffer.size());
      out.push_back(buffer[place]);
      buffer[place] = buffer.back();
      buffer.pop_back();
    }
  };
}

inline Dataset unique(Dataset input) {
  return [=](uint64_t epoch) {
    Elements out;
    for (int64_t element : input(epoch)) {
      if (std::find(out.begin(), out.end(), element) == out.end()) out.push_back(element);
    }
    return out;
  };
}

inline Dataset flat_map(Dataset input, std::function<Dataset(int64_t)> open) {
  return [=](uint64_t epoch) {
    Elements out;
    for (int64_t element : input(epoch)) {
      for (int64_t inner : open(element)(epoch)) out.push_back(inner);
    }
    return out;
  };
}

// tf.data's choose_from_datasets; sample_from_datasets is the same with choices that are drawn.
inline Dataset choose_from(Dataset choices, std::vector<Dataset> inputs, bool stop_on_empty) {
  return [=](uint64_t epoch) {
    std::vector<Elements> left;
    for (const Dataset& input : inputs) left.push_back(input(epoch));
    Elements out;
    for (int64_t choice : choices(epoch)) {
      Elements& from = left[static_cast<size_t>(choice)];
      if (from.empty() && stop_on_empty) break;
      if (from.empty()) continue;
      out.push_back(from.front());
      from.erase(from.begin());
    }
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

inline Lists batch(const Dataset& input, uint64_t size, bool drop_last, uint64_t epoch) {
  Lists out;
  Elements now;
  for (int64_t element : input(epoch)) {
    now.push_back(element);
    if (now.size() == size) out.push_back(std::exchange(now, {}));
  }
  if (!now.empty() && !drop_last) out.push_back(now);
  return out;
}

// A window is a dataset of its elements there; here it is a list.
inline Lists window(const Dataset& input, uint64_t size, uint64_t shift, uint64_t stride,
                    bool drop_last, uint64_t epoch) {
  const Elements all = input(epoch);
  Lists out;
  for (uint64_t begin = 0; begin < all.size(); begin += shift) {
    Elements window;
    for (uint64_t i = begin; i < all.size() && window.size() < size; i += stride) {
      window.push_back(all[i]);
    }
    if (window.size() == size || !drop_last) out.push_back(window);
  }
  return out;
}

// The loop of tf.data's interleave: places with an input or nothing; a turn is `block` elements,
// and ends early with the input.
inline Elements interleave(const std::vector<Dataset>& inputs, uint64_t cycle, uint64_t block,
                           uint64_t epoch) {
  std::vector<std::vector<int64_t>> places(cycle);  // what is left of each, from the back
  std::vector<bool> open(cycle);
  uint64_t next = 0, place = 0, given = 0;
  Elements out;
  auto move_on = [&] {
    place = (place + 1) % cycle;
    given = 0;
  };
  while (next < inputs.size() || std::find(open.begin(), open.end(), true) != open.end()) {
    if (open[place]) {
      if (places[place].empty()) {
        open[place] = false;
        move_on();
        continue;
      }
      out.push_back(places[place].back());
      places[place].pop_back();
      if (++given == block) move_on();
    } else if (next < inputs.size()) {
      places[place] = inputs[next++](epoch);
      std::reverse(places[place].begin(), places[place].end());
      open[place] = true;
    } else {
      move_on();
    }
  }
  return out;
}

}  // namespace penstock::testing::reference
