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

// Opens a plan for an element. The element's tensors are views that are good until it returns. It
// is called by one thread at a time, again for the same element after a restore, and must give the
// same plan then. An exception is the element's failure.
using Opening = std::function<Node::Ref(const Example& element)>;

// The same in any language. Immutable: any thread.
class Opener {
 public:
  struct Opened {
    Node::Ref plan = nullptr;
    std::optional<Failure> failure = std::nullopt;  // instead of a plan
  };
  virtual ~Opener() = default;
  virtual bool python() const { return false; }
  // Of row `row` of `in`, whose address is the only one in `keys`.
  virtual Opened open(const Keys& keys, const Chunk& in, uint32_t row, Context& context) const = 0;
};

// The function of a scan in any language. Immutable: any thread.
class Scanner {
 public:
  // At work for one reader. One thread.
  class Run {
   public:
    virtual ~Run() = default;
    // Makes row 0 of `next`, the next carry, and row `row` of `out`, of row 0 of `carry` and row
    // `from` of `in`. Failures are out.fail(row).
    virtual void step(const Keys& keys, const Chunk& carry, const Chunk& in, uint32_t from,
                      Chunk& next, Chunk& out, uint32_t row) = 0;
  };
  virtual ~Scanner() = default;
  virtual bool python() const { return false; }
  virtual std::unique_ptr<Run> bind(const std::string& stage, Context& context) const = 0;
};

// The stage of a zip, for others that put elements side by side.
IndexedRef zipped(std::vector<IndexedRef> inputs, std::vector<std::string> names);

