#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/io/glob.h"
#include "penstock/pipeline/dataset_options.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/element/padding.h"
#include "penstock/pipeline/loader.h"
#include "penstock/pipeline/node.h"
#include "penstock/pipeline/stages/function_op.h"
#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/transformations/image_operations.h"
#include "penstock/pipeline/transformations/operations.h"

namespace penstock {

// What map, filter and take_while call for each element, from several threads at once.
template <class F>
concept ElementFunction = std::invocable<const F&, const Example&, SampleContext&>;

// A pipeline: a source and a chain of transformations, as docs/design/pipeline.md describes them.
// Nothing is read and nothing is checked beyond its arguments before it is built; what was built is
// fed by a Loader.
//
//   auto feed = penstock::Dataset::range(0, 1000).shuffle({.seed = 7}).batch(32).build();
//   while (auto batch = feed.next()) ...
//
// A value: cheap to copy, immutable, any thread. Every method gives a new Dataset; their errors are
// kInvalidArgument for arguments that cannot be.
class Dataset {
 public:
  explicit Dataset(Node::Ref node) : node_(given(std::move(node), "Dataset", "node")) {}

  // ---- sources

  // begin, begin + step, ... short of end: int64 numbers under the name "".
  static Dataset range(int64_t begin, int64_t end, int64_t step = 1);
  static Dataset range(int64_t end) { return range(0, end); }
  // The records of TFRecord files (a path, a pattern, or a list of them): bytes, under the name "".
  static Dataset tfrecord(const Paths& paths, const TFRecordOptions& options = {});
  // The lines of text files, without their ends: text, under the name "".
  static Dataset lines(const Paths& paths, const LineOptions& options = {});
  // The records of CSV files: a leaf for each of options.columns, under its name; see nodes::csv.
  static Dataset csv(const Paths& paths, const CsvOptions& options);
  // Records of one length: uint8 of shape {options.record_bytes}, under the name "".
  static Dataset fixed_records(const Paths& paths, const FixedRecordOptions& options);
  // The rows of IDX files, as MNIST's: arrays under the name ""; with options.labels {image,
  // label}. See nodes::idx.
  static Dataset idx(const Paths& paths, const IdxOptions& options = {});
  // The records of CIFAR's binary files: {image, label}, and of CIFAR-100 coarse_label; see
  // nodes::cifar10.
  static Dataset cifar10(const Paths& paths, const CifarOptions& options = {});
  static Dataset cifar100(const Paths& paths, const CifarOptions& options = {});

  // Whole files: {bytes, path}, with labels {bytes, path, label}; see nodes::files.
  static Dataset files(const Paths& paths, std::optional<std::vector<int64_t>> labels = {});
  // The images in a folder's folders: {image, label, path}; see nodes::image_folder.
  static Dataset image_folder(const std::string& root, const ImageFolderOptions& options = {});

  // The elements of a file that cache(path) made; see nodes::snapshot.
  static Dataset snapshot(const std::string& path);
  // Equally long arrays, whose rows are the elements; neither copied nor written to.
  static Dataset arrays(Example columns);
  // What a function gives, one after the other: begin(epoch) gives a Pull, whose calls give an
  // element each, or nothing at the end; see nodes::generator. A stream.
  static Dataset generator(std::function<Pull(uint64_t epoch)> begin,
                           std::string name = "function");
  // Elements that are there already.
  static Dataset items(std::vector<Example> elements);
  // Elements of all inputs side by side, as long as the shortest; leaves are "name/leaf". Without
  // names "0", "1", ...
  static Dataset zip(std::vector<Dataset> inputs, std::vector<std::string> names = {});
  // `block` elements of each of `cycle` inputs in turn.
  static Dataset interleave(std::vector<Dataset> inputs, uint64_t cycle, uint64_t block = 1);
  // One after the other.
  static Dataset concatenate(std::vector<Dataset> inputs);
  // The next element of one of them, drawn by weights, or told by `choices`, an int64 each (with
  // `stop_on_empty` it is over when one is chosen that is). Streams.
  static Dataset sample_from(std::vector<Dataset> inputs, const SampleOptions& options = {});
  static Dataset choose_from(const Dataset& choices, std::vector<Dataset> inputs,
                             bool stop_on_empty = true);

  // ---- transformations

