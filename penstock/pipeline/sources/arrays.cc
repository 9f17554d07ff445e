#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/memory/copy.h"
#include "penstock/pipeline/element/example_rows.h"
#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/stages/memory_rows.h"

namespace penstock {

namespace {

// Where the rows of one array lie.
struct Column {
  Column(const Tensor& tensor, bool reversed)
      : first(tensor.data()),
        stride(tensor.strides()[0]),
        itemsize(size_of(tensor.dtype())),
        number(reversed ? number_bytes(tensor.dtype()) : 1),
        shape(tensor.shape().begin() + 1, tensor.shape().end()),
        strides(tensor.strides().begin() + 1, tensor.strides().end()) {
    if (tensor.dim(0) == 0) return;
    contiguous = tensor.row(0).is_contiguous();
    row_bytes = tensor.row(0).nbytes();
    if (stride >= 0) return;
    // gather_rows takes no negative stride, so rows are counted from the one at the lowest address.
    last = static_cast<uint64_t>(tensor.dim(0) - 1);
    first += stride * tensor.dim(0) - stride;
    stride = -stride;
  }

  const std::byte* row(uint64_t place) const {
    return first + place * static_cast<uint64_t>(stride);
  }
  // Whether the rows in memory have the layout of elements.
  bool has_element_layout() const { return contiguous && number == 1 && last == 0; }

  const std::byte* first;
  int64_t stride;
  // not 0: the number of the last row; the rows are in reverse order and `first` is that row
  uint64_t last = 0;
  size_t itemsize;
  size_t number;  // size of the values to byte-swap; 1: no swap
  bool contiguous = true;
  uint64_t row_bytes = 0;
  Shape shape, strides;  // of a row
};

std::byte* copy_strided(std::byte* to, const std::byte* from, std::span<const int64_t> shape,
                        std::span<const int64_t> strides, size_t itemsize) {
  if (shape.empty()) {
    std::memcpy(to, from, itemsize);
    return to + itemsize;
  }
  for (int64_t i = 0; i < shape[0]; ++i) {
    to = copy_strided(to, from + i * strides[0], shape.subspan(1), strides.subspan(1), itemsize);
  }
  return to;
}

class Arrays : public Indexed, public MemoryRows {
 public:
  Arrays(Example columns, const std::vector<bool>& reversed, SpecRef spec)
      : owner_(std::move(columns)), spec_(std::move(spec)) {
    for (size_t i = 0; i < owner_.size(); ++i) {
      columns_.emplace_back(owner_[i].second, !reversed.empty() && reversed[i]);
    }
    length_ = static_cast<uint64_t>(owner_[0].second.dim(0));
  }

  uint64_t length(uint64_t) const override { return length_; }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return false; }
  std::unique_ptr<IndexedReader> reader(Context&) const override {
    return std::make_unique<Reader>(*this);
  }
  bool has_element_layout() const override {
    return std::ranges::all_of(columns_, &Column::has_element_layout);
  }
  void copy(std::span<const uint64_t> positions, const BlockLayout& layout, std::byte* block,
            uint64_t row) const override {
    for (size_t leaf = 0; leaf < columns_.size(); ++leaf) {
      const Column& column = columns_[leaf];
      gather_rows(layout.fixed().row(block, layout.fixed_place(leaf), row), column.first,
                  column.row_bytes, static_cast<size_t>(column.stride), positions.data(),
                  positions.size());
    }
  }

 private:
  class Reader : public IndexedReader {
   public:
    explicit Reader(const Arrays& arrays) : arrays_(arrays) {}

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      for (size_t leaf = 0; leaf < arrays_.columns_.size(); ++leaf) {
        const Column& column = arrays_.columns_[leaf];
        if (column.row_bytes == 0) continue;
        std::array<uint64_t, Chunk::kRows> mirrored;
        std::span<const uint64_t> places = positions;
        if (column.last != 0) {
          for (size_t i = 0; i < places.size(); ++i) mirrored[i] = column.last - positions[i];
          places = std::span<const uint64_t>(mirrored.data(), places.size());
        }
        put(column, leaf, places, out, row);
      }
    }

   private:
    static void put(const Column& column, size_t leaf, std::span<const uint64_t> places, Chunk& out,
                    uint32_t row) {
      if (column.contiguous && column.number == 1 && !out.bound(leaf)) {
        for (uint64_t place : places) out.view(leaf, row++, column.row(place));
        return;
      }
      std::byte* to = out.dense(leaf);
      const uint64_t step = out.stride(leaf);
      to += row * step;
      if (column.contiguous && column.number == 1 && step == column.row_bytes) {
        gather_rows(to, column.first, column.row_bytes, static_cast<size_t>(column.stride),
                    places.data(), places.size());
        return;
      }
      for (uint64_t place : places) {
        if (column.contiguous) {
          copy_byteswapped(to, column.row(place), column.row_bytes, column.number);
        } else {
          copy_strided(to, column.row(place), column.shape, column.strides, column.itemsize);
          if (column.number > 1) copy_byteswapped(to, to, column.row_bytes, column.number);
        }
        to += step;
      }
    }

