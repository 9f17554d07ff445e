#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/memory/copy.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/arrow_leaf.h"
#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/stages/memory_rows.h"

namespace penstock {
namespace {

// Rows whose copy is announced to the processor while earlier ones are copied.
constexpr size_t kAhead = 8;

Error invalid_source(const std::string& why) { return {Code::kInvalidArgument, "arrow", why}; }

// What the stage and its readers read. Immutable.
struct Data {
  std::shared_ptr<const ArrowTable> table;
  Tensor rows;                // row numbers; or not defined
  std::vector<Tensor> fills;  // by leaf; not defined: none
  SpecRef spec;
  std::vector<ArrowLeaf> leaves;
  std::vector<uint64_t> ends;                  // of each chunk, in rows
  std::vector<std::vector<ArrowRows>> chunks;  // by leaf
  uint64_t length = 0;

  uint64_t row(uint64_t position) const {
    if (!rows.defined()) return position;
    int64_t row;
    std::memcpy(&row, rows.data() + static_cast<int64_t>(position) * rows.strides()[0],
                sizeof(row));
    return static_cast<uint64_t>(row);
  }
};

// A row's place.
struct Place {
  size_t chunk = 0;
  uint64_t row = 0;  // in the chunk
};

// Finds the chunks of rows; quickly if the next row lies in the same chunk.
class Finder {
 public:
  explicit Finder(const Data& data) : data_(data) {}
  Place find(uint64_t row) {
    if (row < begin_ || row >= data_.ends[chunk_]) {
      chunk_ = static_cast<size_t>(std::ranges::upper_bound(data_.ends, row) - data_.ends.begin());
      begin_ = chunk_ == 0 ? 0 : data_.ends[chunk_ - 1];
    }
    return {chunk_, row - begin_};
  }

 private:
  const Data& data_;
  size_t chunk_ = 0;
  uint64_t begin_ = 0;
};

class Arrow : public Indexed, public MemoryRows {
 public:
  Arrow(std::shared_ptr<const Data> data, std::string title)
      : data_(std::move(data)), title_(std::move(title)) {
    for (const Leaf& leaf : data_->spec->leaves()) {
      row_bytes_.push_back(
          leaf.fixed() ? static_cast<uint64_t>(leaf.fixed_values()) * size_of(leaf.dtype) : 0);
    }
    for (size_t leaf = 0; leaf < row_bytes_.size(); ++leaf) {
      plain_ &= data_->spec->leaves()[leaf].fixed() &&
                std::ranges::all_of(data_->chunks[leaf],
                                    [](const ArrowRows& rows) { return rows.plain() != nullptr; });
    }
  }

  uint64_t length(uint64_t) const override { return data_->length; }
  SpecRef spec() const override { return data_->spec; }
  bool costly() const override { return false; }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

  bool has_element_layout() const override { return plain_; }
  void copy(std::span<const uint64_t> positions, const BlockLayout& layout, std::byte* block,
            uint64_t row) const override {
    Finder finder(*data_);
    std::array<Place, Chunk::kRows> places;
    std::array<uint64_t, Chunk::kRows> inside;
    while (!positions.empty()) {
      const size_t count = std::min<size_t>(positions.size(), Chunk::kRows);
      bool one_chunk = true;
      for (size_t i = 0; i < count; ++i) {
        places[i] = finder.find(data_->row(positions[i]));
        inside[i] = places[i].row;
        one_chunk &= places[i].chunk == places[0].chunk;
      }
      for (size_t leaf = 0; leaf < row_bytes_.size(); ++leaf) {
        std::byte* to = layout.fixed().row(block, layout.fixed_place(leaf), row);
        const uint64_t bytes = row_bytes_[leaf];
        const std::vector<ArrowRows>& chunks = data_->chunks[leaf];
        if (one_chunk) {
          gather_rows(to, chunks[places[0].chunk].plain(), bytes, bytes, inside.data(), count);
          continue;
        }
        const auto from = [&](size_t i) {
          return chunks[places[i].chunk].plain() + places[i].row * bytes;
        };
        for (size_t i = 0; i < count; ++i) {
          if (i + kAhead < count) __builtin_prefetch(from(i + kAhead));
          if (bytes > 0) std::memcpy(to + i * bytes, from(i), bytes);
        }
      }
      positions = positions.subspan(count);
      row += count;
    }
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const Arrow& stage, Context& context)
        : stage_(stage), data_(*stage.data_), context_(context), finder_(data_) {}

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      for (size_t i = 0; i < positions.size(); ++i) {
        rows_[i] = data_.row(positions[i]);
        places_[i] = finder_.find(rows_[i]);
      }
      for (size_t leaf = 0; leaf < data_.leaves.size(); ++leaf) {
        for (size_t i = 0; i < positions.size(); ++i) {
          const auto to = static_cast<uint32_t>(row + i);
          try {
            put(leaf, i, out, to);
          } catch (const Error&) {
            out.fail(to, {stage_.title_, positions[i], std::current_exception()});
          }
        }
      }
    }

