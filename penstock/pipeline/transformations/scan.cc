#include "penstock/pipeline/transformations/scan.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "penstock/base/error.h"
#include "penstock/pipeline/builder.h"
#include "penstock/pipeline/example_rows.h"
#include "penstock/pipeline/indexed_stream.h"
#include "penstock/pipeline/stream_input.h"

namespace penstock {
namespace {

Error refuse(const std::string& why) { return {Code::kInvalidArgument, "restore", why}; }

// RFC 4648, with padding.
constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(const std::byte* data, size_t bytes) {
  std::string text;
  text.reserve((bytes + 2) / 3 * 4);
  for (size_t i = 0; i < bytes; i += 3) {
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j) {
      word = word << 8 | (i + j < bytes ? std::to_integer<uint32_t>(data[i + j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += i + j > bytes ? '=' : kDigits[word >> (18 - 6 * j) & 63];
    }
  }
  return text;
}

void from_base64(const std::string& text, std::byte* data, size_t bytes) {
  if (text.size() != (bytes + 2) / 3 * 4) throw refuse("the carry's data has another length");
  for (size_t i = 0; i < bytes; i += 3) {
    uint32_t word = 0;
    for (size_t j = 0; j < 4; ++j) {
      const char digit = text[i / 3 * 4 + j];
      const size_t value = i + j > bytes ? (digit == '=' ? 0 : 64) : kDigits.find(digit);
      if (value >= 64) throw refuse("the carry's data is no base64");
      word = word << 6 | static_cast<uint32_t>(value);
    }
    for (size_t j = 0; j < 3 && i + j < bytes; ++j) {
      data[i + j] = static_cast<std::byte>(word >> (16 - 8 * j));
    }
  }
}

State saved(const Example& carry) {
  State all = State::array();
  for (const auto& [name, tensor] : carry) {
    all.push_back({{"name", name},
                   {"dtype", std::string(name_of(tensor.dtype()))},
                   {"shape", tensor.shape()},
                   {"data", to_base64(tensor.data(), tensor.nbytes())}});
  }
  return all;
}

Example loaded(const State& state) {
  constexpr int64_t kMost = int64_t{1} << 32;  // of bytes, so that no state can ask for more
  Example carry;
  if (!state.is_array()) throw refuse("'carry' is no list");
  for (const State& leaf : state) {
    try {
      const auto dtype = dtype_from_name(member_of(leaf, "dtype").get<std::string>());
      const auto shape = member_of(leaf, "shape").get<Shape>();
      const auto data = member_of(leaf, "data").get<std::string>();
      if (!dtype) throw refuse("the carry has a dtype that is not known");
      int64_t bytes = static_cast<int64_t>(size_of(*dtype));
      for (int64_t length : shape) {
        if (length < 0 || __builtin_mul_overflow(bytes, length, &bytes) || bytes > kMost) {
          throw refuse("the carry has a shape that cannot be");
        }
      }
      if (data.size() != (static_cast<size_t>(bytes) + 2) / 3 * 4) {
        throw refuse("the carry's data has another length");
      }
      Tensor tensor = Tensor::make(*dtype, shape);
      from_base64(data, tensor.data(), tensor.nbytes());
      carry.set(member_of(leaf, "name").get<std::string>(), std::move(tensor));
    } catch (const State::exception&) {
      throw refuse("a leaf of the carry is not as it was saved");
    }
  }
  return carry;
}

// In memory of its own: the function may have handed on what it was given.
Example owned(const Example& carry, const std::string& stage) {
  Example copy;
  for (const auto& [name, tensor] : carry) {
    if (!tensor.defined()) {
      throw Error(Code::kInvalidArgument, stage, "'" + name + "' of the carry has no data");
    }
    copy.set(name, tensor.copy());
  }
  return copy;
}

class Scan : public Streamed {
 public:
  Scan(StreamedRef input, Example initial, Scanning function, std::string title)
      : input_(std::move(input)),
        initial_(owned(initial, title)),
        function_(std::move(function)),
        title_(std::move(title)) {}

  SpecRef spec() const override { return nullptr; }
  std::optional<uint64_t> length() const override { return input_->length(); }
  bool python() const override { return input_->python(); }
  std::unique_ptr<StreamReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public StreamReader {
   public:
    Reader(const Scan& stage, Context& context)
        : stage_(stage), context_(context), input_(*stage.input_, context) {}

    void begin(uint64_t epoch) override {
      carry_ = stage_.initial_;
      input_.begin(epoch);
    }

    uint32_t next(uint32_t most, Chunk& out) override {
      if (!input_.more()) return 0;
      const uint32_t count = std::min(most, input_.left());
      out.reset(nullptr, count);
      for (uint32_t i = 0; i < count; ++i) {
        if (context_.watch != nullptr && !context_.watch->progress(0)) {
          throw Error(Code::kClosed, stage_.title_, "the stream was closed");
        }
        if (input_.failed()) {
          pass_row(input_.chunk(), input_.row(), out, i);
        } else {
          scan(out, i);
        }
        input_.use();
      }
      return count;
    }

    State save() const override { return {{"carry", saved(carry_)}, {"input", input_.save()}}; }
    void load(uint64_t epoch, const State& state) override {
      carry_ = loaded(member_of(state, "carry"));
      input_.load(epoch, member_of(state, "input"));
    }

   private:
    void scan(Chunk& out, uint32_t row) {
      const Chunk& in = input_.chunk();
      if (!rows_ || of_ != in.spec()) {
        of_ = in.spec();
        rows_.emplace(stage_.title_, of_);
      }
      std::exception_ptr error;
      try {
        auto [carry, element] = stage_.function_(carry_, viewed(in, input_.row()));
        Example next = owned(carry, stage_.title_);
        // It may be a view of the carry that is about to go.
        auto result = std::make_shared<Example>();
        for (const auto& [name, tensor] : element) {
          result->set(name, tensor.defined() ? tensor.copy() : tensor);
        }
        error = rows_->give(std::move(result), out, row);
        if (error == nullptr) carry_ = std::move(next);
      } catch (...) {
        error = std::current_exception();
      }
      if (error != nullptr) {
        out.fail(row, {stage_.title_, input_.ordinal() + input_.row(), std::move(error)});
      }
    }

    const Scan& stage_;
    Context& context_;
    StreamInput input_;
    Example carry_;
    SpecRef of_;
    std::optional<ExampleRows> rows_;
  };

  StreamedRef input_;
  Example initial_;
  Scanning function_;
  std::string title_;
};

}  // namespace

Built ScanNode::build(std::vector<Built> inputs, Builder& builder) const {
  return Built::of(
      std::make_shared<Scan>(builder.as_stream(inputs[0]), initial_, function_, title()));
}

}  // namespace penstock
