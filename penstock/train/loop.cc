#include "penstock/train/loop.h"

#include <algorithm>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"

namespace penstock::train {
namespace {

constexpr const char* kOperation = "Loop";

const Loop::Options& checked(const Loop::Options& options) {
  if (options.batch_size > 0 && options.batch_size <= INT64_MAX && options.steps > 0 &&
      options.look_every_ns >= 0) {
    return options;
  }
  throw Error(Code::kInvalidArgument, kOperation,
              "batch_size is " + std::to_string(options.batch_size) + ", steps " +
                  std::to_string(options.steps) + " and look_every_ns " +
                  std::to_string(options.look_every_ns) + "; give 1 or more, and 0 or more");
}

Loader super_batches(const Dataset& samples, const Loop::Options& options) {
  uint64_t rows;
  if (__builtin_mul_overflow(checked(options).batch_size, options.steps, &rows)) {
    throw Error(Code::kInvalidArgument, kOperation, "steps * batch_size is too large");
  }
  return samples.batch(rows).build(options.feed);
}

}  // namespace

Loop::Loop(const Dataset& samples, const Options& options)
    : options_(options), own_(super_batches(samples, options)), feed_(*own_) {}

Loop::Loop(Loader& feed, const Options& options) : options_(checked(options)), feed_(feed) {}

bool Loop::fill() {
  if (left()) return true;
  begin_ = rows_ = 0;
  super_.reset();  // releases its memory for the next batch
  batch_ = {};
  super_ = feed_.next();
  if (!super_) {
    if (std::exchange(empty_, true)) {
      throw Error(Code::kInvalidArgument, kOperation, "the feed gave no batch");
    }
    return false;
  }
  empty_ = false;
  for (const auto& [name, tensor] : *super_) {
    const int64_t rows = tensor.ndim() == 0 ? -1 : tensor.dim(0);
    if (&tensor == &super_->begin()->second) rows_ = rows;
    if (rows == rows_ && rows >= 0) continue;
    rows_ = 0;
    throw Error(Code::kInvalidArgument, kOperation,
                "field '" + name +
                    "' of a super-batch does not have one row for each sample, so it cannot be "
                    "cut into steps");
  }
  return true;
}

const Example& Loop::next() {
  const int64_t end = std::min(begin_ + static_cast<int64_t>(options_.batch_size), rows_);
  for (const auto& [name, tensor] : *super_) batch_.set(name, tensor.rows(begin_, end));
  begin_ = end;
  return batch_;
}

}  // namespace penstock::train
