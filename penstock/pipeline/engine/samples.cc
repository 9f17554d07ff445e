#include "penstock/pipeline/engine/samples.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/scheduler/order.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "penstock/pipeline/stages/user_calls.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

// Limits the attempts to replace an item that is a whole batch, of unknown size.
constexpr uint32_t kItemAttempts = 16;

class SamplesStage : public Indexed {
 public:
  SamplesStage(std::shared_ptr<Samples> samples, bool whole)
      : samples_(std::move(samples)), whole_(whole) {}

  uint64_t length(uint64_t) const override { return samples_->length(); }
  SpecRef spec() const override { return nullptr; }
  bool costly() const override { return true; }
  std::optional<uint64_t> index(const At&, uint64_t position) const override { return position; }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const SamplesStage& stage, Context& context)
        : stage_(stage), context_(context), calls_("batch", context) {}

    void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out,
               uint32_t row) override {
      StageClock::Part part(context_.clock);
      const Keys keys(context_, at.epoch, positions, 0);
      const size_t before = out.failures().size();
      for (uint32_t j = 0; j < keys.size(); ++j) {
        auto get = [&](SampleContext& sample) {
          return stage_.samples_->source().get(keys.position(j), sample);
        };
        if (stage_.whole_) {
          calls_.make_whole(keys, j, out, row + j, get);
        } else {
          calls_.make(keys, j, out, row + j, get);
        }
      }
      for (size_t i = before; i < out.failures().size(); ++i) {
        auto& [lost, failure] = out.failures()[i];
        failure.position = positions[lost - row];
      }
    }

   private:
    const SamplesStage& stage_;
    Context& context_;
    UserCalls calls_;
  };

  std::shared_ptr<Samples> samples_;
  bool whole_;
};

class CallerSamples : public Indexed {
 public:
  explicit CallerSamples(SampleCount count) : count_(std::move(count)) {}

  uint64_t length(uint64_t) const override { return count_->load(std::memory_order_acquire); }
  SpecRef spec() const override { return nullptr; }
  bool costly() const override { return true; }
  std::optional<uint64_t> index(const At&, uint64_t position) const override { return position; }
  std::unique_ptr<IndexedReader> reader(Context&) const override {
    throw Error(Code::kInternal, "Loader", "samples that the caller's workers make");
  }

 private:
  SampleCount count_;
};

class SampleBatch : public Collated {
 public:
  SampleBatch(IndexedRef input, const Order::Options& order)
      : Collated(std::move(input)), order_(order) {}

  // `base` counts samples, as in all stages below a batch.
  uint64_t length(uint64_t base) const override { return order().steps(batches_in(base)); }
  uint64_t rows(uint64_t batch, uint64_t base) const override {
    return order().samples_in(batches_in(base), batch);
  }
  uint64_t max_rows() const override { return order_.options().batch_size; }
  uint64_t element(uint64_t batch, uint64_t row, uint64_t base) const override {
    const Order::Options& of = order_.options();
    const uint64_t position = base + (batch * of.world + of.rank) * of.batch_size + row;
    const uint64_t length = input()->length(0);
    return position < length ? position : position % length;
  }

 private:
  // Uses the data set's current length. Cached, because the feed asks several times per batch.
  Order order() const {
    const uint64_t length = input()->length(0);
    if (length == order_.options().length) return order_;
    Order::Options options = order_.options();
    options.length = length;
    return Order(options);
  }
  uint64_t batches_in(uint64_t base) const {
    return base == 0 ? 0 : base / order_.options().batch_size;
  }

  Order order_;  // for the data set's length when this was built
};

// Batches whose tickets are described by something else: a sampler, or streams.
class DescribedBatch : public Collated {
 public:
  // `listed`: the tickets say which samples there are; else the positions of samples count on.
  DescribedBatch(IndexedRef input, uint64_t max_rows, bool listed)
      : Collated(std::move(input)), max_rows_(max_rows), listed_(listed) {}

