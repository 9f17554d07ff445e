#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "penstock/base/bijection.h"
#include "penstock/base/error.h"
#include "penstock/base/random.h"
#include "penstock/pipeline/stages/stage.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

// The order of one epoch, with blocks of one length. Blocks have places 0, 1, ...; `tail` is the
// place of the short block, or the number of places if there is none.
class BlockOrder {
 public:
  BlockOrder() = default;
  BlockOrder(uint64_t length, uint64_t seed, uint64_t epoch, uint64_t block, uint64_t window)
      : length_(length),
        seed_(seed),
        epoch_(epoch),
        block_(std::min(block, std::max<uint64_t>(length, 1))),
        full_(length / block_),
        short_(length % block_),
        places_(full_ + (short_ != 0)),
        window_(std::min(window, std::max<uint64_t>(places_, 1))),
        blocks_(full_, derive_key(seed, epoch, KeyUse::kBlocks)) {
    const uint64_t drawn = derive_key(seed, epoch, KeyUse::kTail);
    const auto place = static_cast<unsigned __int128>(drawn) * (full_ + 1) >> 64;
    tail_ = short_ != 0 ? static_cast<uint64_t>(place) : places_;
  }

  bool is_of(uint64_t length, uint64_t epoch) const { return length == length_ && epoch == epoch_; }

  // Replaces positions by those of the input.
  void map(std::span<uint64_t> positions) {
    while (!positions.empty()) {
      if (!in_window(positions[0])) enter(place_of(positions[0]) / window_);
      const uint64_t first = positions[0];
      size_t run = 1;  // consecutive positions in one window are mapped together, which is faster
      while (run < positions.size() && positions[run] == first + run && in_window(first + run)) {
        ++run;
      }
      inside_.map(first - window_begin_, run, positions.data());
      for (uint64_t& position : positions.first(run)) position = unmixed(position);
      positions = positions.subspan(run);
    }
  }

 private:
  uint64_t begin_of(uint64_t place) const {
    return place * block_ - (place > tail_ ? block_ - short_ : 0);
  }
  uint64_t place_of(uint64_t position) const {
    const bool behind = tail_ < places_ && position >= tail_ * block_ + short_;
    return (position + (behind ? block_ - short_ : 0)) / block_;
  }
  bool in_window(uint64_t position) const {
    return position >= window_begin_ && position < window_end_;
  }
  // The index among the full blocks of the block at a place. REQUIRED: place is not the tail's.
  uint64_t full_at(uint64_t place) const { return place - (place > tail_); }

  void enter(uint64_t window) {
    const uint64_t first = window * window_, end = first + std::min(window_, places_ - first);
    window_begin_ = begin_of(first);
    window_end_ = end < places_ ? begin_of(end) : length_;
    const uint64_t key = derive_key(seed_, epoch_, KeyUse::kWindow);
    inside_ = Bijection(window_end_ - window_begin_, derive_key(key, window, KeyUse::kWindow));
    if (window_ > kTable) return;
    first_in_table_ = full_at(first);
    const bool has_tail = tail_ >= first && tail_ < end;
    blocks_.map(first_in_table_, end - first - has_tail, table_.data());
  }

  // The input's position, from a position within the shuffled window.
  uint64_t unmixed(uint64_t mixed) const {
    const uint64_t position = window_begin_ + mixed, place = place_of(position);
    const uint64_t inside = position - begin_of(place);
    if (place == tail_) return full_ * block_ + inside;
    const uint64_t at = full_at(place);
    return (window_ > kTable ? blocks_(at) : table_[at - first_in_table_]) * block_ + inside;
  }

  static constexpr uint64_t kTable = 64;

  uint64_t length_ = 0, seed_ = 0, epoch_ = 0;
  uint64_t block_ = 1;
  uint64_t full_ = 0, short_ = 0;  // number of full blocks, and of elements in the short one
  uint64_t places_ = 0, window_ = 1, tail_ = 0;
  Bijection blocks_{0, 0};
  uint64_t window_begin_ = 0, window_end_ = 0;  // positions of the current window
  Bijection inside_{0, 0};
  uint64_t first_in_table_ = 0;
  std::array<uint64_t, kTable> table_{};  // the full blocks of the current window, if they fit
};

// The same with blocks of any lengths, which end at `ends`.
class StoredBlockOrder {
 public:
  using Ends = std::shared_ptr<const std::vector<uint64_t>>;

  StoredBlockOrder() = default;
  StoredBlockOrder(Ends ends, uint64_t seed, uint64_t epoch, uint64_t window)
      : ends_(std::move(ends)),
        seed_(seed),
        epoch_(epoch),
        window_(std::min<uint64_t>(window, std::max<size_t>(ends_->size(), 1))),
        blocks_(ends_->size(), derive_key(seed, epoch, KeyUse::kBlocks)),
        places_end_(ends_->size()) {
    uint64_t end = 0;
    for (uint64_t place = 0; place < places_end_.size(); ++place) {
      const uint64_t block = blocks_(place);
      places_end_[place] = end += (*ends_)[block] - begin_of(block);
    }
  }

  bool is_of(uint64_t length, uint64_t epoch) const {
    return ends_ != nullptr && epoch == epoch_ && length == (ends_->empty() ? 0 : ends_->back());
  }

