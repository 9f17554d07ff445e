#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

std::string text_of(uint64_t count) {
  return count == kEndless ? "endless" : std::to_string(count);
}

Error wrong_cardinality(const std::string& there, uint64_t asserted) {
  return {Code::kDataLoss, "assert_cardinality",
          "elements: " + there + ", and not " + text_of(asserted)};
}

// Counts elements; those that are left out do not count. State: {"given": elements, "input": the
// input's}.
class CountedStream : public StreamMapped {
 public:
  CountedStream(StreamedRef input, uint64_t count)
      : StreamMapped(std::move(input)), count_(count) {}

  std::optional<uint64_t> length() const override { return count_; }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(count_, input()->open(context));
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(uint64_t count, std::unique_ptr<ElementReader> input)
        : count_(count), input_(std::move(input)) {}

    void begin(uint64_t epoch) override {
      given_ = 0;
      input_->begin(epoch);
    }
    uint32_t next(uint32_t most, Chunk& out) override {
      // Gives all allowed elements before it reads one more to find an excess.
      const uint64_t left = std::max<uint64_t>(count_ - given_, 1);
      const uint32_t rows =
          input_->next(static_cast<uint32_t>(std::min<uint64_t>(most, left)), out);
      if (rows == 0) {
        if (given_ != count_) throw wrong_cardinality(std::to_string(given_), count_);
        return 0;
      }
      const auto alive = static_cast<uint64_t>(__builtin_popcountll(out.alive()));
      if (alive > count_ - given_) {
        throw Error(Code::kDataLoss, "assert_cardinality",
                    "there are more elements than " + std::to_string(count_));
      }
      given_ += alive;
      return rows;
    }
    void release() override { input_->release(); }
    State save() const override { return {{"given", given_}, {"input", input_->save()}}; }
    void load(uint64_t epoch, const State& state) override {
      given_ = count_in(state, "given");
      input_->load(epoch, member_of(state, "input"));
    }

   private:
    uint64_t count_, given_ = 0;
    std::unique_ptr<ElementReader> input_;
  };

  uint64_t count_;
};

}  // namespace

Node::Ref nodes::assert_cardinality(Node::Ref input, uint64_t count) {
  return make_node({
      .title = "assert_cardinality(" + text_of(count) + ")",
      .inputs = {std::move(input)},
      .build = [count](std::vector<Built> inputs, Builder& builder) -> Built {
        if (inputs[0].stream != nullptr) {
          StreamedRef stream = builder.as_stream(inputs[0]);
          const auto known = stream->length();
          if (known && *known != count) throw wrong_cardinality(text_of(*known), count);
          return Built::of(std::make_shared<CountedStream>(std::move(stream), count));
        }
        const uint64_t length = inputs[0].indexed->length(0);
        if (length != count) throw wrong_cardinality(text_of(length), count);
        return std::move(inputs[0]);
      },
  });
}

}  // namespace penstock
