#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/pipeline/builder.h"
#include "penstock/pipeline/node.h"

namespace penstock {

// How a ticket of a Dataset that was built finds its elements. Immutable: any thread.
//
// The root is the uppermost stage that stacks elements and has nothing but index arithmetic above
// it. A ticket is one of its batches; rows are elements of what is below it. Where there is no root
// (nothing is batched, or a function is mapped over batches) a ticket is up to rows_per_ticket()
// elements, which are handed out one by one.
class Plan {
 public:
  // Error kInvalidArgument in the user's terms, kNotFound, kDataLoss, ... : what the nodes find.
  explicit Plan(const Node& node);

  // Tickets of an epoch that is entered at `base`, a number of batches (elements) of all ranks.
  uint64_t steps(uint64_t base) const;
  uint32_t rows(uint64_t base, uint64_t step) const;  // of that ticket
  uint32_t most_rows() const;                         // of any
  // Where rows [first, first + out.size()) of a ticket are in chain(). Returns the epoch there.
  At locate(uint64_t epoch, uint64_t base, uint64_t step, uint64_t first,
            std::span<uint64_t> out) const;

  // Whose elements are the rows.
  const Indexed& chain() const { return *chain_; }
  bool batched() const { return root_ != nullptr; }
  const Collated* root() const { return root_.get(); }
  uint32_t rows_per_ticket() const { return per_ticket_; }  // of a plan without a root
  uint64_t length(uint64_t base) const;                     // batches, or elements

  // Of a plan that has one: the stream that a cursor goes through; chain() is then its tail, whose
  // positions are the stream's ordinals. nullptr: none.
  const Streamed* stream() const { return stream_.get(); }
  uint64_t per_output() const { return per_output_; }  // elements of the stream
  uint64_t stream_rows() const;                        // that a ticket takes
  bool whole_outputs() const { return whole_outputs_; }
  // Batches (elements) of an epoch, where that is known.
  std::optional<uint64_t> known_length() const;
  bool python() const;  // it calls Python somewhere

  // Ranks that a shard in the plan deals out to; 1: there is none. All of them together have used
  // the first `base` batches' worth of its input, where an epoch is entered at `base`; that is so
  // only with nothing but element-wise stages and batch above the shard (shard_moves): else a state
  // is of its own world alone.
  uint32_t world() const { return world_; }
  bool shard_moves() const { return shard_moves_; }
  // Of an epoch, by all ranks: what tells one source from another. Elements below the shard, or
  // length(0).
  uint64_t all() const { return all_; }

  // Epochs of the feed that are one pass of the user's: of an outermost repeat. kEndless.
  uint64_t rounds() const { return rounds_; }
  std::optional<uint32_t> queue() const { return queue_; }  // of an outermost prefetch(n)
  const std::vector<std::string>& titles() const { return titles_; }

 private:
  void find_shard(const Node& outermost, const Builder& builder);

  IndexedRef top_, chain_;
  StreamedRef stream_;
  uint64_t per_output_ = 1;
  bool whole_outputs_ = false;
  std::shared_ptr<const Collated> root_;
  std::vector<std::shared_ptr<const IndexMapped>> above_;  // the root, from the top down
  uint32_t per_ticket_ = 1;
  uint64_t rounds_ = 1;
  std::optional<uint32_t> queue_;
  uint32_t world_ = 1;
  bool shard_moves_ = false;
  uint64_t below_ = 1;  // elements below the shard that a batch takes
  uint64_t all_ = 0;
  std::vector<std::string> titles_;
};

}  // namespace penstock
