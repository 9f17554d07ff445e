#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "penstock/pipeline/loader.h"
#include "penstock/pipeline/node.h"

namespace penstock {

// What becomes of elements that fail in what is below, and that no other on_error there decided.
//
//   kRaise    the failure is raised at its place, whatever is said further up.
//   kSkip     the element is left out, and counted.
//   kReplace  another element of the same epoch takes its place, and that is counted: positions of
//             a permutation that differs from every order (Order::replacement) are tried, up to
//             `attempts` of them. If all fail, the failure is raised. Of a data set of samples
//             they are its indices, however it is shuffled.
class OnErrorNode : public Node {
 public:
  static constexpr uint32_t kAttempts = 64;

  OnErrorNode(Ref input, OnError policy, uint64_t attempts = kAttempts)
      : Node({std::move(input)}), policy_(policy), attempts_(attempts) {}

  std::string title() const override;
  bool takes_streams() const override { return true; }
  FailurePolicy policy_before(const FailurePolicy& here) const override {
    return {policy_ == OnError::kSkip, here.feed_skips, true, false};
  }
  // Error kInvalidArgument: replacements for an input without end, or of more than 2^62 elements,
  // or for a stream, which has no other elements at hand.
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  OnError policy_;
  uint64_t attempts_;
};

}  // namespace penstock
