#include "penstock/image/plane_weights.h"

#include <algorithm>

namespace penstock::image {
namespace {

// Rounds weights in units of 2^-from_bits, of which all are positive, to numbers that add up to
// `total`. The largest one takes what rounding loses.
void round_weights(int32_t* weights, int taps, int from_bits, int total) {
  const int64_t half = int64_t{1} << (from_bits - 1);
  int sum = 0, largest = 0;
  for (int k = 0; k < taps; ++k) {
    weights[k] = static_cast<int32_t>((int64_t{weights[k]} * total + half) >> from_bits);
    sum += weights[k];
    if (weights[k] > weights[largest]) largest = k;
  }
  weights[largest] += total - sum;
}

}  // namespace

void PlaneWeights::compose(const AxisWeights& axis, int count, int origin,
                           const SampleAxis& samples, int total, bool mirrored) {
  const bool halves = samples.pixels == 2;
  stride_ = halves ? axis.most_taps() / 2 + 4 : axis.most_taps();
  places_.resize(static_cast<size_t>(count));
  weights_.assign(static_cast<size_t>(count * stride_), 0);
  first_ = samples.count;
  end_ = most_taps_ = 0;
  for (int i = 0; i < count; ++i) {
    const int place = mirrored ? count - 1 - i : i;
    const int from = origin + axis.begin(place), taps = axis.taps(place);
    const int32_t* pixel_weights = axis.weights(place);
    int32_t* const to = weights_.data() + static_cast<size_t>(i * stride_);
    Place& made = places_[static_cast<size_t>(i)];
    if (!halves) {
      made = {from, taps};
      std::copy_n(pixel_weights, taps, to);
      round_weights(to, taps, AxisWeights::kBits, total);
    } else {
      const int last = samples.count - 1;
      const int begin =
          std::clamp(from % 2 == 0 && samples.smooth ? from / 2 - 1 : from / 2, 0, last);
      int end = begin;
      for (int k = 0; k < taps; ++k) {
        const int x = from + k, near = std::min(x / 2, last);
        const int far =
            samples.smooth ? std::clamp(x % 2 == 0 ? near - 1 : near + 1, 0, last) : near;
        to[near - begin] += 3 * pixel_weights[k];
        to[far - begin] += pixel_weights[k];
        end = std::max({end, near + 1, far + 1});
      }
      made = {begin, end - begin};
      round_weights(to, made.taps, AxisWeights::kBits + 2, total);
    }
    first_ = std::min(first_, made.begin);
    end_ = std::max(end_, made.begin + made.taps);
    most_taps_ = std::max(most_taps_, made.taps);
  }
}

}  // namespace penstock::image
