#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/streams/held_back.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

using Options = BucketByLengthOptions;

Error refuse_buckets(const std::string& why) {
  return {Code::kInvalidArgument, "bucket_by_length", why};
}

// The error for an element of several leaves where no field is named.
std::string which_field(const ElementSpec& spec) {
  for (const Leaf& leaf : spec.leaves()) {
    if (leaf.shape.empty()) continue;
    return "of " + spec.to_string() + ", say which field's length counts: field='" + leaf.name +
           "'";
  }
  return "nothing of " + spec.to_string() + " has a length";
}

// The leaf whose first axis is the length.
size_t leaf_of(const ElementSpec& spec, const std::string& field) {
  auto leaf = spec.find(field);
  if (!leaf && field.empty()) throw refuse_buckets(which_field(spec));
  if (!leaf) throw refuse_buckets("there is no field '" + field + "' in " + spec.to_string());
  if (spec.leaves()[*leaf].shape.empty()) {
    throw refuse_buckets("'" + field + "' of " + spec.to_string() + " has no length");
  }
  return *leaf;
}

class BucketByLength : public StreamMapped {
 public:
  BucketByLength(StreamedRef input, Options options, std::string title)
      : StreamMapped(std::move(input)),
        options_(std::move(options)),
        padding_{options_.padding},
        title_(std::move(title)) {
    if (SpecRef spec = this->input()->spec()) {
      (void)leaf_of(*spec, options_.field);
      (void)padding_.columns(*spec);
    }
  }

  SpecRef spec() const override { return nullptr; }
  std::optional<uint64_t> length() const override {
    if (input()->length() == uint64_t{0}) return 0;
    return std::nullopt;
  }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  using Bucket = std::vector<std::unique_ptr<HeldRow>>;

  class Reader : public ElementReader {
   public:
    Reader(const BucketByLength& stage, Context& context)
        : stage_(stage),
          input_(*stage.input(), context, 64, [this](StreamInput& input) { judge(input); }),
          buckets_(stage.options_.batch_sizes.size()),
          batch_(stage.title_, stage.input()->spec(), Collector::Lengths::kPadded,
                 &stage.padding_) {}

    void begin(uint64_t epoch) override {
      for (Bucket& bucket : buckets_) bucket.clear();
      input_.begin(epoch);
    }

    // Gives one batch, or one failed element.
    uint32_t next(uint32_t, Chunk& out) override {
      batch_.empty();
      while (input_.more()) {
        if (input_.input().failed()) {
          out.reset(nullptr, 1);
          pass_row(input_.input().chunk(), input_.input().row(), out, 0);
          input_.pass();
          return 1;
        }
        const size_t at = bucket_of_next();
        buckets_[at].push_back(input_.hold());
        if (buckets_[at].size() == stage_.options_.batch_sizes[at]) return give(buckets_[at], out);
      }
      if (stage_.options_.drop_last) return drop_waiting(out);
      for (Bucket& bucket : buckets_) {
        if (!bucket.empty()) return give(bucket, out);
      }
      return 0;
    }

    State save() const override {
      State waiting = State::array();
      for (const Bucket& bucket : buckets_) {
        State ordinals = State::array();
        for (const auto& row : bucket) ordinals.push_back(row->ordinal);
        waiting.push_back(std::move(ordinals));
      }
      return {{"waiting", std::move(waiting)}, {"held", input_.save()}};
    }

    void load(uint64_t epoch, const State& state) override {
      const State& waiting = member_of(state, "waiting");
      if (!waiting.is_array() || waiting.size() != buckets_.size()) {
        throw refuse_restore("the state is of other buckets");
      }
      std::unordered_map<uint64_t, size_t> bucket_of;
      for (size_t i = 0; i < buckets_.size(); ++i) {
        buckets_[i].clear();
        for (const State& ordinal : waiting[i]) {
          if (!ordinal.is_number_unsigned()) {
            throw refuse_restore("what waits in a bucket is no ordinal");
          }
          bucket_of[ordinal.get<uint64_t>()] = i;
        }
      }
      size_t found = 0;
      input_.load(
          epoch, member_of(state, "held"),
          [&](uint64_t ordinal) { return bucket_of.contains(ordinal); },
          [&](std::unique_ptr<HeldRow> row) {
            buckets_[bucket_of[row->ordinal]].push_back(std::move(row));
            ++found;
          });
      if (found != bucket_of.size()) throw refuse_restore("the buckets' state contradicts itself");
    }

