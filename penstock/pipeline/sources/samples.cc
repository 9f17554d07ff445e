#include "penstock/pipeline/sources/samples.h"

#include "penstock/pipeline/builder.h"
#include "penstock/pipeline/feed/order.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "penstock/pipeline/stages/user_calls.h"
#include "penstock/pipeline/transformations/batch.h"
#include "penstock/pipeline/transformations/on_error.h"
#include "penstock/pipeline/transformations/shard.h"
#include "penstock/pipeline/transformations/shuffle.h"

namespace penstock {
namespace {

// Attempts to replace an item that is a whole batch, of how many samples nobody knows.
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

class SampleBatch : public Collated {
 public:
  SampleBatch(IndexedRef input, const Order::Options& order)
      : Collated(std::move(input)), order_(order) {}

  // `base` counts samples, as everywhere below a batch.
  uint64_t length(uint64_t base) const override { return order().steps(batches_in(base)); }
  uint64_t rows(uint64_t batch, uint64_t base) const override {
    return order().samples_in(batches_in(base), batch);
  }
  uint64_t most_rows() const override { return order_.options().batch_size; }
  uint64_t element(uint64_t batch, uint64_t row, uint64_t base) const override {
    const Order::Options& of = order_.options();
    const uint64_t position = base + (batch * of.world + of.rank) * of.batch_size + row;
    const uint64_t length = input()->length(0);
    return position < length ? position : position % length;
  }

 private:
  // As long as the data set is now. The feed asks several times a batch.
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

  Order order_;  // with the length that the data set had when this was built
};

class ListedBatch : public Collated {
 public:
  ListedBatch(IndexedRef input, uint64_t most_rows)
      : Collated(std::move(input)), most_rows_(most_rows) {}

  uint64_t length(uint64_t) const override { return kEndless; }
  uint64_t rows(uint64_t, uint64_t) const override { return most_rows_; }
  uint64_t most_rows() const override { return most_rows_; }
  uint64_t element(uint64_t, uint64_t row, uint64_t) const override { return row; }

 private:
  uint64_t most_rows_;
};

}  // namespace

Built SamplesNode::build(std::vector<Built>, Builder&) const {
  (void)Order({.length = samples_->length()});  // it says what is too long
  return {std::make_shared<SamplesStage>(samples_, whole_)};
}

SampleBatchNode::SampleBatchNode(Ref input, uint64_t n, bool drop_last,
                                 const LoaderOptions::Shard& shard)
    : Node({std::move(input)}), n_(n), drop_last_(drop_last), shard_(shard) {
  Batch::check(n, "Loader");
  (void)Order({.batch_size = n, .rank = shard.rank, .world = shard.world});
}

std::string SampleBatchNode::title() const {
  return "batch(" + std::to_string(n_) + (drop_last_ ? ", drop_last)" : ")");
}

Built SampleBatchNode::build(std::vector<Built> inputs, Builder& builder) const {
  const IndexedRef input = inputs[0].indexed;
  builder.set_sharded({shard_.world, input});
  return {std::make_shared<SampleBatch>(input, Order::Options{.length = input->length(0),
                                                              .batch_size = n_,
                                                              .drop_last = drop_last_,
                                                              .rank = shard_.rank,
                                                              .world = shard_.world})};
}

ListedBatchNode::ListedBatchNode(Ref input, uint64_t most_rows)
    : Node({std::move(input)}), most_rows_(most_rows) {
  Batch::check(most_rows, "Loader");
}

std::string ListedBatchNode::title() const {
  return "batch(sampler, " + std::to_string(most_rows_) + ")";
}

Built ListedBatchNode::build(std::vector<Built> inputs, Builder&) const {
  return {std::make_shared<ListedBatch>(inputs[0].indexed, most_rows_)};
}

Node::Ref plan_of_samples(std::shared_ptr<Samples> samples, const LoaderOptions& options) {
  return batches_of(std::make_shared<SamplesNode>(std::move(samples), options.batch_size == 0),
                    options);
}

Node::Ref batches_of(Node::Ref node, const LoaderOptions& options) {
  const bool whole = options.batch_size == 0;
  if (options.shuffle) node = std::make_shared<ShuffleNode>(node, options.seed);
  if (options.on_error == OnError::kReplace) {
    const uint64_t attempts = whole ? kItemAttempts : options.batch_size;
    node = std::make_shared<OnErrorNode>(node, OnError::kReplace, attempts);
  }
  const auto& [rank, world] = options.shard;
  if (!whole) {
    return std::make_shared<SampleBatchNode>(node, options.batch_size, options.drop_last,
                                             options.shard);
  }
  return std::make_shared<ShardNode>(node, rank, world,
                                     options.drop_last ? Remainder::kDrop : Remainder::kPad);
}

}  // namespace penstock
