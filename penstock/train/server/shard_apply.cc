#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "penstock/base/clock.h"
#include "penstock/memory/copy.h"
#include "penstock/train/server/shard.h"

// How gradients become a shard's next weights.
namespace penstock::train {
namespace {

// At a time: what is read and written of it stays in a core's cache, and a copy of it goes past
// the caches.
constexpr size_t kAppliedAtOnce = size_t{64} << 10;

// DC-ASGD (Zheng et al. 2017): what the gradient would be at the weights of now, to first order,
// with the Hessian's diagonal taken to be lambda * g * g.
void compensate(std::span<float> into, std::span<const float> gradient, const float* now,
                std::span<const float> base, float lambda) {
  for (size_t i = 0; i < gradient.size(); ++i) {
    const float g = gradient[i];
    into[i] = g + lambda * g * g * (now[i] - base[i]);
  }
}

// What the parts change: ascending, with gaps between them.
std::vector<Range> touched_by(std::span<const Shard::Push* const> pushes, size_t floats) {
  std::vector<Range> all;
  for (const Shard::Push* push : pushes) {
    if (push->gradient.whole()) return {{0, floats}};
    for (const auto& piece : push->gradient.pieces()) all.push_back({piece.begin, piece.end});
  }
  if (pushes.size() == 1) return all;
  std::ranges::sort(all, {}, &Range::begin);
  std::vector<Range> merged;
  for (const Range& each : all) {
    if (merged.empty() || each.begin > merged.back().end) {
      merged.push_back(each);
    } else {
      merged.back().end = std::max(merged.back().end, each.end);
    }
  }
  return merged;
}

}  // namespace

// One update of one push, or of the average of several. REQUIRED: mutex_ is held.
void Shard::apply(std::span<const Part> given) {
  memory_->die_if(DeathAt::kBeforeApply);
  const ShardMemory::Now now = memory_->now();
  std::vector<const Push*> pushes;
  for (const Part& part : given) pushes.push_back(part.push);
  std::vector<Range> touched = touched_by(pushes, memory_->shape().floats);
  const bool other = memory_->shape().copies == 2 && !touched.empty();
  const uint32_t to = other ? 1 - now.copy : now.copy;
  const uint64_t step = memory_->record().step;
  std::vector<Part> parts(given.begin(), given.end());
  double norm = std::sqrt(parts[0].push->squares);
  double scale = 1;
  uint64_t not_finite = 0;
  for (Part& part : parts) not_finite += !std::isfinite(part.push->squares);
  if (parts.size() > 1) {
    // The average's norm is nobody's to know: each gradient is clipped by its own.
    const double clip = optimizer_.clip_norm();
    for (Part& part : parts) {
      const double own = std::sqrt(part.push->squares);
      if (clip != Optimizer::kNone) {
        part.scale = static_cast<float>(std::min(1.0, clip / (own + 1e-6)));
      }
    }
    norm = 0;
    scale = 1.0 / static_cast<double>(parts.size());
  }
  run(optimizer_.pass(step, scale, norm), parts, touched, now.copy, to);

  memory_->commit(to, [&](ShardRecord& next) {
    ++next.version;
    ++next.step;
    next.non_finite += not_finite;
    for (const Part& part : parts) {
      LedgerRow& row = next.rows[rows_.at(part.push->worker)];
      row.sequence = part.push->sequence;
      row.outcome = Outcome::kApplied;
      ++row.clock;
    }
  });
  if (other) behind_ = std::move(touched);
  for (const Part& part : parts) {
    Member& member = members_.at(part.push->worker);
    member.held = nullptr;
    ++member.pushes;
    ++pushes_;
    pulls_ += part.push->pulls;
    bytes_in_ += part.push->bytes;
    const uint64_t behind = now.version - std::min(now.version, part.push->base);
    ++staleness_[std::min<size_t>(kBins - 1, std::bit_width(behind))];
  }
  memory_->die_if(DeathAt::kAfterCommit);
}

// The copy `to` becomes what `from` is.
void Shard::catch_up(uint32_t from, uint32_t to) {
  auto copy = [&](std::span<float> into, std::span<const float> source) {
    for (const Range& range : behind_) {
      copy_stream(into.data() + range.begin, source.data() + range.begin,
                  range.size() * sizeof(float));
    }
  };
  copy(memory_->weights(to), memory_->weights(from));
  for (uint32_t i = 0; i < memory_->shape().states; ++i) {
    copy(memory_->state(to, i), memory_->state(from, i));
  }
}

// REQUIRED: `touched` is what the parts touch.
void Shard::run(const kernels::Pass& pass, std::span<const Part> parts,
                std::span<const Range> touched, uint32_t from, uint32_t to) {
  const size_t floats = memory_->shape().floats;
  const uint32_t states = memory_->shape().states;
  const size_t chunk = std::min(kAppliedAtOnce, floats);
  scratch_.resize(5 * kAppliedAtOnce);
  if (from != to) {
    const bool all = touched.size() == 1 && touched[0].size() == floats;
    if (!all) catch_up(from, to);
    // Until this update is whole nothing is known of that copy.
    behind_.assign(1, {0, floats});
  }
  auto buffer = [&](size_t i) { return std::span(scratch_).subspan(i * kAppliedAtOnce, chunk); };
  float* weights = memory_->weights(to).data();
  float* state[2] = {};
  const float* old_weights = memory_->weights(from).data();
  const float* old_state[2] = {};
  for (uint32_t i = 0; i < states; ++i) {
    state[i] = memory_->state(to, i).data();
    old_state[i] = memory_->state(from, i).data();
  }
  auto update = [&](size_t begin, size_t n) {
    std::span<const float> gradient = parts[0].push->gradient.at(begin, n, buffer(0));
    if (parts.size() > 1) {
      const auto sum = buffer(1).first(n);
      for (size_t i = 0; i < n; ++i) sum[i] = gradient[i] * parts[0].scale;
      for (const Part& part : parts.subspan(1)) {
        const auto next = part.push->gradient.at(begin, n, buffer(0));
        for (size_t i = 0; i < n; ++i) sum[i] += next[i] * part.scale;
      }
      gradient = sum;
    } else if (compensation_ > 0) {
      const auto into = buffer(1).first(n);
      compensate(into, gradient, old_weights + begin, parts[0].push->base_weights.subspan(begin, n),
                 compensation_);
      gradient = into;
    }
    if (from == to) {
      kernels::update(pass, weights + begin, gradient.data(),
                      state[0] == nullptr ? nullptr : state[0] + begin,
                      state[1] == nullptr ? nullptr : state[1] + begin, n);
    } else {
      const size_t bytes = n * sizeof(float);
      float* fresh = buffer(2).data();
      float* fresh_state[2] = {};
      std::memcpy(fresh, old_weights + begin, bytes);
      for (uint32_t i = 0; i < states; ++i) {
        fresh_state[i] = buffer(3 + i).data();
        std::memcpy(fresh_state[i], old_state[i] + begin, bytes);
      }
      kernels::update(pass, fresh, gradient.data(), fresh_state[0], fresh_state[1], n);
      copy_stream(weights + begin, fresh, bytes);
      for (uint32_t i = 0; i < states; ++i) copy_stream(state[i] + begin, fresh_state[i], bytes);
    }
    memory_->die_if(DeathAt::kInApply);
  };
  for (const Range& range : touched) {
    for (size_t begin = range.begin; begin < range.end; begin += chunk) {
      update(begin, std::min(chunk, range.end - begin));
    }
  }
}

}  // namespace penstock::train
