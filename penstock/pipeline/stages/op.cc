#include "penstock/pipeline/stages/op.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {

namespace {

class FieldsRun : public OpRun {
 public:
  struct Field {
    size_t leaf;  // the same index in the input and the result
    std::unique_ptr<FieldOp::Run> run;
  };
  explicit FieldsRun(std::vector<Field> fields) : fields_(std::move(fields)) {}

  void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
    for (const Field& field : fields_) {
      field.run->run(in, field.leaf, out, field.leaf, row, row + keys.size());
    }
  }

 private:
  std::vector<Field> fields_;
};

}  // namespace

std::vector<bool> FieldOp::chosen(const ElementSpec& in) const {
  std::vector<bool> chosen(in.leaves().size());
  for (const std::string& field : fields_) {
    auto leaf = in.find(field);
    if (!leaf) {
      throw Error(Code::kInvalidArgument, name_,
                  "there is no field '" + field + "' in " + in.to_string());
    }
    chosen[*leaf] = true;
  }
  if (!fields_.empty()) return chosen;
  for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = applies(in.leaves()[i]);
  if (std::find(chosen.begin(), chosen.end(), true) == chosen.end()) {
    throw Error(Code::kInvalidArgument, name_,
                "there is no field that it applies to in " + in.to_string());
  }
  return chosen;
}

SpecRef FieldOp::result(const ElementSpec& in) const {
  std::vector<bool> chosen = this->chosen(in);
  std::vector<Leaf> leaves(in.leaves().begin(), in.leaves().end());
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (chosen[i]) leaves[i] = result_of(leaves[i]);
  }
  return std::make_shared<ElementSpec>(std::move(leaves), in.nest());
}

std::vector<std::optional<size_t>> FieldOp::passes(const ElementSpec& in) const {
  std::vector<bool> chosen = this->chosen(in);
  std::vector<std::optional<size_t>> passes(chosen.size());
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (!chosen[i]) passes[i] = i;
  }
  return passes;
}

std::unique_ptr<OpRun> FieldOp::bind(SpecRef in, Context& context) const {
  std::vector<bool> chosen = this->chosen(*in);
  std::vector<FieldsRun::Field> fields;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (!chosen[i]) continue;
    const Leaf& leaf = in->leaves()[i];
    fields.push_back({i, bind_leaf(leaf, result_of(leaf), context)});
  }
  return std::make_unique<FieldsRun>(std::move(fields));
}

std::byte* place_row(Chunk& out, size_t leaf, uint32_t row, uint64_t bytes,
                     std::span<const int64_t> shape, Scratch& scratch) {
  if (out.spec()->leaves()[leaf].fixed()) {
    std::byte* first = out.dense(leaf);
    return first + row * out.stride(leaf);
  }
  std::byte* data = scratch.take(bytes);
  out.view(leaf, row, data, shape);
  return data;
}

FetchAhead::FetchAhead(const Chunk& in, size_t leaf, uint32_t row, uint32_t end)
    : in_(in), leaf_(leaf), end_(end) {
  constexpr size_t kAheadBytes = 4096;
  const Leaf& about = in.spec()->leaves()[leaf];
  if (!about.fixed()) {
    end_ = 0;
    return;
  }
  const size_t bytes = std::max<size_t>(values_of(about.shape) * size_of(about.dtype), 1);
  lines_ = std::min((bytes + kLine - 1) / kLine, kMaxLines);
  ahead_ = static_cast<uint32_t>(std::clamp<size_t>(kAheadBytes / bytes, 2, 32));
  for (uint32_t i = row; i < std::min(row + ahead_, end); ++i) fetch(i);
}

uint64_t values_of(std::span<const int64_t> shape) {
  uint64_t values = 1;
  for (int64_t length : shape) values *= static_cast<uint64_t>(length);
  return values;
}

}  // namespace penstock
