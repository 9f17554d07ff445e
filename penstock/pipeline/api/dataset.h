#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/io/arrow_abi.h"
#include "penstock/io/chunked_array.h"
#include "penstock/io/glob.h"
#include "penstock/pipeline/api/loader.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/element/padding.h"
#include "penstock/pipeline/plan/dataset_options.h"
#include "penstock/pipeline/plan/node.h"
#include "penstock/pipeline/stages/function_op.h"
#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/transformations/image_operations.h"
#include "penstock/pipeline/transformations/operations.h"

namespace penstock {

// A function for map, filter and take_while. It is called for each element, from several threads at
// once.
template <class F>
concept ElementFunction = std::invocable<const F&, const Example&, SampleContext&>;

// A pipeline: a source and a chain of transformations; see docs/design/pipeline.md. Methods check
// only their arguments. build() checks the pipeline and makes a Loader; nothing is read before.
//
//   auto feed = penstock::Dataset::range(0, 1000).shuffle({.seed = 7}).batch(32).build();
//   while (auto batch = feed.next()) ...
//
// A value: cheap to copy, immutable, any thread. Every method returns a new Dataset. Their error is
// kInvalidArgument: an invalid argument.
class Dataset {
 public:
  explicit Dataset(Node::Ref node) : node_(given(std::move(node), "Dataset", "node")) {}

  // ---- sources

  // The numbers begin, begin + step, ... before end: int64 under the name "".
  static Dataset range(int64_t begin, int64_t end, int64_t step = 1);
  static Dataset range(int64_t end) { return range(0, end); }
  // The records of TFRecord files (a path, a pattern, or a list of them): bytes, under the name "".
  static Dataset tfrecord(const Paths& paths, const TFRecordOptions& options = {});
  // The lines of text files, without line ends: text, under the name "".
  static Dataset lines(const Paths& paths, const LineOptions& options = {});
  // The records of CSV files: a leaf for each of options.columns, under its name; see nodes::csv.
  static Dataset csv(const Paths& paths, const CsvOptions& options);
  // Records of one length: uint8 of shape {options.record_bytes}, under the name "".
  static Dataset fixed_records(const Paths& paths, const FixedRecordOptions& options);
  // The rows of IDX files (such as MNIST): arrays under the name ""; with options.labels {image,
  // label}. See nodes::idx.
  static Dataset idx(const Paths& paths, const IdxOptions& options = {});
  // The records of CIFAR's binary files: {image, label}, for CIFAR-100 also coarse_label; see
  // nodes::cifar10.
  static Dataset cifar10(const Paths& paths, const CifarOptions& options = {});
  static Dataset cifar100(const Paths& paths, const CifarOptions& options = {});
  // The samples of tar archives: {__key__, extension: bytes, ...}; see nodes::tar.
  static Dataset tar(const Paths& paths, const TarOptions& options = {});

  // Whole files: {bytes, path}, with labels {bytes, path, label}; see nodes::files.
  static Dataset files(const Paths& paths, std::optional<std::vector<int64_t>> labels = {},
                       const std::string& index = {});
  // The images in a folder's folders: {image, label, path}; see nodes::image_folder.
  static Dataset image_folder(const std::string& root, const ImageFolderOptions& options = {});
  // Rows of data sets of an HDF5 file. The caller finds their chunks with libhdf5
  // (H5Dchunk_iter, H5Dget_offset).
  static Dataset hdf5(std::string path, std::vector<std::pair<std::string, ChunkedArray>> fields,
                      const Hdf5Options& options = {});
  // The elements of a file that cache(path) wrote; see nodes::snapshot.
  static Dataset snapshot(const std::string& path);
  // The rows of arrays of equal length. The arrays are neither copied nor written to.
  static Dataset arrays(Example columns);
  // The rows of Arrow data, which is taken over and not copied: of a stream, which is read to its
  // end here, or of one array. See nodes::arrow. Errors: also as of import_arrow.
  static Dataset arrow(ArrowArrayStream* stream, const ArrowOptions& options = {});
  static Dataset arrow(ArrowSchema* schema, ArrowArray* array, const ArrowOptions& options = {});
  // The elements of a generator. begin(epoch) returns a Pull; each call of it returns an element,
  // or nothing at the end. See nodes::generator. A stream.
  static Dataset generator(std::function<Pull(uint64_t epoch)> begin,
                           std::string name = "function");
  // The given elements.
  static Dataset items(std::vector<Example> elements);
  // Elements of all inputs combined, as long as the shortest input. Leaves are "name/leaf"; default
  // names are "0", "1", ...
  static Dataset zip(std::vector<Dataset> inputs, std::vector<std::string> names = {});
  // `block` elements of each of `cycle` inputs in turn.
  static Dataset interleave(std::vector<Dataset> inputs, uint64_t cycle, uint64_t block = 1);
  // All inputs, one after the other.
  static Dataset concatenate(std::vector<Dataset> inputs);
  // Each element comes from one of the inputs: drawn by weights, or chosen by `choices`, an int64
  // per element. `stop_on_empty`: ends when an exhausted input is chosen. Streams.
  static Dataset sample_from(std::vector<Dataset> inputs, const SampleOptions& options = {});
  static Dataset choose_from(const Dataset& choices, std::vector<Dataset> inputs,
                             bool stop_on_empty = true);

  // ---- transformations

