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
// The root is the uppermost stage that stacks elements and has only index arithmetic above it. A
// ticket is one batch of the root, and its rows are elements of the root's input. If there is no
// root (nothing is batched, or a function is mapped over batches), a ticket is up to
// rows_per_ticket() elements, which are delivered one by one.
class Plan {
 public:
  // For a worker's process: files and stores of the consumer's plan of the same nodes.
  struct Given {
    os::Fd files;  // files_for_workers()
    // Those of caches(), in order. nullopt: the process has its own, because it is on another host.
    std::optional<std::vector<os::Fd>> stores;
  };
  // Errors of the nodes: kInvalidArgument in the user's terms, kNotFound, kDataLoss, ... kClosed:
  // `progress` stopped a pass over files. `skip`: the loader skips failed elements; a worker's plan
  // must be built with the same value.
  explicit Plan(const Node& node, bool skip = false, Progress* progress = nullptr,
                std::optional<Given> given = {});
  // The plan of a parallel map: each ticket is one element of `built`. `stages`: those of the whole
  // plan.
  Plan(const Built& built, const StageNumbers& stages);

  // The number of tickets of an epoch that is entered at `base`, a number of batches (elements) of
  // all ranks.
  uint64_t steps(uint64_t base) const;
  uint32_t rows(uint64_t epoch, uint64_t base, uint64_t step) const;  // of that ticket
  uint32_t max_rows() const;                                          // maximum of any ticket
  // The positions in chain() of rows [first, first + out.size()) of a ticket. Returns the epoch
  // there.
  At locate(uint64_t epoch, uint64_t base, uint64_t step, uint64_t first,
            std::span<uint64_t> out) const;

  // The number that errors name a row by: the index in a data set of samples, or the position in
  // chain().
  uint64_t index_of(uint64_t epoch, uint64_t base, uint64_t step, uint64_t row) const;

  // The stage whose elements are the rows.
  const Indexed& chain() const { return *chain_; }
  bool batched() const { return root_ != nullptr; }
  // Rows are written to their places as they are made. If false, they are collected first, because
  // their schema or places are only known after all rows are made.
  bool bound() const;
  const Collated* root() const { return root_.get(); }
  bool listed() const { return listed_; }  // see Node::listed
  // For a batched plan whose elements only have to be copied: arrays in memory, with only index
  // arithmetic between them and the root.
  struct Copied {
    const MemoryRows* rows = nullptr;       // nullptr: more than copying is needed
    std::vector<const IndexMapped*> above;  // from the top down
    std::vector<uint32_t> stages;           // the numbers of those stages and of the arrays
  };
  const Copied& copied() const { return copied_; }
  // Parts per batch (split_batch); 0: batches are not split.
  uint32_t parts() const { return parts_; }
  uint32_t rows_per_ticket() const { return per_ticket_; }  // for a plan without a root
  uint64_t length(uint64_t base) const;                     // batches or elements

  // The stream that the stream reader reads; chain() is then its tail, whose positions are the
  // stream's ordinals. nullptr: the plan has no stream.
  const Streamed* stream() const { return built_.stream.get(); }
  uint64_t per_output() const { return built_.per_output; }  // elements of the stream
  uint64_t stream_rows() const;                              // elements of the stream per ticket
  bool drop_partial() const { return built_.drop_partial; }
  // Batches (elements) of an epoch, if known.
  std::optional<uint64_t> known_length() const;
  // The plan differs from that for a feed that raises errors, because the feed skips failed
  // elements. States of the two are not compatible.
  bool skip_changes_stream() const { return skip_changes_stream_; }
  // python(): workers call Python, including those for parallel maps. stream_python(): the stream
  // reader calls Python.
  bool python() const;
  bool stream_python() const { return stream() != nullptr && stream()->python(); }

  // The result of building the nodes.
  const Built& built() const { return built_; }
  // The costly stages in front of streams' stages, from the source upward. Each is a plan of its
  // own, served by the same workers (see ParallelMaps).
  const std::vector<std::shared_ptr<const Plan>>& parallel_maps() const { return maps_; }

  // The number of ranks of the plan's shard; 1: there is no shard. If shard_moves(), an epoch can
  // be entered at `base` with another world size: all ranks together have used the shard's input
  // for the first `base` batches. This needs a plan with only element-wise stages and batch above
  // the shard. Otherwise a state is only valid for its own world size.
  uint32_t world() const { return world_; }
  bool shard_moves() const { return shard_moves_; }
  // The elements of an epoch of all ranks: elements below the shard, or length(0). States use this
  // to tell sources apart.
  uint64_t all() const { return dealt_ == nullptr ? 0 : dealt_->length(0); }

  // The same in batches (elements); nothing: endless, or only known for one rank.
  std::optional<uint64_t> all_batches() const;

  // Epochs of the feed per pass of the user (an outermost repeat), or kEndless.
  uint64_t rounds() const { return rounds_; }
  std::optional<uint32_t> queue() const { return queue_; }  // of an outermost prefetch(n)
  const std::vector<std::string>& titles() const { return titles_; }
  // The numbers of the built stages. last_stage() is counted for work outside of stages: stacking a
  // batch, or handing out elements; stream_stage() for packing stream chunks.
  const StageNumbers& stages() const { return stages_; }
  uint32_t last_stage() const { return last_stage_; }
  uint32_t stream_stage() const { return stream_stage_; }
  // Whether there is an on_error in the chain, apart from the option of build.
  bool policies() const { return policies_; }
  // For workers in other processes, which build the same plan even if files have changed: see
  // Given. Error kOutOfMemory, kSystem.
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
  // Stages above the root, from the top down.
  std::vector<std::shared_ptr<const IndexMapped>> above_;
  uint32_t per_ticket_ = 1;
  uint32_t parts_ = 0;
  uint64_t rounds_ = 1;
  std::optional<uint32_t> queue_;
  uint32_t world_ = 1;
  bool shard_moves_ = false;
  uint64_t below_ = 1;  // elements below the shard per batch
  IndexedRef dealt_;    // the stage whose elements the ranks share; nullptr: elements of a stream
  bool policies_ = false;
  bool skip_changes_stream_ = false;
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
