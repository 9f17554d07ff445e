#include "penstock/pipeline/sources/arrow_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {

ArrowElements::ArrowElements(std::shared_ptr<const ArrowTable> table) : table_(std::move(table)) {
  leaves_ = arrow_leaves(table_->schema, spec_);
  chunks_.resize(leaves_.size());
  uint64_t length = 0;
  for (const ArrowColumn& chunk : table_->chunks) {
    ends_.push_back(length += static_cast<uint64_t>(chunk.length));
    for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
      chunks_[leaf].emplace_back(leaves_[leaf], chunk);
    }
  }
}

bool ArrowElements::plain(size_t leaf) const {
  return spec_->leaves()[leaf].fixed() &&
         std::ranges::all_of(chunks_[leaf],
                             [](const ArrowRows& rows) { return rows.plain() != nullptr; });
}

std::vector<const std::byte*> ArrowElements::first_rows(size_t leaf) const {
  std::vector<const std::byte*> rows;
  for (const ArrowRows& chunk : chunks_[leaf]) rows.push_back(chunk.plain());
  return rows;
}

void ArrowElements::Finder::search(uint64_t row) {
  chunk_ = static_cast<size_t>(std::ranges::upper_bound(ends_, row) - ends_.begin());
  begin_ = chunk_ == 0 ? 0 : ends_[chunk_ - 1];
}

void ArrowPutter::put(const ArrowElements& from, size_t leaf, const ArrowElements::Place& place,
                      uint64_t shown, Chunk& out, uint32_t row, bool dense) {
  const ArrowRows& rows = from.rows(leaf, place.chunk);
  dense |= out.bound(leaf);
  const uint64_t bytes = out.row_bytes(leaf);
  std::byte* to = dense ? out.dense(leaf) + row * out.stride(leaf) : nullptr;
  const std::byte* made = nullptr;
  if (rows.plain() != nullptr) {
    made = rows.plain() + place.row * bytes;
  } else {
    const Leaf& form = from.spec()->leaves()[leaf];
    const Tensor& fill = fills_[leaf];
    dims_.resize(form.fixed() ? 0 : form.shape.size());
    made = rows.read(static_cast<int64_t>(place.row), shown, fill.defined() ? &fill : nullptr, to,
                     scratch_, dims_);
  }
  if (!dense) {
    out.view(leaf, row, made, dims_);
  } else if (made != to && bytes > 0) {
    std::memcpy(to, made, bytes);
  }
}

std::vector<Tensor> arrow_fills(const Example& fills, const ElementSpec& spec) {
  const auto refuse = [](const std::string& why) {
    throw Error(Code::kInvalidArgument, "arrow", why);
  };
  std::vector<Tensor> made(spec.leaves().size());
  for (const auto& [name, fill] : fills) {
    const auto leaf = spec.find(name);
    if (!leaf) refuse("there is no '" + name + "' to fill in " + spec.to_string());
    const Leaf& form = spec.leaves()[*leaf];
    Shape shape = form.shape;
    if (form.kind == LeafKind::kRagged) {
      shape.clear();
    } else if (!form.fixed() && fill.defined() && fill.ndim() == 1) {
      shape = fill.shape();
    }
    if (!fill.defined() || fill.dtype() != form.dtype || fill.shape() != shape) {
      refuse("the value for nulls of '" + name + "' must be " + std::string(name_of(form.dtype)) +
             " " + to_string(shape));
    }
    made[*leaf] = fill.contiguous();
  }
  return made;
}

}  // namespace penstock