   private:
    void put(size_t leaf, size_t i, Chunk& out, uint32_t row) {
      const ArrowRows& rows = data_.chunks[leaf][places_[i].chunk];
      if (rows.plain() != nullptr) {
        return out.view(leaf, row, rows.plain() + places_[i].row * stage_.row_bytes_[leaf]);
      }
      const Leaf& form = data_.spec->leaves()[leaf];
      std::byte* to = out.bound(leaf) ? out.dense(leaf) + row * out.stride(leaf) : nullptr;
      dims_.resize(form.fixed() ? 0 : form.shape.size());
      const Tensor& fill = data_.fills[leaf];
      const std::byte* made =
          rows.read(static_cast<int64_t>(places_[i].row), rows_[i],
                    fill.defined() ? &fill : nullptr, to, context_.scratch, dims_);
      if (made != to) out.view(leaf, row, made, dims_);
    }

    const Arrow& stage_;
    const Data& data_;
    Context& context_;
    Finder finder_;
    std::array<uint64_t, Chunk::kRows> rows_;
    std::array<Place, Chunk::kRows> places_;
    std::vector<int64_t> dims_;
  };

  std::shared_ptr<const Data> data_;
  std::string title_;
  std::vector<uint64_t> row_bytes_;  // by leaf
  bool plain_ = true;                // all rows of all leaves only have to be copied
};

std::vector<Tensor> fills_of(const Example& fills, const ElementSpec& spec) {
  std::vector<Tensor> made(spec.leaves().size());
  for (const auto& [name, fill] : fills) {
    const auto leaf = spec.find(name);
    if (!leaf) throw invalid_source("there is no '" + name + "' to fill in " + spec.to_string());
    const Leaf& form = spec.leaves()[*leaf];
    Shape shape = form.shape;
    if (form.kind == LeafKind::kRagged) {
      shape.clear();
    } else if (!form.fixed() && fill.defined() && fill.ndim() == 1) {
      shape = fill.shape();
    }
    if (!fill.defined() || fill.dtype() != form.dtype || fill.shape() != shape) {
      throw invalid_source("the value for nulls of '" + name + "' must be " +
                           std::string(name_of(form.dtype)) + " " + to_string(shape));
    }
    made[*leaf] = fill.contiguous();
  }
  return made;
}

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
  auto data = std::make_shared<Data>();
  data->leaves = arrow_leaves(table->schema, data->spec);
  data->fills = fills_of(options.fills, *data->spec);
  data->chunks.resize(data->leaves.size());
  for (const ArrowColumn& chunk : table->chunks) {
    data->length += static_cast<uint64_t>(chunk.length);
    data->ends.push_back(data->length);
    for (size_t leaf = 0; leaf < data->leaves.size(); ++leaf) {
      data->chunks[leaf].emplace_back(data->leaves[leaf], chunk);
    }
  }
  data->table = std::move(table);
  if (options.rows.defined()) {
    check_rows(options.rows, data->length);
    data->rows = options.rows;
    data->length = static_cast<uint64_t>(options.rows.dim(0));
  }
  return make_node({
      .title = "arrow(" + std::to_string(data->length) + ", " + data->spec->to_string() + ")",
      .build = [data = std::move(data)](std::vector<Built>, Builder& builder) -> Built {
        return {std::make_shared<Arrow>(data, builder.title())};
      },
  });
}

}  // namespace penstock