  // Applies an operation: parse_example(...), normalize(...), or a user-defined one.
  Dataset map(OpRef op) const;
  // Applies a function Example(const Example& element, SampleContext& context), which is called
  // from several threads at once; see FunctionOp. `name`: for titles, states and errors.
  template <ElementFunction F>
  Dataset map(F function, std::string name = "function") const {
    return map(std::make_shared<FunctionOp>(std::move(name), std::move(function)));
  }
  // Applies a quick function void(std::span<const In>, std::span<Out>) to one field's values. It
  // writes its result straight to the destination; see FieldFunctionOp. `shape`: of the result;
  // nothing: unchanged.
  template <class In, class Out = In, class F>
  Dataset map_field(std::string field, std::optional<Shape> shape, F function,
                    std::string name = "function") const {
    return map(std::make_shared<FieldFunctionOp<In, Out>>(std::move(name), std::move(field),
                                                          std::move(shape), std::move(function)));
  }
  // The elements for which a predicate is true: an operation, or a function bool(const Example&,
  // SampleContext&). The result is a stream, because its elements are only known after running it.
  Dataset filter(OpRef predicate) const;
  template <ElementFunction F>
  Dataset filter(F predicate, std::string name = "function") const {
    return filter(predicate_op(std::move(predicate), std::move(name)));
  }
  // The elements before the first one for which the predicate (as for filter) is false. A stream.
  Dataset take_while(OpRef predicate) const;
  template <ElementFunction F>
  Dataset take_while(F predicate, std::string name = "function") const {
    return take_while(predicate_op(std::move(predicate), std::move(name)));
  }
  // All elements in a new random order each epoch: an exact global shuffle without extra memory.
  // With options.buffer: draws each element from a buffer, as tf.data's shuffle; a stream.
  Dataset shuffle(const ShuffleOptions& options) const;
  // Blocks of consecutive elements in random order, mixed within windows of some blocks; reads
  // nearly sequentially.
  Dataset shuffle_blocks(const ShuffleBlocksOptions& options) const;
  Dataset take(uint64_t n) const;
  Dataset skip(uint64_t n) const;  // O(1)
  // Every world-th element, beginning with number `rank`.
  Dataset shard(uint32_t rank, uint32_t world, Remainder remainder = Remainder::kKeep) const;
  // ("0", the element's number, counted from `start`; "1", the element).
  Dataset enumerate(int64_t start = 0) const;
  Dataset concatenate(const Dataset& next) const { return concatenate({*this, next}); }
  Dataset batch(uint64_t n, const BatchOptions& options = {}) const;
  // Padded batches of elements of similar length; see nodes::bucket_by_length. A stream.
  Dataset bucket_by_length(BucketByLengthOptions options) const;
  // Drops elements that occurred before in the epoch. With a key, elements are equal if their keys
  // are: results of an operation or a function Example(const Example&, SampleContext&). A stream.
  Dataset unique(OpRef key = nullptr) const;
  template <ElementFunction F>
  Dataset unique(F key, std::string name = "function") const {
    return unique(std::make_shared<FunctionOp>(std::move(name), std::move(key)));
  }
  // A fold: makes a new carry and a result of the carry and each element. An epoch begins with
  // `initial`. See Scanning. A stream.
  Dataset scan(const Example& initial, Scanning function, std::string name = "function") const;
  // The elements of the plans that open(element) returns: one plan after the other, or several
  // plans in turn; see Opening. Streams.
  Dataset flat_map(std::function<Dataset(const Example& element)> open,
                   std::string name = "function") const;
  Dataset interleave(std::function<Dataset(const Example& element)> open,
                     const InterleaveOptions& options = {}, std::string name = "function") const;
  // The rows of each element as elements; all leaves must be arrays of equal length. A stream.
  Dataset unbatch() const;
  // Batches of another size. A stream.
  Dataset rebatch(uint64_t n, const BatchOptions& options = {}) const;
  // Batches of n elements, padded to the longest or to given lengths; see nodes::padded_batch.
  Dataset padded_batch(uint64_t n, std::vector<Padding::Field> fields = {},
                       const BatchOptions& options = {}) const;
  // Batches of n elements of any lengths: leaves whose lengths differ become ragged.
  Dataset ragged_batch(uint64_t n, const BatchOptions& options = {}) const;
  // Caches every element in memory after it was first made. `max_bytes` 0: a quarter of the memory
  // limit. See nodes::cache.
  Dataset cache(uint64_t max_bytes = 0) const;
  // The same in a file. The file appears after all elements were made; later runs read it.
  Dataset cache(const std::string& path) const;
  // Splits every batch for `parts` devices, without a copy: leaf `x` of part 1 is "1/x". Only after
  // a batch; see nodes::split_batch.
  Dataset split_batch(uint32_t parts) const;
  // Windows over the elements, stacked; see nodes::window.
  Dataset window(const WindowOptions& options) const;
  // The handling of elements that fail in the stages before, whatever the Loader's on_error is. In
  // an indexed plan a skipped element keeps its position (its batch is shorter); in a stream it
  // does not count.
  Dataset on_error(OnError policy) const;
  // Checks the number of elements. Error kDataLoss at build: there are more elements, or fewer.
  Dataset assert_cardinality(uint64_t count) const;
  // Number of batches of a pass (elements, if nothing is batched); kEndless; nothing: only known
  // after running it. Errors as of build.
  std::optional<uint64_t> cardinality() const;
  // Repeats the pass, shuffled anew each time. Without a count: forever.
  Dataset repeat(std::optional<uint64_t> count = std::nullopt) const;
  // The number of batches that may be made ahead, at the end of a chain. Nothing: chosen
  // automatically.
  Dataset prefetch(std::optional<uint32_t> batches = std::nullopt) const;

  // Errors of the nodes: kInvalidArgument, kNotFound, kDataLoss, kSystem.
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
