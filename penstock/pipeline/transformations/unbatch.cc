#include <algorithm>
#include <array>
#include <exception>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/streams/stream_input.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

// The spec of a row. `columns`: the contents of the element's column leaves, in order.
SpecRef row_of(const ElementSpec& element, std::span<const Block> columns = {}) {
  std::vector<Leaf> leaves(element.leaves().begin(), element.leaves().end());
  for (Leaf& leaf : leaves) {
    if (leaf.kind == LeafKind::kColumn) {
      const Leaf& row = columns.front().spec()->leaves()[0];
      leaf = {leaf.name, row.kind, row.dtype, row.shape};
      columns = columns.subspan(1);
      continue;
    }
    const bool text = leaf.kind == LeafKind::kBytes || leaf.kind == LeafKind::kText;
    if (text || leaf.shape.empty()) {
      throw Error(Code::kInvalidArgument, "unbatch",
                  "'" + leaf.name + "' has no rows: it is " + (text ? "one string" : "one number"));
    }
    leaf.kind = LeafKind::kDense;
    leaf.shape.erase(leaf.shape.begin());
  }
  return std::make_shared<ElementSpec>(std::move(leaves), element.nest());
}

bool has_columns(const ElementSpec& spec) {
  return std::ranges::any_of(spec.leaves(),
                             [](const Leaf& leaf) { return leaf.kind == LeafKind::kColumn; });
}

class Unbatch : public StreamMapped {
 public:
  explicit Unbatch(StreamedRef input) : StreamMapped(std::move(input)) {
    SpecRef in = this->input()->spec();
    if (in != nullptr && !has_columns(*in)) spec_ = row_of(*in);
  }

