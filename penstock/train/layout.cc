#include "penstock/train/layout.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "penstock/base/error.h"

namespace penstock::train {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Bytes of a slab must fit into a signed number; so must those of a block.
constexpr size_t kMaxFloats = std::numeric_limits<int64_t>::max() / 64;

Error refuse_layout(const std::string& why) { return Error(Code::kInvalidArgument, "layout", why); }

std::string quoted(const std::string& name) { return "'" + name + "'"; }

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

void check_name(const std::string& name) {
  if (name.empty()) throw refuse_layout("a block has no name");
  if (name == "__metadata__" || name.starts_with("optimizer/")) {
    throw refuse_layout("no block can be named " + quoted(name) +
                        ": files reserve '__metadata__' and 'optimizer/...'");
  }
  try {
    (void)OrderedJson(name).dump();
  } catch (const OrderedJson::exception&) {
    throw refuse_layout("the name of a block is not UTF-8");
  }
}

size_t checked_size(const BlockSpec& spec) {
  if (spec.shape.size() > Layout::kMaxDims) {
    throw refuse_layout("block " + quoted(spec.name) + " has " + std::to_string(spec.shape.size()) +
                        " axes, more than " + std::to_string(Layout::kMaxDims));
  }
  // As for a tensor, an empty axis counts as one, so that strides fit.
  uint64_t padded = 1;
  for (int64_t length : spec.shape) {
    const bool bad =
        length < 0 || __builtin_mul_overflow(
                          padded, std::max<uint64_t>(static_cast<uint64_t>(length), 1), &padded);
    if (bad || padded > kMaxFloats) {
      throw refuse_layout("block " + quoted(spec.name) + " cannot have the shape " +
                          to_string(spec.shape));
    }
  }
  return static_cast<size_t>(element_count(spec.shape));
}

std::string text_of(const std::vector<Block>& blocks, size_t floats) {
  OrderedJson list = OrderedJson::array();
  for (const Block& block : blocks) {
    list.push_back({{"name", block.name}, {"shape", block.shape}, {"offset", block.offset}});
  }
  return OrderedJson({{"blocks", std::move(list)}, {"floats", floats}}).dump();
}

}  // namespace

Layout::Layout(const std::vector<BlockSpec>& specs) {
  if (specs.empty()) throw refuse_layout("no blocks: name at least one");
  for (const BlockSpec& spec : specs) {
    check_name(spec.name);
    const size_t size = checked_size(spec);
    if (!by_name_.emplace(spec.name, blocks_.size()).second) {
      throw refuse_layout("two blocks are named " + quoted(spec.name));
    }
    blocks_.push_back({spec.name, spec.shape, floats_, size});
    floats_ += (size + kAlign - 1) / kAlign * kAlign;
    parameters_ += size;
    if (floats_ > kMaxFloats) throw refuse_layout("the blocks are too large together");
  }
  floats_ = std::max(floats_, kAlign);
  json_ = text_of(blocks_, floats_);
  hash_ = fnv1a(json_);
}

const Block* Layout::find(std::string_view name) const {
  auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &blocks_[found->second];
}

const Block& Layout::at(std::string_view name) const {
  if (const Block* found = find(name)) return *found;
  constexpr size_t kListed = 8;
  std::string names;
  for (size_t i = 0; i < std::min(blocks_.size(), kListed); ++i) {
    names += (i == 0 ? "" : ", ") + quoted(blocks_[i].name);
  }
  if (blocks_.size() > kListed) names += ", ...";
  throw Error(Code::kNotFound, "layout",
              "there is no block " + quoted(std::string(name)) + "; there are " + names);
}

Layout Layout::from_json(std::string_view text) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("blocks") || !json["blocks"].is_array()) {
    throw refuse_layout("no layout: the JSON is no object with a list 'blocks'");
  }
  std::vector<BlockSpec> specs;
  for (const OrderedJson& item : json["blocks"]) {
    auto wrong = [&] {
      return refuse_layout("no layout: bad block " + std::to_string(specs.size()));
    };
    if (!item.is_object() || !item.contains("name") || !item.contains("shape")) throw wrong();
    if (!item["name"].is_string() || !item["shape"].is_array()) throw wrong();
    BlockSpec spec{item["name"].get<std::string>(), {}};
    for (const OrderedJson& length : item["shape"]) {
      if (!length.is_number_unsigned() || length.get<uint64_t>() > kMaxFloats) throw wrong();
      spec.shape.push_back(length.get<int64_t>());
    }
    specs.push_back(std::move(spec));
  }
  Layout layout(specs);
  // Places follow from the shapes; another text was made by other rules.
  if (layout.json_ != text) throw refuse_layout("no layout, or one of another version");
  return layout;
}

std::string Layout::difference(const Layout& other) const {
  if (*this == other) return "";
  for (size_t i = 0; i < std::min(blocks_.size(), other.blocks_.size()); ++i) {
    const Block& mine = blocks_[i];
    const Block& theirs = other.blocks_[i];
    if (mine.name != theirs.name) {
      return "block " + std::to_string(i) + " is " + quoted(mine.name) + " here and " +
             quoted(theirs.name) + " there";
    }
    if (mine.shape != theirs.shape) {
      return "block " + quoted(mine.name) + " is " + to_string(mine.shape) + " here and " +
             to_string(theirs.shape) + " there";
    }
  }
  const bool more = blocks_.size() > other.blocks_.size();
  const Block& block = more ? blocks_[other.blocks_.size()] : other.blocks_[blocks_.size()];
  return "block " + quoted(block.name) + " is only " + (more ? "here" : "there");
}

void Layout::require_equal(const Layout& other, const char* operation, const char* what) const {
  if (*this == other) return;
  throw Error(Code::kInvalidArgument, operation,
              std::string(what) + " has another layout: " + difference(other));
}

std::vector<Range> partition(const Layout& layout, size_t shards) {
  constexpr size_t kLine = Layout::kAlign;
  const size_t lines = (layout.floats() + kLine - 1) / kLine;
  if (shards == 0 || shards > kMaxShards || shards > lines) {
    throw Error(Code::kInvalidArgument, "partition",
                std::to_string(shards) + " shards for " + std::to_string(layout.floats()) +
                    " floats; there are 1 to " + std::to_string(std::min(kMaxShards, lines)));
  }
  const size_t slack = layout.floats() / shards / 16;
  std::vector<Range> ranges(shards);
  size_t begin = 0;
  for (size_t i = 0; i < shards; ++i) {
    // Spreads the rest evenly again, so that a moved cut burdens no single shard.
    const size_t left = shards - i;
    size_t end = layout.floats();
    if (left > 1) {
      const size_t even = begin + (layout.floats() - begin) / left;
      end = std::max(even / kLine * kLine, begin + kLine);
      const auto& blocks = layout.blocks();
      const auto after = std::ranges::lower_bound(blocks, even, {}, &Block::offset);
      size_t best = slack + 1;
      auto consider = [&](size_t start) {
        const size_t off = start > even ? start - even : even - start;
        const size_t lines_after = (layout.floats() - start + kLine - 1) / kLine;
        if (start > begin && off < best && lines_after >= left - 1) {
          best = off;
          end = start;
        }
      };
      if (after != blocks.end()) consider(after->offset);
      if (after != blocks.begin()) consider((after - 1)->offset);
    }
    ranges[i] = {begin, end};
    begin = end;
  }
  return ranges;
}

}  // namespace penstock::train
