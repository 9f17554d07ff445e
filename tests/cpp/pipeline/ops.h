#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "penstock/pipeline/stages/op.h"

namespace penstock::test {

// int64 -> int64 by a function, which may throw.
class NumberOp : public Op {
 public:
  using Function = std::function<int64_t(int64_t, const Keys&, uint32_t j)>;
  explicit NumberOp(Function function, bool spec_known = true, bool user = false)
      : function_(std::move(function)), spec_known_(spec_known), user_(user) {}

  std::string title() const override { return "number"; }
  SpecRef result(const ElementSpec&) const override { return spec_known_ ? spec() : nullptr; }
  bool user_code() const override { return user_; }
  std::unique_ptr<OpRun> bind(SpecRef, Context&) const override {
    return std::make_unique<Run>(*this);
  }

 private:
  static SpecRef spec() {
    static SpecRef made =
        std::make_shared<ElementSpec>(std::vector<Leaf>{{"", LeafKind::kDense, DType::kInt64, {}}});
    return made;
  }
  struct Run : OpRun {
    explicit Run(const NumberOp& of) : op(of) {}
    void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
      for (uint32_t j = 0; j < keys.size(); ++j) {
        if ((in.alive() >> (row + j) & 1) == 0) continue;
        try {
          int64_t number;
          std::memcpy(&number, in.at(0, row + j), sizeof(number));
          number = op.function_(number, keys, j);
          out.settle(spec());
          std::memcpy(out.dense(0) + (row + j) * out.stride(0), &number, sizeof(number));
        } catch (...) {
          out.fail(row + j, {"", 0, std::current_exception()});
        }
      }
    }
    const NumberOp& op;
  };

  Function function_;
  bool spec_known_, user_;
};

inline OpRef number_op(NumberOp::Function f) { return std::make_shared<NumberOp>(std::move(f)); }
// An operation whose schema is unknown at build time, as with user code.
inline OpRef inferred_from_elements(NumberOp::Function f) {
  return std::make_shared<NumberOp>(std::move(f), false, true);
}

// int64 n -> "n" as a string, and n unchanged.
class TextOp : public Op {
 public:
  std::string title() const override { return "text"; }
  SpecRef result(const ElementSpec&) const override {
    return std::make_shared<ElementSpec>(
        std::vector<Leaf>{{"text", LeafKind::kText, DType::kUint8, {-1}},
                          {"number", LeafKind::kDense, DType::kInt64, {}}});
  }
  std::vector<std::optional<size_t>> passes(const ElementSpec&) const override {
    return {std::nullopt, 0};
  }
  std::unique_ptr<OpRun> bind(SpecRef, Context& context) const override {
    struct Run : OpRun {
      explicit Run(Context& c) : scratch(c.scratch) {}
      void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
        for (uint32_t j = 0; j < keys.size(); ++j) {
          if ((in.alive() >> (row + j) & 1) == 0) continue;
          int64_t number;
          std::memcpy(&number, in.at(0, row + j), sizeof(number));
          std::string text = std::to_string(number);
          std::byte* to = scratch.take(text.size());
          std::memcpy(to, text.data(), text.size());
          const int64_t length = static_cast<int64_t>(text.size());
          out.view(0, row + j, to, {&length, 1});
        }
      }
      Scratch& scratch;
    };
    return std::make_unique<Run>(context);
  }
};

}  // namespace penstock::test