  void map(std::span<uint64_t> positions) {
    for (uint64_t& position : positions) {
      if (position < window_begin_ || position >= window_end_) enter(position);
      const uint64_t mixed = window_begin_ + inside_(position - window_begin_);
      const uint64_t place = place_of(mixed);
      position = begin_of(blocks_(place)) + mixed - place_begin(place);
    }
  }

 private:
  uint64_t begin_of(uint64_t block) const { return block == 0 ? 0 : (*ends_)[block - 1]; }
  uint64_t place_begin(uint64_t place) const { return place == 0 ? 0 : places_end_[place - 1]; }
  uint64_t place_of(uint64_t position) const {
    return static_cast<uint64_t>(std::ranges::upper_bound(places_end_, position) -
                                 places_end_.begin());
  }

  void enter(uint64_t position) {
    const uint64_t window = place_of(position) / window_, first = window * window_;
    const uint64_t last = std::min<uint64_t>(first + window_, places_end_.size()) - 1;
    window_begin_ = place_begin(first);
    window_end_ = places_end_[last];
    const uint64_t key = derive_key(seed_, epoch_, KeyUse::kWindow);
    inside_ = Bijection(window_end_ - window_begin_, derive_key(key, window, KeyUse::kWindow));
  }

  Ends ends_;
  uint64_t seed_ = 0, epoch_ = 0, window_ = 1;
  Bijection blocks_{0, 0};
  std::vector<uint64_t> places_end_;  // where the block at each place ends in the shuffled order
  uint64_t window_begin_ = 0, window_end_ = 0;
  Bijection inside_{0, 0};
};

template <class Order>
class ShuffleBlocks : public IndexMapped {
 public:
  // `order`: of a length and an epoch.
  using MakeOrder = std::function<Order(uint64_t, uint64_t)>;
  ShuffleBlocks(IndexedRef input, bool reshuffle, MakeOrder order)
      : IndexMapped(std::move(input)), reshuffle_(reshuffle), order_(std::move(order)) {}

  uint64_t length(uint64_t base) const override { return input()->length(base); }

  uint32_t map(At& at, std::span<uint64_t> positions) const override {
    Order order;
    return map(at, positions, order);
  }

  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    auto map = [this, order = Order()](At& at, std::span<uint64_t> positions) mutable {
      return this->map(at, positions, order);
    };
    return mapped_reader(std::move(map), input()->open(context));
  }

 private:
  uint32_t map(At& at, std::span<uint64_t> positions, Order& order) const {
    const uint64_t epoch = reshuffle_ ? at.epoch : 0;
    const uint64_t length = input()->length(at.base);
    if (!order.is_of(length, epoch)) order = order_(length, epoch);
    order.map(positions);
    return static_cast<uint32_t>(positions.size());
  }

  const bool reshuffle_;
  const MakeOrder order_;
};

IndexedRef of_stored_blocks(IndexedRef input, const ShuffleBlocksOptions& options) {
  auto ends = std::make_shared<const std::vector<uint64_t>>(input->blocks());
  if (ends->empty() && input->length(0) > 0) {
    throw Error(
        Code::kInvalidArgument, "shuffle",
        "what it shuffles has no blocks of its own, as the row groups of parquet and the "
        "compressed chunks of hdf5; put it behind such a source, or behind its take, skip, map or "
        "concatenate, but before shard and other shuffles; or give block a number");
  }
  return std::make_shared<ShuffleBlocks<StoredBlockOrder>>(
      std::move(input), options.reshuffle, [ends, options](uint64_t, uint64_t epoch) {
        return StoredBlockOrder(ends, options.seed, epoch, options.window);
      });
}

}  // namespace

Node::Ref nodes::shuffle_blocks(Node::Ref input, const ShuffleBlocksOptions& options) {
  if (options.block == 0 || options.window == 0) {
    throw Error(Code::kInvalidArgument, "shuffle",
                std::string(options.block == 0 ? "block" : "window") + " is 0; give 1 or more");
  }
  const bool stored = options.block == ShuffleBlocksOptions::kStored;
  return make_node({
      .title = "shuffle(seed=" + std::to_string(options.seed) +
               ", block=" + (stored ? "auto" : std::to_string(options.block)) + ", window=" +
               std::to_string(options.window) + (options.reshuffle ? ")" : ", reshuffle=false)"),
      .inputs = {std::move(input)},
      .build = [options, stored](std::vector<Built> inputs, Builder&) -> Built {
        const uint64_t length = inputs[0].indexed->length(0);
        if (length > Bijection::kMaxLength) {
          throw Error(
              Code::kInvalidArgument, "shuffle",
              length == kEndless
                  ? "what has no end, or 2^64 - 1 elements, is too long to be shuffled as a "
                    "whole: where it is repeated, shuffle first, then repeat"
                  : "it is too long to be shuffled: " + std::to_string(length) +
                        " elements are more than 2^62");
        }
        if (stored) return {of_stored_blocks(inputs[0].indexed, options)};
        return {std::make_shared<ShuffleBlocks<BlockOrder>>(
            inputs[0].indexed, options.reshuffle, [options](uint64_t count, uint64_t epoch) {
              return BlockOrder(count, options.seed, epoch, options.block, options.window);
            })};
      },
      .refuses_streams = "",
  });
}

}  // namespace penstock
