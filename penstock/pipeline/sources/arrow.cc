#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/memory/gather.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/arrow_rows.h"
#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/stages/memory_rows.h"

namespace penstock {
namespace {

// Rows that are copied at a time. The first ones of each time wait for the memory.
constexpr size_t kTogether = 512;

Error invalid_source(const std::string& why) { return {Code::kInvalidArgument, "arrow", why}; }

using Place = ArrowElements::Place;

// What the stage and its readers read. Immutable.
struct Data {
  explicit Data(std::shared_ptr<const ArrowTable> table) : elements(std::move(table)) {}

  uint64_t row(uint64_t position) const {
    if (!rows.defined()) return position;
    int64_t row;
    std::memcpy(&row, rows.data() + static_cast<int64_t>(position) * rows.strides()[0],
                sizeof(row));
    return static_cast<uint64_t>(row);
  }

  const ArrowElements elements;
  Tensor rows;                // row numbers; or not defined
  std::vector<Tensor> fills;  // by leaf; not defined: none
  uint64_t length = 0;
};

class Arrow : public Indexed, public MemoryRows {
 public:
  Arrow(std::shared_ptr<const Data> data, std::string title)
      : data_(std::move(data)), title_(std::move(title)) {
    for (const Leaf& leaf : spec()->leaves()) {
      plain_ &= data_->elements.plain(row_bytes_.size());
      first_rows_.push_back(data_->elements.first_rows(row_bytes_.size()));
      row_bytes_.push_back(
          leaf.fixed() ? static_cast<uint64_t>(leaf.fixed_values()) * size_of(leaf.dtype) : 0);
    }
  }

  uint64_t length(uint64_t) const override { return data_->length; }
  SpecRef spec() const override { return data_->elements.spec(); }
  bool costly() const override { return false; }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

  bool has_element_layout() const override { return plain_; }
  void copy(std::span<const uint64_t> positions, const BlockLayout& layout, std::byte* block,
            uint64_t row) const override {
    ArrowElements::Finder finder(data_->elements);
    std::array<Place, kTogether> places;
    while (!positions.empty()) {
      const size_t count = std::min(positions.size(), kTogether);
      size_t found = 0;  // places; they are computed while the rows before are fetched
      for (size_t leaf = 0; leaf < row_bytes_.size(); ++leaf) {
        const uint64_t bytes = row_bytes_[leaf];
        if (bytes == 0) continue;
        const std::byte* const* const first_rows = first_rows_[leaf].data();
        gather_rows(layout.fixed().row(block, layout.fixed_place(leaf), row), bytes, count,
                    [&](size_t i) {
                      if (i == found) places[found++] = finder.find(data_->row(positions[i]));
                      return first_rows[places[i].chunk] + places[i].row * bytes;
                    });
      }
      positions = positions.subspan(count);
      row += count;
    }
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const Arrow& stage, Context& context)
        : stage_(stage),
          data_(*stage.data_),
          finder_(data_.elements),
          putter_(data_.fills, context.scratch) {}

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      for (size_t i = 0; i < positions.size(); ++i) {
        rows_[i] = data_.row(positions[i]);
        places_[i] = finder_.find(rows_[i]);
      }
      for (size_t leaf = 0; leaf < stage_.row_bytes_.size(); ++leaf) {
        for (size_t i = 0; i < positions.size(); ++i) {
          const auto to = static_cast<uint32_t>(row + i);
          try {
            putter_.put(data_.elements, leaf, places_[i], rows_[i], out, to);
          } catch (const Error&) {
            out.fail(to, {stage_.title_, positions[i], std::current_exception()});
          }
        }
      }
    }

   private:
    const Arrow& stage_;
    const Data& data_;
    ArrowElements::Finder finder_;
    ArrowPutter putter_;
    std::array<uint64_t, Chunk::kRows> rows_;
    std::array<Place, Chunk::kRows> places_;
  };

  std::shared_ptr<const Data> data_;
  std::string title_;
  std::vector<uint64_t> row_bytes_;  // by leaf
  std::vector<std::vector<const std::byte*>>
      first_rows_;     // by leaf and chunk, where they are plain
  bool plain_ = true;  // all rows of all leaves only have to be copied
};

void check_rows(const Tensor& rows, uint64_t count) {
  if (rows.dtype() != DType::kInt64 || rows.ndim() != 1) {
    throw invalid_source("row numbers must be int64, with one axis");
  }
  for (int64_t i = 0; i < rows.dim(0); ++i) {
    int64_t row;
    std::memcpy(&row, rows.data() + i * rows.strides()[0], sizeof(row));
    if (row >= 0 && static_cast<uint64_t>(row) < count) continue;
    throw invalid_source("row number " + std::to_string(row) + " of a table of " +
                         std::to_string(count) + " rows");
  }
}

}  // namespace

Node::Ref nodes::arrow(std::shared_ptr<const ArrowTable> table, const ArrowOptions& options) {
  auto data = std::make_shared<Data>(std::move(table));
  const SpecRef& spec = data->elements.spec();
  data->fills = arrow_fills(options.fills, *spec);
  data->length = data->elements.length();
  if (options.rows.defined()) {
    check_rows(options.rows, data->length);
    data->rows = options.rows;
    data->length = static_cast<uint64_t>(options.rows.dim(0));
  }
  return make_node({
      .title = "arrow(" + std::to_string(data->length) + ", " + spec->to_string() + ")",
      .build = [data = std::move(data)](std::vector<Built>, Builder& builder) -> Built {
        return {std::make_shared<Arrow>(data, builder.title())};
      },
  });
}

}  // namespace penstock
