#include "penstock/train/server/shard_update.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "penstock/memory/copy.h"

namespace penstock::train {
namespace {

// Floats that are updated at a time: they stay in a core's cache, while the copy bypasses the
// caches.
constexpr size_t kApplyChunk = size_t{64} << 10;

// DC-ASGD (Zheng et al. 2017): estimates the gradient at the current weights, to first order, with
// lambda * g * g as the Hessian's diagonal.
void compensate(std::span<float> into, std::span<const float> gradient, const float* now,
                std::span<const float> base, float lambda) {
  for (size_t i = 0; i < gradient.size(); ++i) {
    const float g = gradient[i];
    into[i] = g + lambda * g * g * (now[i] - base[i]);
  }
}

// The ranges that the gradients change: ascending, with gaps between them.
std::vector<Range> touched_by(std::span<const ShardUpdate::Part> parts, size_t floats) {
  std::vector<Range> all;
  for (const ShardUpdate::Part& part : parts) {
    if (part.gradient->whole()) return {{0, floats}};
    for (const auto& piece : part.gradient->pieces()) all.push_back({piece.begin, piece.end});
  }
  if (parts.size() == 1) return all;
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

ShardUpdate::ShardUpdate(std::shared_ptr<ShardMemory> memory, Optimizer optimizer,
                         float compensation)
    : memory_(std::move(memory)),
      optimizer_(std::move(optimizer)),
      compensation_(compensation),
      stale_ranges_{{0, memory_->shape().floats}} {}

uint32_t ShardUpdate::compute(std::span<const Part> parts) {
  const ShardMemory::Current now = memory_->current();
  std::vector<Range> touched = touched_by(parts, memory_->shape().floats);
  const bool other = memory_->shape().copies == 2 && !touched.empty();
  const uint32_t to = other ? 1 - now.copy : now.copy;
  double norm = std::sqrt(parts[0].squares);
  double scale = 1;
  std::vector<float> scales(parts.size(), 1);
  if (parts.size() > 1) {
    // The norm of the average is unknown: each gradient is clipped by its own norm.
    const double clip = optimizer_.clip_norm();
    for (size_t i = 0; i < parts.size(); ++i) {
      const double own = std::sqrt(parts[i].squares);
      if (clip != Optimizer::kNone) {
        scales[i] = static_cast<float>(std::min(1.0, clip / (own + 1e-6)));
      }
    }
    norm = 0;
    scale = 1.0 / static_cast<double>(parts.size());
  }
  const uint64_t step = memory_->record().step;
  run(optimizer_.pass(step, scale, norm), parts, scales, touched, now.copy, to);
  if (!other) touched.clear();
  touched_ = std::move(touched);
  return to;
}

void ShardUpdate::committed() {
  if (!touched_.empty()) stale_ranges_ = std::move(touched_);
}

// Copies the stale ranges from copy `from` to copy `to`.
void ShardUpdate::copy_stale_ranges(uint32_t from, uint32_t to) {
  auto copy = [&](std::span<float> into, std::span<const float> source) {
    for (const Range& range : stale_ranges_) {
      copy_stream(into.data() + range.begin, source.data() + range.begin,
                  range.size() * sizeof(float));
    }
  };
  copy(memory_->weights(to), memory_->weights(from));
  for (uint32_t i = 0; i < memory_->shape().states; ++i) {
    copy(memory_->state(to, i), memory_->state(from, i));
  }
}

// REQUIRED: `touched` are the ranges that the parts change.
void ShardUpdate::run(const kernels::Pass& pass, std::span<const Part> parts,
                      std::span<const float> scales, std::span<const Range> touched, uint32_t from,
                      uint32_t to) {
  const size_t floats = memory_->shape().floats;
  const uint32_t states = memory_->shape().states;
  const size_t chunk = std::min(kApplyChunk, floats);
  scratch_.resize(5 * kApplyChunk);
  if (from != to) {
    const bool all = touched.size() == 1 && touched[0].size() == floats;
    if (!all) copy_stale_ranges(from, to);
    // Until this update is complete, the other copy is stale everywhere.
    stale_ranges_.assign(1, {0, floats});
  }
  auto buffer = [&](size_t i) { return std::span(scratch_).subspan(i * kApplyChunk, chunk); };
  float* weights = memory_->weights(to).data();
  float* state[2] = {};
  const float* old_weights = memory_->weights(from).data();
  const float* old_state[2] = {};
  for (uint32_t i = 0; i < states; ++i) {
    state[i] = memory_->state(to, i).data();
    old_state[i] = memory_->state(from, i).data();
  }
  auto update = [&](size_t begin, size_t n) {
    std::span<const float> gradient = parts[0].gradient->at(begin, n, buffer(0));
    if (parts.size() > 1) {
      const auto sum = buffer(1).first(n);
      for (size_t i = 0; i < n; ++i) sum[i] = gradient[i] * scales[0];
      for (size_t part = 1; part < parts.size(); ++part) {
        const auto next = parts[part].gradient->at(begin, n, buffer(0));
        for (size_t i = 0; i < n; ++i) sum[i] += next[i] * scales[part];
      }
      gradient = sum;
    } else if (compensation_ > 0) {
      const auto into = buffer(1).first(n);
      compensate(into, gradient, old_weights + begin, parts[0].base_weights.subspan(begin, n),
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
    memory_->crash_if(CrashPoint::kInApply);
  };
  for (const Range& range : touched) {
    for (size_t begin = range.begin; begin < range.end; begin += chunk) {
      update(begin, std::min(chunk, range.end - begin));
    }
  }
}

}  // namespace penstock::train
