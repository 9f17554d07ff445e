#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/plan/dataset_options.h"
#include "penstock/pipeline/plan/node.h"
#include "penstock/pipeline/stages/context.h"
#include "penstock/pipeline/stages/op.h"

namespace penstock {

class HeldRow;
enum class OnError;

// Opens a plan for an element. The element's tensors are views that are valid during the call. One
// thread at a time calls the function. After a restore the function is called again for the same
// element, and must then return the same plan. If it throws, the element fails.
using Opening = std::function<Node::Ref(const Example& element)>;

// The same for a function in any language. Immutable: any thread.
class Opener {
 public:
  struct Opened {
    Node::Ref plan = nullptr;
    std::optional<Failure> failure = std::nullopt;  // instead of a plan
  };
  virtual ~Opener() = default;
  virtual bool python() const { return false; }
  // Opens a plan for row `row` of `in`, whose address is the only one in `keys`.
  virtual Opened open(const Keys& keys, const Chunk& in, uint32_t row, Context& context) const = 0;
};

// The function of a scan, in any language. Immutable: any thread.
class Scanner {
 public:
  // The scanner's state for one reader. One thread.
  class Run {
   public:
    virtual ~Run() = default;
    // Computes row 0 of `next` (the next carry) and row `row` of `out` from row 0 of `carry` and
    // row `from` of `in`. A failure is set with out.fail(row).
    virtual void step(const Keys& keys, const Chunk& carry, const Chunk& in, uint32_t from,
                      Chunk& next, Chunk& out, uint32_t row) = 0;
  };
  virtual ~Scanner() = default;
  virtual bool python() const { return false; }
  virtual std::unique_ptr<Run> bind(const std::string& stage, Context& context) const = 0;
};

// The stage of zip(), also for stages that combine elements in the same way.
IndexedRef zipped(std::vector<IndexedRef> inputs, std::vector<std::string> names);

// One function per transformation. Invalid arguments throw Error kInvalidArgument; "Building:"
// marks errors that only building the plan can find. "A stream" says that the result has no random
// access.
namespace nodes {

// ---- one element from one

// Applies an operation to every element.
Node::Ref map(Node::Ref input, OpRef op);
// (number, element): the position in the epoch, counted from `start`, as int64 leaf "0". The
// element's leaves are named "1/...", or "1" if the element is one value. An element fails if its
// number overflows int64. Building refuses an input that is known to have such elements.
Node::Ref enumerate(Node::Ref input, int64_t start = 0);
// As tf.data's scan: an epoch begins with the carry `initial`. `name`: the function's, in titles. A
// stream; state {"carry": HeldRow's, "input"}. Error: `initial` is not a valid element.
Node::Ref scan(Node::Ref input, std::string name, const Example& initial, Scanning function);
Node::Ref scan(Node::Ref input, std::string name, HeldRow initial,
               std::shared_ptr<const Scanner> scanner);

// ---- some of the elements

// The elements for which a predicate holds, in order. `predicate`: an operation that returns one
// boolean or number per element, where 0 is false. A stream.
Node::Ref filter(Node::Ref input, OpRef predicate);
// The elements before the first one for which a predicate (as of filter) does not hold. A stream;
// state {"over", "input"}.
Node::Ref take_while(Node::Ref input, OpRef predicate);
// The first n elements of each epoch, or all if there are fewer. In a stream, failed elements pass
// through and do not count; state {"taken", "input"}.
Node::Ref take(Node::Ref input, uint64_t n);
// Each epoch without its first n elements. In a stream, failed elements among these pass through
// and do not count; state {"skipped", "input"}.
Node::Ref skip(Node::Ref input, uint64_t n);
// Every world-th element, starting at `rank`: element p is element base + p * world + rank of the
// input, where base (At::base) is the number of elements that all ranks used before this epoch was
// entered. A stream supports only Remainder::kKeep, and its state, {"rank", "world", "input"},
// restores only at the same rank. Neither rank nor world is in the title, so an indexed state
// restores at any rank and world. Errors: world is 0, or rank is not below it.
Node::Ref shard(Node::Ref input, uint32_t rank, uint32_t world,
                Remainder remainder = Remainder::kKeep);
// The first occurrence in an epoch of each element, or of each key. `key`: computes an element's
// key; null: the element itself. Two keys are equal if their lengths and bytes are. A stream, which
// keeps a 128-bit hash per key, so that two different keys collide in about one of 10^38 pairs.
// State {"taken": elements}: loading a state runs the pass again up to there.
Node::Ref unique(Node::Ref input, OpRef key = nullptr);
// Sets the policy for elements that fail in the input, unless an on_error there already decided.
//
//   kRaise    raises the failure at its place, whatever later policies say.
//   kSkip     leaves the element out, and counts it.
//   kReplace  puts another element of the same epoch in its place, and counts it. Candidates
//             are positions of a permutation that differs from every order
//             (Order::replacement), up to `attempts` of them. If all fail, the failure is
//             raised. For a data set of samples candidates are sample indices, before any
//             shuffle.
//
// Building, Error kInvalidArgument: kReplace for an endless input, an input of more than 2^62
// elements, or a stream.
Node::Ref on_error(Node::Ref input, OnError policy, uint64_t attempts = 64);

// ---- another order

// A global shuffle of any length in O(1) memory: a Bijection keyed (seed, epoch) computes the order
// of each epoch. Not `reshuffle`: every epoch has the order of epoch 0. Building, Error
// kInvalidArgument: an endless input, an input of more than 2^62 elements, or a stream.
Node::Ref shuffle(Node::Ref input, uint64_t seed, bool reshuffle = true);
// A shuffle that reads its source almost in sequence: blocks of consecutive elements come in random
// order, and the elements of each `window` of blocks are mixed. Remaining elements that do not fill
// a block form a short block at a random place. O(1) memory and time. Error: block or window is 0.
// Building: as of shuffle.
Node::Ref shuffle_blocks(Node::Ref input, const ShuffleBlocksOptions& options);
// As tf.data's shuffle: each element is drawn from a buffer, uniformly, after the buffer was filled
// up from the input. Draw d of an epoch has the address (seed, epoch, d). A buffer as long as the
// input gives a uniform shuffle. Failed elements are not buffered. Not `reshuffle`: every epoch
// has the draws of epoch 0.
//
// A stream, which copies `buffer` elements; state {"draws", "read", "held": HeldBack's}. Loading a
// state repeats the draws on integers (about 50 ns each) and reads the buffer's elements again.
// Error: buffer is 0.
Node::Ref shuffle_buffer(Node::Ref input, uint64_t seed, uint64_t buffer, bool reshuffle = true);

// ---- one element from several

// Stacks n elements: every leaf gets a new first axis. The last batch of an epoch is short, or is
// dropped. Strings and ragged features become ragged columns. Other leaves must have one shape
// within a batch; if not, the error names two elements. Error: n is 0, or above 2^32 - 1.
Node::Ref batch(Node::Ref input, uint64_t n, bool drop_last);
// As batch, for elements of any lengths: a leaf that has an axis of variable length becomes a
// ragged column.
Node::Ref ragged_batch(Node::Ref input, uint64_t n, bool drop_last);
// As batch, with each element padded at the end of every axis to the longest of its batch, or to a
// given length, with zeros or a given value. Strings become rows of uint8. `fields`: the fields
// that need other padding than zeros up to the longest.
//
// Errors: also a field that comes twice, or whose name is not UTF-8. Building (or each batch, if
// the spec is inferred): no such field, a different number of axes, or a value that the dtype
// cannot represent. An element longer than the given length is an error of its batch.
Node::Ref padded_batch(Node::Ref input, uint64_t n, bool drop_last,
                       std::vector<Padding::Field> fields = {});
// Batches of another size: n rows of the input's batches at a time, as unbatch() and then batch(n).
// A stream.
Node::Ref rebatch(Node::Ref input, uint64_t n, bool drop_last);
// As tf.data's bucket_by_sequence_length: padded batches of elements of similar length. An element
// shorter than boundaries[0] goes into bucket 0, and so on; an element at or above the last
// boundary goes into the last bucket. A full bucket becomes a batch. At the end of an epoch the
// remaining elements become short batches, in the order of the buckets, or are dropped.
//
// A stream of batches, which copies the waiting elements; state {"waiting": the ordinals in each
// bucket, "held": HeldBack's}. Errors: boundaries that do not ascend; a wrong number of batch
// sizes; a batch size of 0; a name that is not UTF-8. Building (or each element, if the spec is
// inferred): no such field, or a field without a length.
Node::Ref bucket_by_length(Node::Ref input, BucketByLengthOptions options);
// Windows over the elements, stacked as by batch: window p has elements p * shift + j * stride for
// j below size. Windows at the end with fewer elements are short, or are dropped. Over a stream,
// one reader stacks the windows in order. Error: size or stride is 0, or one of the three is above
// 2^32 - 1.
Node::Ref window(Node::Ref input, WindowOptions options);
// Splits every batch into parts, one per device: as equal as possible, the first ones one row
// longer where the rows do not divide evenly, the last ones empty where there are fewer rows than
// parts. Parts are views: nothing is copied, and batches, places and states are those of the plan
// without the split. After the stacking stage and after the split, only stages that choose batches
// may follow (take, repeat, prefetch; without a stream also skip, shard and shuffle), so that Plan
// finds the split. The number of parts is not in the title: a state restores with any other. Error:
// 0 parts, or more than 4096.
Node::Ref split_batch(Node::Ref input, uint32_t parts);

// ---- several elements from one

// The rows of each element as elements: all leaves are arrays with the same first length, which may
// differ from element to element. A stream; state {"row", "input"}. Building, Error
// kInvalidArgument: the elements are known to have numbers or strings. If that is only found later,
// or the first lengths of an element differ, the element fails.
Node::Ref unbatch(Node::Ref input);
// All elements of the plan opened from the first element, then all of the second's, and so on. A
// stream. `name`: the function's, in titles.
Node::Ref flat_map(Node::Ref input, std::string name, Opening open);
Node::Ref flat_map(Node::Ref input, std::string name, std::shared_ptr<const Opener> open);
// As tf.data's interleave: `cycle` plans, opened from the input's elements, are open at a time and
// give `block` elements each in turn. The next plan takes the place of one that ends. A stream; its
// state has the input's state and, for every open plan, its own state and that of the element it
// was opened from. Errors: cycle or block is 0, or cycle is above 65,536.
Node::Ref interleave(Node::Ref input, std::string name, Opening open, uint64_t cycle,
                     uint64_t block);
Node::Ref interleave(Node::Ref input, std::string name, std::shared_ptr<const Opener> open,
                     uint64_t cycle, uint64_t block);

// ---- several inputs. Building, Error kInvalidArgument: inputs whose known elements differ in more
// than lengths (does not apply to zip).

// Element i combines the i-th elements of all inputs: a dict by the inputs' names, or a tuple
// without names. Leaves are named "name/leaf" ("0/leaf"), or just "name" if an input's element is
// one value. As long as the shortest input. State, if an input is a stream: {"inputs": a state of
// each}. An element fails if one of its parts failed. `names`: none, or one per input. Errors: no
// inputs, a wrong number of names, or a name that comes twice.
Node::Ref zip(std::vector<Node::Ref> inputs, std::vector<std::string> names = {});
// All elements of the first input, then all of the second, and so on. A leaf whose lengths differ
// between inputs has variable length. State, if an input is a stream: {"which", "input"}. Error: no
// inputs.
Node::Ref concatenate(std::vector<Node::Ref> inputs);
// `block` elements of each of `cycle` inputs in turn. The order is that of tf.data's interleave: an
// input's end is found when it has its turn and no more elements; this ends the turn, and the next
// unopened input takes the place when the turn comes round again. Errors: no inputs, or more than
// 65,536; cycle or block is 0. Building: an endless input, if all inputs are indexed.
Node::Ref interleave(std::vector<Node::Ref> inputs, uint64_t cycle, uint64_t block);
// As tf.data's sample_from_datasets: each element is the next one of a randomly drawn input.
// Weights apply among the inputs that have elements left. Draw d of an epoch has the address (seed,
// epoch, d). A stream; state {"draws", "inputs"}. `weights`: one per input; none: all equal. Not
// `stop_on_empty`: inputs that ended are left out, until all have ended. Errors: no inputs; a wrong
// number of weights; a negative or non-finite weight; no weight above 0.
Node::Ref sample_from(std::vector<Node::Ref> inputs, std::vector<double> weights, uint64_t seed,
                      bool stop_on_empty = false);
// As tf.data's choose_from_datasets: each element is the next one of the input whose number is the
// next element of `choices`, one int64. `stop_on_empty`: choosing an input that ended ends the
// stream; else that choice is ignored. A stream; state {"choices", "inputs"}. Error: no inputs.
// Building: choices that are not int64. A choice that is not the number of an input fails.
Node::Ref choose_from(Node::Ref choices, std::vector<Node::Ref> inputs, bool stop_on_empty = true);

// ---- epochs

// The input's epochs, one after the other: round r of epoch e is the input's epoch e * count + r,
// so that each round has its own shuffle. An endless repeat of a stream ends with the first round
// without elements; state {"round", "input"}. `count`: kEndless: without end. Error: count is 0.
Node::Ref repeat(Node::Ref input, uint64_t count);
// Keeps every element in memory when it is first made, for all threads and processes of the built
// plan; the cache lives as long as the plan. The input runs as in epoch 0, so that an element does
// not depend on when it is first requested. Failed elements are not kept. Elements that do not fit
// into `max_bytes` are made again each time. `max_bytes` 0: a quarter of the usable memory. Error:
// max_bytes is below CacheStore::kMinBytes.
//
// In a stream, the first pass keeps elements in order, and later passes read the input only for
// elements that were not kept. State {"index"}: if elements before the index were not kept, a
// restore reads the input again from its front.
Node::Ref cache(Node::Ref input, uint64_t max_bytes);
// The same in a file, which appears once every element is in it. A build of the same chain with the
// same seed then reads the elements from the file and makes none. nodes::snapshot also reads the
// file. Error: an empty path. Building: errors of SnapshotStore.
Node::Ref cache(Node::Ref input, std::string path);
// Asserts the number of elements per epoch; kEndless: no end. Building, Error kDataLoss, which
// names both numbers: there are more or fewer. In a stream, the error is raised at the end of the
// epoch.
Node::Ref assert_cardinality(Node::Ref input, uint64_t count);
// The number of batches that may be made ahead of the consumer. At the end of a chain, with at most
// repeat after it, this is the feed's queue size. Elsewhere it has no effect, since everything that
// a ticket needs is made ahead anyway. nullopt: the feed chooses. Error: 0, or more than 65536.
Node::Ref prefetch(Node::Ref input, std::optional<uint32_t> batches);

}  // namespace nodes
}  // namespace penstock