// One function for each transformation. Errors are kInvalidArgument, for arguments that cannot be;
// what only building finds out is said behind "Building".
namespace nodes {

// ---- one element of one

// Every element through an operation.
Node::Ref map(Node::Ref input, OpRef op);
// (number, element): the position in the epoch, counted from `start`, as int64 leaf "0"; the
// element's leaves are called "1/...", or "1" where it is one value. An element that no int64 can
// number fails; building refuses an input that is known to have some.
Node::Ref enumerate(Node::Ref input, int64_t start = 0);
// tf.data's scan: an epoch begins with the carry `initial`. `name`: of the function, in titles. A
// stream; state {"carry": HeldRow's, "input"}. Error: `initial` can be no element.
Node::Ref scan(Node::Ref input, std::string name, const Example& initial, Scanning function);
Node::Ref scan(Node::Ref input, std::string name, HeldRow initial,
               std::shared_ptr<const Scanner> scanner);

// ---- some of the elements

// The elements for which a predicate holds, in their order. `predicate` makes one boolean or number
// of an element, as any operation of map; 0 is false. A stream.
Node::Ref filter(Node::Ref input, OpRef predicate);
// The elements in front of the first one for which a predicate, as of filter, does not hold. A
// stream; state {"over", "input"}.
Node::Ref take_while(Node::Ref input, OpRef predicate);
// The first n elements of each epoch, or all if there are fewer. Of a stream those that failed are
// handed on and not counted; state {"taken", "input"}.
Node::Ref take(Node::Ref input, uint64_t n);
// Each epoch without its first n elements. Of a stream those among them that failed are handed on,
// and not counted; state {"skipped", "input"}.
Node::Ref skip(Node::Ref input, uint64_t n);
// Every world-th element, from the rank-th on: element p is base + p * world + rank of the input,
// where base (At::base) is how many elements all ranks together used before this epoch was entered.
// Of a stream only Remainder::kKeep can be built, and a state, {"rank", "world", "input"}, is its
// rank's own. Neither rank nor world is in the title: an indexed state restores at any other.
// Errors: world is 0, or rank not below it.
Node::Ref shard(Node::Ref input, uint32_t rank, uint32_t world,
                Remainder remainder = Remainder::kKeep);
// Each element, or each key, the first time only in an epoch. `key`: makes the key of an element;
// null: the element itself. Two are equal if their lengths and bytes are. A stream; it keeps 128
// bits of each, so that two that differ are taken for equal about once in 10^38 pairs. State
// {"taken": elements}: loading one goes through the pass again.
Node::Ref unique(Node::Ref input, OpRef key = nullptr);
// Decides on elements that fail in the input, and that no other on_error there decided.
//
//   kRaise    the failure is raised at its place, whatever is said further up.
//   kSkip     the element is left out, and counted.
//   kReplace  another element of the same epoch takes its place, and that is counted: positions of
//             a permutation that differs from every order (Order::replacement) are tried, up to
//             `attempts` of them. If all fail, the failure is raised. Of a data set of samples
//             they are its indices, however it is shuffled.
//
// Building, Error kInvalidArgument: replacements for an input without end, or of more than 2^62
// elements, or for a stream.
Node::Ref on_error(Node::Ref input, OnError policy, uint64_t attempts = 64);

// ---- another order

// All elements of an epoch in an order that a Bijection keyed (seed, epoch) computes: a global
// shuffle of any length in O(1) memory. Not `reshuffle`: every epoch has the order of epoch 0.
// Building, Error kInvalidArgument: an input without end, or of more than 2^62 elements; a stream.
Node::Ref shuffle(Node::Ref input, uint64_t seed, bool reshuffle = true);
// An epoch in an order that reads its source almost in sequence: blocks of consecutive elements
// come in random order, and within each `window` of them all elements are mixed. The elements that
// are left over, too few for a block, are a short one, at a random place. O(1) memory and time.
// Error: block or window is 0. Building: as of shuffle.
Node::Ref shuffle_blocks(Node::Ref input, const ShuffleBlocksOptions& options);
// tf.data's shuffle: a buffer of elements, one of which is drawn, each equally likely, whenever one
// is wanted; its place is filled up from the input first. Draw d of an epoch has the address (seed,
// epoch, d). A buffer that is as long as the input shuffles it evenly. Elements that failed wait
// for no draw. Not `reshuffle`: every epoch has the draws of epoch 0.
//
// A stream. It copies `buffer` elements; state {"draws", "read", "held": HeldBack's}. Loading one
// repeats the draws on integers, some 50 ns each, and reads again what is in the buffer. Error:
// buffer is 0.
Node::Ref shuffle_buffer(Node::Ref input, uint64_t seed, uint64_t buffer, bool reshuffle = true);

// ---- one element of several

// n elements stacked, every leaf with one more axis in front. The last batch of an epoch is short,
// or left out. Strings and ragged features become ragged columns; other leaves whose shapes differ
// within a batch are an error that names two elements. Error: n is 0, or above 2^32 - 1.
Node::Ref batch(Node::Ref input, uint64_t n, bool drop_last);
// As batch, whatever the elements' lengths: a leaf of which some axis may differ from element to
// element becomes a ragged column.
Node::Ref ragged_batch(Node::Ref input, uint64_t n, bool drop_last);
// As batch, each element filled up at the end of every axis to the longest of its batch, or to a
// given length, with zeros or a given value. Strings become rows of uint8. `fields`: those that are
// not just filled up with zeros to the longest.
//
// Errors: also a field that comes twice, or whose name is not UTF-8. Building, or, where elements
// are only known as they are made, each batch: there is no such field, its axes are others, its
// dtype does not have the value. An element longer than the given length is an error of its batch.
Node::Ref padded_batch(Node::Ref input, uint64_t n, bool drop_last,
                       std::vector<Padding::Field> fields = {});
// Batches of another size: the rows of the input's elements, n at a time, as unbatch() and then
// batch(n). A stream.
Node::Ref rebatch(Node::Ref input, uint64_t n, bool drop_last);
// tf.data's bucket_by_sequence_length: padded batches of elements of about one length. An element
// whose length is below boundaries[0] waits in bucket 0, ..., one at or above the last boundary in
// the last bucket; a bucket that is full is a batch. What waits at the end comes in the order of
// the buckets, as short batches, or is left out.
//
// A stream, whose elements are the batches. It copies what waits; state {"waiting": the ordinals in
// each bucket, "held": HeldBack's}. Errors: boundaries that do not ascend, another number of batch
// sizes, one that is 0, a name that is not UTF-8. Building, or, where elements are only known as
// they are made, each element: there is no such field, or it has no length.
Node::Ref bucket_by_length(Node::Ref input, BucketByLengthOptions options);
// Windows over the elements, stacked as by batch: window p has elements p * shift + j * stride for
// j below size. Those at the end, for which there are fewer, are short, or left out. Over a stream
// windows are stacked in order, by whoever goes through it. Error: size or stride is 0, or one of
// the three above 2^32 - 1.
Node::Ref window(Node::Ref input, WindowOptions options);
// Every batch in parts, one for each of several devices: as equal as can be, the first ones longer
// by a row where it does not come out even, the last ones empty where there are fewer rows than
// parts. A matter of handing out: nothing is copied, and batches, places and states are those of
// the plan without it. Between it and what stacks, and behind it, only what says where a batch
// comes from may stand (take, repeat, prefetch; without a stream skip, shard and shuffle too): Plan
// finds it there. The number of parts is not in the title: a state restores with any other. Error:
// 0 parts, or more than 4096.
Node::Ref split_batch(Node::Ref input, uint32_t parts);

// ---- several elements of one

// The rows of each element as elements: all leaves are arrays of one first length, which may differ
// from element to element. A stream; state {"row", "input"}. Building, Error kInvalidArgument:
// numbers or strings, as far as elements are known; else, and where first lengths differ, the
// element fails.
Node::Ref unbatch(Node::Ref input);
// All elements of the plan that is opened from the first element, then all of the second's, ... A
// stream. `name`: of the function, in titles.
Node::Ref flat_map(Node::Ref input, std::string name, Opening open);
Node::Ref flat_map(Node::Ref input, std::string name, std::shared_ptr<const Opener> open);
// tf.data's interleave: `cycle` plans that were opened from the input's elements are open at a time
// and give `block` elements each in turn; one that ends makes room for the next. A stream; state:
// the input's, and of every open plan the state of the element that it was opened from, and its
// own. Errors: cycle or block is 0, or cycle above 65,536.
Node::Ref interleave(Node::Ref input, std::string name, Opening open, uint64_t cycle,
                     uint64_t block);
Node::Ref interleave(Node::Ref input, std::string name, std::shared_ptr<const Opener> open,
                     uint64_t cycle, uint64_t block);

// ---- several inputs. Building, Error kInvalidArgument: inputs whose elements differ in more than
// lengths, as far as they are known (not of zip).

// Element i is the i-th of every input side by side: a dict by the inputs' names, or without names
// a tuple. Leaves are called "name/leaf" ("0/leaf"), and just "name" where an input's element is
// one value. As long as the shortest input. State, if one of them is a stream: {"inputs": a state
// of each}; an element with a part that failed is one that failed. `names`: none, or one for each
// input. Errors: there are no inputs, or another number of names, or a name comes twice.
Node::Ref zip(std::vector<Node::Ref> inputs, std::vector<std::string> names = {});
// All elements of the first input, then all of the second, ... Leaves whose lengths differ between
// inputs are of differing length. State, if one of them is a stream: {"which", "input"}. Error:
// there are no inputs.
Node::Ref concatenate(std::vector<Node::Ref> inputs);
// `block` elements of each of `cycle` inputs in turn. The order is that of tf.data's interleave: an
// input is found to have ended when its turn comes and it has no more, which ends the turn; the
// next input that was not begun yet takes its place when the turn comes round again. Errors: no
// inputs or more than 65,536; cycle or block is 0. Building: an input without end, if all are
// indexed.
Node::Ref interleave(std::vector<Node::Ref> inputs, uint64_t cycle, uint64_t block);
// tf.data's sample_from_datasets: each element is the next one of an input that is drawn, as likely
// as its weight says among those that have elements left. Draw d of an epoch has the address (seed,
// epoch, d). A stream; state {"draws", "inputs"}. `weights`: none, and then all are equal, or one
// for each input. Not `stop_on_empty`: an input that ended is left out, until all have. Errors:
// there are no inputs, another number of weights, one that is negative or not finite, or none above
// 0.
Node::Ref sample_from(std::vector<Node::Ref> inputs, std::vector<double> weights, uint64_t seed,
                      bool stop_on_empty = false);
// tf.data's choose_from_datasets: each element is the next one of the input that the choices'
// element, one int64, numbers. `stop_on_empty`: it is over when an input is chosen that ended; else
// that choice is passed over. A stream; state {"choices", "inputs"}. Error: there are no inputs.
// Building: choices that are no int64. A number that no input has is an element that failed.
Node::Ref choose_from(Node::Ref choices, std::vector<Node::Ref> inputs, bool stop_on_empty = true);

// ---- the pass

// The input's epochs, one after the other: round r of epoch e is epoch e * count + r there, so that
// each is shuffled anew. An endless one of a stream ends with a round that has no elements; state
// {"round", "input"}. `count`: kEndless: for ever. Error: count is 0.
Node::Ref repeat(Node::Ref input, uint64_t count);
// Every element is kept when it is first made, and from then on comes from memory: for all threads
// and processes that run what was built, and as long as that is there. What is below is made as in
// epoch 0, so that an element does not depend on when it was first asked for; what fails is not
// kept. What finds no room in `max_bytes` is made again each time. 0: a quarter of the memory that
// may be used. Error: below CacheStore::kMinBytes.
//
// Of a stream, elements are kept in their order as it is first gone through; later passes go
// through it only for what was not kept. Its state is {"index"}: where what is in front of it is
// not kept, a restore goes through that again.
Node::Ref cache(Node::Ref input, uint64_t max_bytes);
// The same in a file, which appears when every element is there: whoever builds the same chain with
// the same seed then takes them from it and makes none. nodes::snapshot reads it, too. Error: an
// empty path. Building: errors of SnapshotStore.
Node::Ref cache(Node::Ref input, std::string path);
// There are just that many elements in an epoch, or, with kEndless, no end of them. Building, Error
// kDataLoss: there are more or fewer; says how many. Of a stream that is found out at its end, and
// raised there.
Node::Ref assert_cardinality(Node::Ref input, uint64_t count);
// How many batches may be made and not yet taken. At the end of a chain, with nothing but repeat
// around it, it is the feed's queue; elsewhere it does nothing, since all that a ticket needs is
// made ahead anyway. Nothing: as many as the feed finds useful. Error: 0, or more than 65536.
Node::Ref prefetch(Node::Ref input, std::optional<uint32_t> batches);

}  // namespace nodes
}  // namespace penstock
