#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/plan/node.h"

namespace penstock {

class MemoryRows;

// A built Dataset: finds the elements of a ticket. Immutable: any thread.
//
// The root is the uppermost stage that stacks elements and has nothing but index arithmetic above
// it. A ticket is one of its batches; rows are elements of what is below it. Where there is no root
// (nothing is batched, or a function is mapped over batches) a ticket is up to rows_per_ticket()
// elements, which are handed out one by one.
class Plan {
 public:
  // For a worker's process: files and stores of the consumer's plan of the same nodes.
  struct Given {
    os::Fd files;                // files_for_workers()
    std::vector<os::Fd> stores;  // those of caches(), in order
  };
  // Errors of the nodes: kInvalidArgument in the user's terms, kNotFound, kDataLoss, ... kClosed:
  // `progress` stopped a pass over files. `skip`: the loader skips failed elements. A worker's plan
  // must be built with the same value.
  explicit Plan(const Node& node, bool skip = false, Progress* progress = nullptr,
                std::optional<Given> given = {});
  // A parallel map's: elements of `built`, one to a ticket. `stages` are all of the plan's.
  Plan(const Built& built, const StageNumbers& stages);

  // Tickets of an epoch that is entered at `base`, a number of batches (elements) of all ranks.
  uint64_t steps(uint64_t base) const;
  uint32_t rows(uint64_t base, uint64_t step) const;  // of that ticket
  uint32_t most_rows() const;                         // of any
  // Where rows [first, first + out.size()) of a ticket are in chain(). Returns the epoch there.
  At locate(uint64_t epoch, uint64_t base, uint64_t step, uint64_t first,
            std::span<uint64_t> out) const;

  // What the user knows that row by, for errors: the index in a data set of samples, or the
  // position in chain().
  uint64_t index_of(uint64_t epoch, uint64_t base, uint64_t step, uint64_t row) const;

  // Whose elements are the rows.
  const Indexed& chain() const { return *chain_; }
  bool batched() const { return root_ != nullptr; }
  // A ticket's rows are written to their places as they are made. Else they are collected first,
  // for only all of them tell what a row is, or where.
  bool bound() const;
  const Collated* root() const { return root_.get(); }
  bool listed() const { return listed_; }  // see Node::listed
  // Of a batched plan whose elements only have to be copied: arrays in memory, with nothing but
  // index arithmetic between them and the root.
  struct Copied {
    const MemoryRows* rows = nullptr;       // nullptr: there is more to do
    std::vector<const IndexMapped*> above;  // from the top down
    std::vector<uint32_t> stages;           // the numbers of those, and of the arrays
  };
  const Copied& copied() const { return copied_; }
  // Parts that each batch is handed out in (split_batch); 0: it is not split.
  uint32_t parts() const { return parts_; }
  uint32_t rows_per_ticket() const { return per_ticket_; }  // of a plan without a root
  uint64_t length(uint64_t base) const;                     // batches, or elements

  // Of a plan that has one: the stream that a cursor goes through; chain() is then its tail, whose
  // positions are the stream's ordinals. nullptr: none.
  const Streamed* stream() const { return built_.stream.get(); }
  uint64_t per_output() const { return built_.per_output; }  // elements of the stream
  uint64_t stream_rows() const;                              // that a ticket takes
  bool whole_outputs() const { return built_.whole_outputs; }
  // Batches (elements) of an epoch, where that is known.
  std::optional<uint64_t> known_length() const;
  // Built for a feed that skips, and not as for one that raises: their states are not alike.
  bool apart() const { return apart_; }
  // Whether workers call Python, and whoever goes through the stream; all parallel maps together.
  bool python() const;
  bool stream_python() const { return stream() != nullptr && stream()->python(); }

  // What the nodes became.
  const Built& built() const { return built_; }
  // The costly stretches in front of streams' stages, each a plan of its own, which the same
  // workers serve (see ParallelMaps); from the source upward.
  const std::vector<std::shared_ptr<const Plan>>& parallel_maps() const { return maps_; }

  // Ranks that a shard in the plan deals out to; 1: there is none. All of them together have used
  // the first `base` batches' worth of its input, where an epoch is entered at `base`; that is so
  // only with nothing but element-wise stages and batch above the shard (shard_moves): else a state
  // is of its own world alone.
  uint32_t world() const { return world_; }
  bool shard_moves() const { return shard_moves_; }
  // Of an epoch, by all ranks: what tells one source from another. Elements below the shard, or
  // length(0).
  uint64_t all() const { return dealt_ == nullptr ? 0 : dealt_->length(0); }

  // The same in batches (elements); nothing: it is endless, or only one rank's are known.
  std::optional<uint64_t> all_batches() const;

  // Epochs of the feed that are one pass of the user's: of an outermost repeat. kEndless.
  uint64_t rounds() const { return rounds_; }
  std::optional<uint32_t> queue() const { return queue_; }  // of an outermost prefetch(n)
  const std::vector<std::string>& titles() const { return titles_; }
  // Built stages by the places of their titles, and what is counted as no other stage's: stacking a
  // batch, or handing out elements; packing a stream's.
  const StageNumbers& stages() const { return stages_; }
  uint32_t last_stage() const { return last_stage_; }
  uint32_t stream_stage() const { return stream_stage_; }
  // Whether an on_error in the chain has a word on what fails: not only the option of build.
  bool policies() const { return policies_; }
  // For workers in other processes, which build the same plan, whatever became of the files since:
  // see Given. Error kOutOfMemory, kSystem.
  os::Fd files_for_workers() const { return write_found_files(found_); }
  const std::vector<std::shared_ptr<SharedStore>>& caches() const { return caches_; }

 private:
  void find_shard(const Node& outermost, const Builder& builder);
  void find_split(const Builder& builder);
  void find_copied();

  const IndexedRef& top() const { return stream() == nullptr ? built_.indexed : built_.tail; }

  Built built_;
  IndexedRef chain_;
  std::shared_ptr<const Collated> root_;
  std::vector<std::shared_ptr<const IndexMapped>> above_;  // the root, from the top down
  uint32_t per_ticket_ = 1;
  uint32_t parts_ = 0;
  uint64_t rounds_ = 1;
  std::optional<uint32_t> queue_;
  uint32_t world_ = 1;
  bool shard_moves_ = false;
  uint64_t below_ = 1;  // elements below the shard that a batch takes
  IndexedRef dealt_;    // whose elements the ranks share; nullptr: a stream's
  bool policies_ = false;
  bool apart_ = false;
  bool listed_ = false;
  Copied copied_;
  std::vector<std::string> titles_;
  StageNumbers stages_;
  uint32_t last_stage_ = 0, stream_stage_ = 0;
  std::vector<std::shared_ptr<SharedStore>> caches_;
  std::vector<FoundFilesRef> found_;
  std::vector<std::shared_ptr<const Plan>> maps_;
};

}  // namespace penstock
