#include "penstock/pipeline/scheduler/order.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "penstock/base/bijection.h"
#include "penstock/base/error.h"
#include "penstock/base/random.h"

namespace penstock {
namespace {

Error refuse_order(const std::string& text) { return Error(Code::kInvalidArgument, "order", text); }

}  // namespace

Order::Order(const Options& options) : options_(options) {
  if (options.batch_size == 0) throw refuse_order("batch_size must be at least 1");
  if (options.world == 0) throw refuse_order("shard=(rank, world): world must be at least 1");
  if (options.rank >= options.world) {
    throw refuse_order("shard=(" + std::to_string(options.rank) + ", " +
                       std::to_string(options.world) + "): rank must be below world");
  }
  if (options.length > Bijection::kMaxLength) {
    throw refuse_order("a dataset of " + std::to_string(options.length) +
                       " samples is longer than 2^62");
  }
  if (options.batch_size > Bijection::kMaxLength / options.world) {
    throw refuse_order("batch_size " + std::to_string(options.batch_size) + " times world " +
                       std::to_string(options.world) + " is more than 2^62");
  }
}

uint64_t Order::steps(uint64_t base) const {
  const auto& [length, batch_size, shuffle, seed, drop_last, rank, world] = options_;
  uint64_t batches = length / batch_size + (!drop_last && length % batch_size != 0);
  uint64_t left = batches - std::min(batches, base);
  return left / world + (!drop_last && left % world != 0);
}

uint64_t Order::samples_in(uint64_t base, uint64_t step) const {
  if (step >= steps(base)) return 0;
  if (options_.drop_last || options_.world > 1) return options_.batch_size;
  return std::min(options_.batch_size, options_.length - position(base, step, 0));
}

void Order::indices(uint64_t epoch, uint64_t base, uint64_t step, uint64_t first_row,
                    std::span<uint64_t> out) const {
  uint64_t samples = samples_in(base, step);
  if (first_row > samples || out.size() > samples - first_row) {
    throw refuse_order("rows " + std::to_string(first_row) + " to " +
                       std::to_string(first_row + out.size()) + " of batch " +
                       std::to_string(step) + ", which has " + std::to_string(samples));
  }
  if (out.empty()) return;
  uint64_t from = position(base, step, first_row) % options_.length;
  Bijection shuffled(options_.shuffle ? options_.length : 0,
                     derive_key(options_.seed, epoch, KeyUse::kOrder));
  while (!out.empty()) {
    std::span<uint64_t> run = out.first(std::min<uint64_t>(out.size(), options_.length - from));
    if (options_.shuffle) {
      shuffled.map(from, run.size(), run.data());
    } else {
      std::iota(run.begin(), run.end(), from);
    }
    out = out.subspan(run.size());
    from = 0;
  }
}

uint64_t Order::replacement(uint64_t epoch, uint64_t position, uint32_t attempt) const {
  if (options_.length == 0) throw refuse_order("an empty dataset has no replacement for a sample");
  Bijection salted(options_.length, derive_key(options_.seed, epoch, KeyUse::kReplacement));
  return salted((position % options_.length + attempt) % options_.length);
}

}  // namespace penstock