   private:
    // Drops the waiting elements, and hands on only the losses noted on them.
    uint32_t drop_waiting(Chunk& out) {
      out.reset(nullptr, 1);
      for (Bucket& bucket : buckets_) {
        for (auto& row : bucket) {
          for (Failure& lost : row->take_lost()) out.note(0, std::move(lost));
          input_.release(std::move(row));
        }
        bucket.clear();
      }
      return out.drop_row(0) ? 1 : 0;
    }

    // An element without a length fails, and is not held.
    void judge(StreamInput& input) const {
      Chunk& in = input.chunk();
      try {
        (void)leaf_of(*in.spec(), stage_.options_.field);
      } catch (const Error&) {
        in.fail(input.row(),
                {stage_.title_, input.ordinal() + input.row(), std::current_exception()});
      }
    }

    size_t bucket_of_next() {
      const StreamInput& input = input_.input();
      const Chunk& in = input_.input().chunk();
      const size_t leaf = leaf_of(*in.spec(), stage_.options_.field);
      const auto length = static_cast<uint64_t>(in.shape(leaf, input.row())[0]);
      const auto& boundaries = stage_.options_.boundaries;
      return static_cast<size_t>(std::upper_bound(boundaries.begin(), boundaries.end(), length) -
                                 boundaries.begin());
    }

    // Stacks a bucket as one element, whose leaves have one more axis.
    uint32_t give(Bucket& bucket, Chunk& out) {
      out.reset(nullptr, 1);
      rows_.clear();
      for (const auto& row : bucket) rows_.push_back(row.get());
      batch_.give(rows_, out, 0);
      for (auto& row : bucket) input_.release(std::move(row));
      bucket.clear();
      return 1;
    }

    const BucketByLength& stage_;
    HeldBack input_;
    std::vector<Bucket> buckets_;
    std::vector<HeldRow*> rows_;
    HeldBatch batch_;
  };

  Options options_;
  Padding padding_;
  std::string title_;
};

}  // namespace

Node::Ref nodes::bucket_by_length(Node::Ref input, BucketByLengthOptions options) {
  const auto& boundaries = options.boundaries;
  if (std::adjacent_find(boundaries.begin(), boundaries.end(), std::greater_equal<>()) !=
      boundaries.end()) {
    throw refuse_buckets("boundaries must ascend");
  }
  if (options.batch_sizes.size() != boundaries.size() + 1) {
    throw refuse_buckets(std::to_string(boundaries.size()) + " boundaries make " +
                         std::to_string(boundaries.size() + 1) + " buckets, and there are " +
                         std::to_string(options.batch_sizes.size()) + " batch sizes");
  }
  if (std::count(options.batch_sizes.begin(), options.batch_sizes.end(), 0) != 0) {
    throw refuse_buckets("a batch size is 0; give 1 or more");
  }
  std::string title = "bucket_by_length(" + utf8_name(options.field, "bucket_by_length");
  for (size_t i = 0; i < options.batch_sizes.size(); ++i) {
    if (i > 0) title += " | " + std::to_string(boundaries[i - 1]);
    title += (i > 0 ? ": " : ", ") + std::to_string(options.batch_sizes[i]);
  }
  for (const Padding::Field& field : options.padding) {
    title += ", " + utf8_name(field.name, "bucket_by_length") +
             (field.shape ? to_string(*field.shape) : "") + "=" + Padding::text_of(field.value);
  }
  return make_node({
      .title = title + (options.drop_last ? ", drop_last)" : ")"),
      .inputs = {std::move(input)},
      .build =
          [options = std::move(options)](std::vector<Built> inputs, Builder& builder) {
            return Built::of(std::make_shared<BucketByLength>(builder.as_stream(inputs[0]), options,
                                                              builder.title()));
          },
  });
}

}  // namespace penstock
