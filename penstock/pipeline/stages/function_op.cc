#include "penstock/pipeline/stages/function_op.h"

#include <utility>

#include "penstock/pipeline/stages/user_calls.h"

namespace penstock {
namespace {

class FunctionRun : public OpRun {
 public:
  FunctionRun(const std::string& name, const FunctionOp::Function& function, SpecRef in,
              Context& context)
      : function_(function), calls_(name, context, std::move(in)) {}

  void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
    for (uint32_t j = 0; j < keys.size(); ++j, ++row) {
      if ((in.alive() >> row & 1) == 0) continue;
      Example element;
      calls_.make(keys, j, out, row, [&](SampleContext& sample) {
        if (element.empty()) element = viewed(in, row);
        return function_(element, sample);
      });
    }
  }

 private:
  const FunctionOp::Function& function_;
  UserCalls calls_;
};

}  // namespace

std::unique_ptr<OpRun> FunctionOp::bind(SpecRef in, Context& context) const {
  return std::make_unique<FunctionRun>(name_, function_, std::move(in), context);
}

}  // namespace penstock