  uint64_t length(uint64_t) const override { return kEndless; }
  uint64_t rows(uint64_t, uint64_t) const override { return max_rows_; }
  uint64_t max_rows() const override { return max_rows_; }
  uint64_t element(uint64_t batch, uint64_t row, uint64_t base) const override {
    return listed_ ? row : (base + batch) * max_rows_ + row;
  }

 private:
  uint64_t max_rows_;
  bool listed_;
};

// Element i is the result of the data set's get(i). `whole`: an element is already a batch, and the
// tensors from get() are handed out as they are. Building, Error kInvalidArgument: more than 2^62
// samples.
Node::Ref samples_node(std::shared_ptr<Samples> samples, bool whole) {
  return make_node({
      .title = "get()",
      .build = [samples = std::move(samples), whole](std::vector<Built>, Builder&) -> Built {
        (void)Order({.length = samples->length()});  // throws if there are too many samples
        return {std::make_shared<SamplesStage>(samples, whole)};
      },
  });
}

// A Loader's batches: n samples stacked, and dealt out to the ranks of a shard. Order decides which
// samples a batch has, and how the last round is filled up. Error kInvalidArgument: the shard is
// invalid, or n is above 2^32 - 1.
Node::Ref sample_batches(Node::Ref input, uint64_t n, bool drop_last,
                         const LoaderOptions::Shard& shard) {
  check_batch_size(n, "Loader");
  const Order::Options order{
      .batch_size = n, .drop_last = drop_last, .rank = shard.rank, .world = shard.world};
  (void)Order(order);
  return make_node({
      .title = "batch(" + std::to_string(n) + (drop_last ? ", drop_last)" : ")"),
      .inputs = {std::move(input)},
      .build = [order](std::vector<Built> inputs, Builder& builder) -> Built {
        builder.set_sharded({order.world, inputs[0].indexed});
        Order::Options now = order;
        now.length = inputs[0].indexed->length(0);
        return {std::make_shared<SampleBatch>(inputs[0].indexed, now)};
      },
      .inputs_per_element = n,
      .deals_out = true,
  });
}

Node::Ref described_batches(Node::Ref samples, uint64_t max_rows, bool listed) {
  check_batch_size(max_rows, "Loader");
  return make_node({
      .title = (listed ? "batch(sampler, " : "batch(") + std::to_string(max_rows) + ")",
      .inputs = {std::move(samples)},
      .build = [max_rows, listed](std::vector<Built> inputs, Builder&) -> Built {
        return {std::make_shared<DescribedBatch>(inputs[0].indexed, max_rows, listed)};
      },
      .listed = listed,
  });
}

}  // namespace

Node::Ref plan_of_samples(std::shared_ptr<Samples> samples, const LoaderOptions& options) {
  return batches_of(samples_node(std::move(samples), options.batch_size == 0), options);
}

Node::Ref caller_samples(SampleCount count, std::string title) {
  return make_node({
      .title = std::move(title),
      .build = [count = std::move(count)](std::vector<Built>, Builder&) -> Built {
        return {std::make_shared<CallerSamples>(count)};
      },
  });
}

Node::Ref listed_batches(Node::Ref samples, uint64_t max_rows) {
  return described_batches(std::move(samples), max_rows, true);
}

Node::Ref stream_batches(Node::Ref samples, uint64_t rows) {
  return described_batches(std::move(samples), rows, false);
}

Node::Ref batches_of(Node::Ref node, const LoaderOptions& options) {
  const bool whole = options.batch_size == 0;
  if (options.shuffle) node = nodes::shuffle(node, options.seed);
  if (options.on_error == OnError::kReplace) {
    const uint64_t attempts = whole ? kItemAttempts : options.batch_size;
    node = nodes::on_error(node, OnError::kReplace, attempts);
  }
  if (!whole) return sample_batches(node, options.batch_size, options.drop_last, options.shard);
  const auto& [rank, world] = options.shard;
  return nodes::shard(node, rank, world, options.drop_last ? Remainder::kDrop : Remainder::kPad);
}

}  // namespace penstock