  SpecRef spec() const override { return spec_; }
  std::optional<uint64_t> length() const override {
    SpecRef in = input()->spec();
    auto all = input()->length();
    if (all == uint64_t{0}) return all;
    if (in == nullptr || !all || in->leaves().empty() || has_columns(*in)) return std::nullopt;
    const int64_t first = in->leaves()[0].shape[0];
    for (const Leaf& leaf : in->leaves()) {
      if (leaf.shape[0] < 0 || leaf.shape[0] != first) return std::nullopt;
    }
    const auto rows = static_cast<uint64_t>(first);
    uint64_t product;
    if (rows == 0) return 0;
    return __builtin_mul_overflow(*all, rows, &product) ? kEndless : product;
  }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const Unbatch& stage, Context& context)
        : stage_(stage), input_(*stage.input(), context) {}

    void begin(uint64_t epoch) override {
      columns_.clear();
      schema_.begin();
      input_.begin(epoch);
      row_ = 0;
    }

    // Gives rows of as many of the chunk's elements as fit.
    uint32_t next(uint32_t most, Chunk& out) override {
      uint32_t count = 0;
      while (count == 0 && more()) {
        while (count < most && input_.left() > 0) {
          const uint32_t element = input_.row();
          const uint64_t rows = rows_of_next();
          while (count < most && row_ < rows) from_[count++] = {element, row_++};
          if (row_ < rows) break;
          input_.use();
          row_ = 0;
        }
      }
      if (count == 0) return 0;
      give(count, out);
      return count;
    }

    State save() const override {
      State state = {{"row", row_}, {"input", input_.save()}};
      schema_.save(state);
      return state;
    }
    void load(uint64_t epoch, const State& state) override {
      const uint64_t row = count_in(state, "row");
      columns_.clear();
      input_.load(epoch, member_of(state, "input"));
      schema_.load(state);
      row_ = 0;
      if (row == 0) return;
      if (!more() || row >= rows_of_next()) {
        throw refuse_restore("the state is beyond its element's rows");
      }
      row_ = row;
      // The losses noted on the element were delivered with its first row.
      (void)input_.chunk().take_notes(input_.row());
    }

   private:
    struct Columns {
      uint32_t element;  // row of the input's chunk
      std::vector<Block> blocks;
      SpecRef rows;
    };

    // The number of rows of the next element. 1 for an element that failed or cannot be unbatched,
    // and for an element without rows that has noted losses: its single row carries these.
    uint64_t rows_of_next() {
      if (input_.failed()) return 1;
      const uint64_t rows = rows_of_whole();
      if (rows > 0) return rows;
      return input_.chunk().drop_row(input_.row()) ? 1 : 0;
    }

    uint64_t rows_of_whole() {
      Chunk& in = input_.chunk();
      const uint32_t element = input_.row();
      try {
        const ElementSpec& spec = *in.spec();
        if (has_columns(spec)) {
          (void)columns_of(element);
        } else if (in.spec() != of_) {
          of_ = nullptr;
          row_spec_ = row_of(spec);
          of_ = in.spec();
        }
        if (spec.leaves().empty()) return 0;
        const int64_t rows = rows_of(0, element);
        for (size_t leaf = 1; leaf < spec.leaves().size(); ++leaf) {
          if (rows_of(leaf, element) == rows) continue;
          throw Error(Code::kInvalidArgument, "unbatch",
                      "'" + spec.leaves()[0].name + "' has " + std::to_string(rows) +
                          " rows, and '" + spec.leaves()[leaf].name + "' has " +
                          std::to_string(rows_of(leaf, element)));
        }
        return static_cast<uint64_t>(rows);
      } catch (const Error&) {
        in.fail(element, {"unbatch()", input_.ordinal() + element, std::current_exception()});
        return 1;
      }
    }

    bool is_column(size_t leaf) {
      return input_.chunk().spec()->leaves()[leaf].kind == LeafKind::kColumn;
    }
    // Whether the input has a next element. Drops what was read from an older chunk.
    bool more() {
      if (input_.left() == 0) columns_.clear();
      return input_.more();
    }
    // An element's ragged columns and the spec of its rows; read once per element.
    const Columns& columns_of(uint32_t element) {
      for (const Columns& columns : columns_) {
        if (columns.element == element) return columns;
      }
      const Chunk& in = input_.chunk();
      std::vector<Block> columns;
      for (size_t leaf = 0; leaf < in.spec()->leaves().size(); ++leaf) {
        if (!is_column(leaf)) continue;
        auto* first = const_cast<std::byte*>(in.at(leaf, element));
        // The chunk owns the memory.
        columns.push_back(ColumnBlock::read(first,
                                            static_cast<uint64_t>(in.shape(leaf, element)[0]),
                                            {std::shared_ptr<void>(), first}));
      }
      SpecRef rows = row_of(*in.spec(), columns);
      // Reuses the spec object while specs are equal, which makes comparisons fast.
      if (column_row_spec_ == nullptr || *column_row_spec_ != *rows)
        column_row_spec_ = std::move(rows);
      columns_.push_back({element, std::move(columns), column_row_spec_});
      return columns_.back();
    }
    const Block& column(size_t leaf, uint32_t element) {
      size_t place = 0;
      for (size_t i = 0; i < leaf; ++i) place += is_column(i) ? 1 : 0;
      return columns_of(element).blocks[place];
    }
    int64_t rows_of(size_t leaf, uint32_t element) {
      if (is_column(leaf)) return static_cast<int64_t>(column(leaf, element).rows());
      return input_.chunk().shape(leaf, element)[0];
    }

    void give(uint32_t count, Chunk& out) {
      Chunk& in = input_.chunk();
      out.reset(stage_.spec_, count);
      for (uint32_t i = 0; i < count; ++i) {
        const auto [element, row] = from_[i];
        if ((in.alive() >> element & 1) == 0) {
          pass_row(in, element, out, i);
          continue;
        }
        for (Failure& lost : in.take_notes(element)) out.note(i, std::move(lost));
        const SpecRef& spec = has_columns(*in.spec()) ? columns_of(element).rows : row_spec_;
        try {
          schema_.check(spec);  // the spec of a column leaf does not have the spec of its rows
          settle_schema(spec, out);
        } catch (const Error&) {
          out.fail(i, {"unbatch()", input_.ordinal() + element, std::current_exception()});
          continue;
        }
        for (size_t leaf = 0; leaf < spec->leaves().size(); ++leaf) {
          if (is_column(leaf)) {
            const Example one = column(leaf, element).row(row);
            out.view(leaf, i, one[0].second.data(), one[0].second.shape());
            continue;
          }
          std::span<const int64_t> shape = in.shape(leaf, element).subspan(1);
          uint64_t bytes = size_of(spec->leaves()[leaf].dtype);
          for (int64_t length : shape) bytes *= static_cast<uint64_t>(length);
          out.view(leaf, i, in.at(leaf, element) + row * bytes, shape);
        }
      }
    }

    struct From {
      uint32_t element;  // row of the input's chunk
      uint64_t row;
    };
    const Unbatch& stage_;
    StreamInput input_;
    std::array<From, Chunk::kRows> from_;
    SpecRef of_, row_spec_;         // spec of the chunk's elements, and of their rows
    std::vector<Columns> columns_;  // of the elements of the chunk that were read
    SpecRef column_row_spec_;
    SchemaChecker schema_{stage_.spec_};
    uint64_t row_ = 0;  // of the input's next element
  };

  SpecRef spec_;
};

}  // namespace

Node::Ref nodes::unbatch(Node::Ref input) {
  return make_node({
      .title = "unbatch()",
      .inputs = {std::move(input)},
      .build =
          [](std::vector<Built> inputs, Builder& builder) {
            return Built::of(std::make_shared<Unbatch>(builder.as_stream(inputs[0])));
          },
  });
}

}  // namespace penstock