    const Arrays& arrays_;
  };

  Example owner_;
  SpecRef spec_;
  std::vector<Column> columns_;
  uint64_t length_;
};

SpecRef spec_of(const Example& columns, std::string nest) {
  if (columns.empty()) throw Error(Code::kInvalidArgument, "arrays", "there is no array");
  std::vector<Leaf> leaves;
  for (const auto& [name, tensor] : columns) {
    if (!tensor.defined() || tensor.ndim() == 0) {
      throw Error(Code::kInvalidArgument, "arrays",
                  "'" + name + "' has no axes; the first one is the elements'");
    }
    if (tensor.dim(0) != columns[0].second.dim(0)) {
      throw Error(Code::kInvalidArgument, "arrays",
                  "'" + name + "' has " + std::to_string(tensor.dim(0)) + " rows, '" +
                      columns[0].first + "' " + std::to_string(columns[0].second.dim(0)));
    }
    leaves.push_back({name, LeafKind::kDense, tensor.dtype(),
                      Shape(tensor.shape().begin() + 1, tensor.shape().end())});
  }
  return std::make_shared<ElementSpec>(std::move(leaves), std::move(nest));
}

}  // namespace

Node::Ref nodes::arrays(Example columns, std::string nest, std::vector<bool> reversed,
                        std::string form) {
  SpecRef spec = spec_of(columns, std::move(nest));
  const int64_t rows = columns[0].second.dim(0);
  if (form.empty()) form = spec->to_string();
  return make_node({
      .title = "arrays(" + std::to_string(rows) + ", " + form + ")",
      .build = [=](std::vector<Built>, Builder&) -> Built {
        return {std::make_shared<Arrays>(columns, reversed, spec)};
      },
  });
}

namespace {

class Items : public Indexed {
 public:
  Items(const std::vector<Example>& elements, SpecRef spec)
      : length_(elements.size()), spec_(std::move(spec)) {
    if (length_ == 0) return;
    columns_.resize(spec_->leaves().size());
    for (size_t leaf = 0; leaf < columns_.size(); ++leaf) {
      columns_[leaf].reserve(length_);
      for (const Example& element : elements) {
        columns_[leaf].push_back(element[leaf].second.contiguous());
      }
    }
  }

  uint64_t length(uint64_t) const override { return length_; }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return false; }
  std::unique_ptr<IndexedReader> reader(Context&) const override {
    return std::make_unique<Reader>(*this);
  }

 private:
  class Reader : public IndexedReader {
   public:
    explicit Reader(const Items& items) : items_(items) {}
    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      for (size_t leaf = 0; leaf < items_.columns_.size(); ++leaf) {
        const std::vector<Tensor>& column = items_.columns_[leaf];
        for (size_t i = 0; i < positions.size(); ++i) {
          const Tensor& tensor = column[positions[i]];
          out.view(leaf, static_cast<uint32_t>(row + i), tensor.data(), tensor.shape());
        }
      }
    }

   private:
    const Items& items_;
  };

  uint64_t length_;
  SpecRef spec_;
  std::vector<std::vector<Tensor>> columns_;  // by leaf
};

ElementSpec spec_of(const Example& element) {
  std::vector<Leaf> leaves;
  for (const auto& [name, tensor] : element) {
    if (!tensor.defined()) {
      throw Error(Code::kInvalidArgument, "items", "'" + name + "' of an element is no array");
    }
    leaves.push_back({name, LeafKind::kDense, tensor.dtype(), tensor.shape()});
  }
  return ElementSpec(std::move(leaves));
}

SpecRef merged(const std::vector<Example>& elements) {
  SpecRef spec;
  for (size_t i = 0; i < elements.size(); ++i) {
    if (spec != nullptr && fits(elements[i], *spec)) continue;
    ElementSpec own = spec_of(elements[i]);
    if (spec == nullptr) {
      spec = std::make_shared<ElementSpec>(std::move(own));
      continue;
    }
    auto both = spec->merged(own);
    if (!both) {
      throw Error(Code::kInvalidArgument, "items",
                  "elements must be alike: element 0 is " + spec->to_string() + ", element " +
                      std::to_string(i) + " is " + own.to_string());
    }
    spec = std::make_shared<ElementSpec>(std::move(*both));
  }
  return spec;
}

}  // namespace

Node::Ref nodes::items(std::vector<Example> elements, SpecRef spec) {
  if (spec == nullptr) {
    spec = merged(elements);
  } else {
    for (size_t i = 0; i < elements.size(); ++i) {
      if (fits(elements[i], *spec)) continue;
      throw Error(Code::kInvalidArgument, "items",
                  "element " + std::to_string(i) + " is " + spec_of(elements[i]).to_string() +
                      ", and not " + spec->to_string());
    }
  }
  return make_node({
      .title = "items(" + std::to_string(elements.size()) +
               (spec == nullptr ? ")" : ", " + spec->to_string() + ")"),
      .build = [elements = std::move(elements), spec](std::vector<Built>, Builder&) -> Built {
        return {std::make_shared<Items>(elements, spec)};
      },
  });
}

}  // namespace penstock
