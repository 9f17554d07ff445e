#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/element/padding.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/split_batch.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {

namespace {

// The options of a batch.
struct Stacking {
  uint64_t n = 1;
  bool drop_last = false;
  bool ragged = false;
  std::optional<Padding> padding = {};
};

class Batch : public Collated {
 public:
  Batch(IndexedRef input, const Stacking& stacking)
      : Collated(std::move(input)), stacking_(stacking) {
    SpecRef spec = this->input()->spec();
    if (spec != nullptr && stacking_.padding) (void)stacking_.padding->columns(*spec);
  }

  uint64_t length(uint64_t base) const override {
    const uint64_t elements = input()->length(base), n = stacking_.n;
    if (elements == kEndless) return kEndless;
    return elements / n + (!stacking_.drop_last && elements % n != 0);
  }
  uint64_t rows(uint64_t batch, uint64_t base) const override {
    return std::min(input()->length(base) - batch * stacking_.n, stacking_.n);
  }
  uint64_t max_rows() const override { return stacking_.n; }
  uint64_t element(uint64_t batch, uint64_t row, uint64_t) const override {
    return batch * stacking_.n + row;
  }
  bool ragged() const override { return stacking_.ragged; }
  const Padding* padding() const override {
    return stacking_.padding ? &*stacking_.padding : nullptr;
  }

 private:
  Stacking stacking_;
};

Built stacked(const Built& input, Builder& builder, const Stacking& stacking) {
  return builder.stacked(input, stacking.n, stacking.drop_last, [&](IndexedRef below) {
    return std::make_shared<Batch>(std::move(below), stacking);
  });
}

std::string title_of(const char* operation, const Stacking& stacking) {
  std::string text = std::string(operation) + "(" + std::to_string(stacking.n) +
                     (stacking.drop_last ? ", drop_last" : "");
  if (!stacking.padding) return text + ")";
  for (const Padding::Field& field : stacking.padding->fields) {
    text += ", " + field.name + ": ";
    text += (field.shape ? to_string(*field.shape) + " " : "") + Padding::text_of(field.value);
  }
  return text + ")";
}

Node::Ref batched(const char* operation, Node::Ref input, Stacking stacking) {
  check_batch_size(stacking.n, operation);
  return make_node({
      .title = title_of(operation, stacking),
      .inputs = {std::move(input)},
      .build = [stacking](std::vector<Built> inputs,
                          Builder& builder) { return stacked(inputs[0], builder, stacking); },
      .inputs_per_element = stacking.n,
  });
}

}  // namespace

Node::Ref nodes::batch(Node::Ref input, uint64_t n, bool drop_last) {
  return batched("batch", std::move(input), {n, drop_last});
}

Node::Ref nodes::ragged_batch(Node::Ref input, uint64_t n, bool drop_last) {
  return batched("ragged_batch", std::move(input), {n, drop_last, true});
}

Node::Ref nodes::padded_batch(Node::Ref input, uint64_t n, bool drop_last,
                              std::vector<Padding::Field> fields) {
  std::set<std::string> names;
  for (const Padding::Field& field : fields) {
    if (!names.insert(utf8_name(field.name, "padded_batch")).second) {
      throw Error(Code::kInvalidArgument, "padded_batch", "'" + field.name + "' comes twice");
    }
  }
  return batched("padded_batch", std::move(input),
                 {n, drop_last, false, Padding{std::move(fields)}});
}

Node::Ref nodes::rebatch(Node::Ref input, uint64_t n, bool drop_last) {
  const Stacking stacking{n, drop_last};
  check_batch_size(n, "rebatch");
  return make_node({
      .title = title_of("rebatch", stacking),
      .inputs = {input},
      .build =
          [rows = nodes::unbatch(input), stacking](std::vector<Built> inputs, Builder& builder) {
            return stacked(rows->build(std::move(inputs), builder), builder, stacking);
          },
  });
}

Node::Ref nodes::split_batch(Node::Ref input, uint32_t parts) {
  constexpr uint32_t kMaxParts = 4096;
  if (parts == 0 || parts > kMaxParts) {
    throw Error(Code::kInvalidArgument, "split_batch",
                "parts is " + std::to_string(parts) + "; give 1 to " + std::to_string(kMaxParts));
  }
  return make_node({
      .title = "split_batch()",
      .inputs = {std::move(input)},
      .build =
          [parts](std::vector<Built> inputs, Builder& builder) {
            builder.count_split();
            return inputs[0].with([&](IndexedRef below) {
              return std::make_shared<SplitBatch>(std::move(below), parts);
            });
          },
      .inputs_per_element = 1,
  });
}

}  // namespace penstock