  // An operation: parse_example(...), normalize(...), one of your own.
  Dataset map(OpRef op) const;
  // A function Example(const Example& element, SampleContext& context), called from several threads
  // at once; see FunctionOp. `name`: in titles, states and errors.
  template <ElementFunction F>
  Dataset map(F function, std::string name = "function") const {
    return map(std::make_shared<FunctionOp>(std::move(name), std::move(function)));
  }
  // A quick function of one field's values, void(std::span<const In>, std::span<Out>), that writes
  // where they are wanted; see FieldFunctionOp. `shape`: of the result; nothing: the same.
  template <class In, class Out = In, class F>
  Dataset map_field(std::string field, std::optional<Shape> shape, F function,
                    std::string name = "function") const {
    return map(std::make_shared<FieldFunctionOp<In, Out>>(std::move(name), std::move(field),
                                                          std::move(shape), std::move(function)));
  }
  // The elements for which a predicate holds: an operation, or a function bool(const Example&,
  // SampleContext&). What follows is a stream, of which only running it tells what comes next.
  Dataset filter(OpRef predicate) const;
  template <ElementFunction F>
  Dataset filter(F predicate, std::string name = "function") const {
    return filter(predicate_op(std::move(predicate), std::move(name)));
  }
  // Those in front of the first one for which a predicate, as of filter, does not hold. A stream.
  Dataset take_while(OpRef predicate) const;
  template <ElementFunction F>
  Dataset take_while(F predicate, std::string name = "function") const {
    return take_while(predicate_op(std::move(predicate), std::move(name)));
  }
  // All elements in an order of its own for each epoch, exactly, in no memory. With a buffer: each
  // time one of so many elements, as tf.data's shuffle; a stream.
  Dataset shuffle(const ShuffleOptions& options) const;
  // Blocks of neighbours in random order, mixed within windows of some blocks: nearly sequential.
  Dataset shuffle_blocks(const ShuffleBlocksOptions& options) const;
  Dataset take(uint64_t n) const;
  Dataset skip(uint64_t n) const;  // O(1)
  // Every world-th element, from the rank-th on.
  Dataset shard(uint32_t rank, uint32_t world, Remainder remainder = Remainder::kKeep) const;
  // ("0", the element's number from `start` on; "1", the element).
  Dataset enumerate(int64_t start = 0) const;
  Dataset concatenate(const Dataset& next) const { return concatenate({*this, next}); }
  Dataset batch(uint64_t n, const BatchOptions& options = {}) const;
  // Padded batches of elements of about one length; see nodes::bucket_by_length. A stream.
  Dataset bucket_by_length(BucketByLengthOptions options) const;
  // Each element the first time only that it comes in an epoch, or that its key does: what an
  // operation, or a function Example(const Example&, SampleContext&), makes of it. A stream.
  Dataset unique(OpRef key = nullptr) const;
  template <ElementFunction F>
  Dataset unique(F key, std::string name = "function") const {
    return unique(std::make_shared<FunctionOp>(std::move(name), std::move(key)));
  }
  // An element of a carry, which an epoch begins with, and an element; see Scanning. A stream.
  Dataset scan(const Example& initial, Scanning function, std::string name = "function") const;
  // The elements of the plans that open(element) gives, one plan after the other, or some at a time
  // in turns; see Opening. Streams.
  Dataset flat_map(std::function<Dataset(const Example& element)> open,
                   std::string name = "function") const;
  Dataset interleave(std::function<Dataset(const Example& element)> open,
                     const InterleaveOptions& options = {}, std::string name = "function") const;
  // The rows of each element, all of whose leaves are equally long arrays, as elements. A stream.
  Dataset unbatch() const;
  // Batches of another size. A stream.
  Dataset rebatch(uint64_t n, const BatchOptions& options = {}) const;
  // n elements filled up to the longest, or to lengths that are given; see nodes::padded_batch.
  Dataset padded_batch(uint64_t n, std::vector<Padding::Field> fields = {},
                       const BatchOptions& options = {}) const;
  // n elements whatever their lengths: what differs becomes ragged.
  Dataset ragged_batch(uint64_t n, const BatchOptions& options = {}) const;
  // Every element kept in memory when it is first made; 0: in a quarter of what may be used. See
  // nodes::cache.
  Dataset cache(uint64_t max_bytes = 0) const;
  // The same in a file, which appears when all are there, and from which they come then.
  Dataset cache(const std::string& path) const;
  // Every batch cut for `parts` devices, without a copy: leaf `x` of part 1 is "1/x". Behind a
  // batch only; see nodes::split_batch.
  Dataset split_batch(uint32_t parts) const;
  // Windows over the elements, stacked; see nodes::window.
  Dataset window(const WindowOptions& options) const;
  // What becomes of elements that fail below, whatever the Loader is told. One that is left out
  // keeps its position in what is indexed (a batch is shorter by it); in a stream it never existed.
  Dataset on_error(OnError policy) const;
  // Error kDataLoss when it is built: there are more elements, or fewer.
  Dataset assert_cardinality(uint64_t count) const;
  // Batches (elements, where nothing is batched) of a pass; kEndless; nothing: only running it
  // tells. Errors as of build.
  std::optional<uint64_t> cardinality() const;
  // The pass again and again, shuffled anew each time. Without a count: for ever.
  Dataset repeat(std::optional<uint64_t> count = std::nullopt) const;
  // Batches that may be made ahead, at the end of a chain. Without a number: as many as help.
  Dataset prefetch(std::optional<uint32_t> batches = std::nullopt) const;

  // Error as the nodes find: kInvalidArgument, kNotFound, kDataLoss, kSystem.
  Loader build(const LoaderOptions& options = {}) const { return Loader(*this, options); }

  const Node::Ref& node() const { return node_; }

 private:
  template <class F>
  static OpRef predicate_op(F predicate, std::string name) {
    using Function = std::function<bool(const Example& element, SampleContext& context)>;
    auto verdict = [holds_for = given(Function(std::move(predicate)), "filter", "function")](
                       const Example& element, SampleContext& sample) {
      Tensor holds = Tensor::make(DType::kBool, {});
      holds.as_span<bool>()[0] = holds_for(element, sample);
      return Example{{"holds", holds}};
    };
    return std::make_shared<FunctionOp>(std::move(name), std::move(verdict));
  }

  Node::Ref node_;
};

}  // namespace penstock
