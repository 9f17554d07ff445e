#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/pipeline/streams/streams.h"

namespace penstock {
namespace {

class PolicyStream : public StreamMapped {
 public:
  PolicyStream(StreamedRef input, const FailurePolicy& policy)
      : StreamMapped(std::move(input)), policy_(policy) {}

  std::optional<uint64_t> length() const override { return input()->length(); }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(policy_, input()->open(context));
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const FailurePolicy& policy, std::unique_ptr<ElementReader> input)
        : policy_(policy), input_(std::move(input)) {}

    void begin(uint64_t epoch) override { input_->begin(epoch); }
    uint32_t next(uint32_t most, Chunk& out) override {
      const uint32_t count = input_->next(most, out);
      if (count == 0) return 0;
      for (auto& [row, failure] : out.failures()) {
        if (failure.decision != Decision::kUndecided) continue;
        failure.decision = policy_.skip ? Decision::kSkip : Decision::kRaise;
        failure.provisional |= policy_.skip && !policy_.sure;
      }
      return count;
    }
    void release() override { input_->release(); }
    State save() const override { return input_->save(); }
    void load(uint64_t epoch, const State& state) override { input_->load(epoch, state); }

   private:
    const FailurePolicy policy_;
    std::unique_ptr<ElementReader> input_;
  };

  FailurePolicy policy_;
};

}  // namespace

StreamedRef policy_stream(StreamedRef input, const FailurePolicy& policy) {
  return std::make_shared<PolicyStream>(std::move(input), policy);
}

}  // namespace penstock
