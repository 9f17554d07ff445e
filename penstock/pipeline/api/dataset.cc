#include "penstock/pipeline/api/dataset.h"

#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/plan/plan.h"
#include "penstock/pipeline/sources/arrow_leaf.h"
#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

std::vector<Node::Ref> nodes_of(const std::vector<Dataset>& inputs) {
  std::vector<Node::Ref> all;
  for (const Dataset& input : inputs) all.push_back(input.node());
  return all;
}

Opening opening(std::function<Dataset(const Example& element)> open, const char* operation) {
  open = given(std::move(open), operation, "function");
  return [open = std::move(open)](const Example& element) { return open(element).node(); };
}

}  // namespace

Dataset Dataset::range(int64_t begin, int64_t end, int64_t step) {
  return Dataset(nodes::range(begin, end, step));
}

Dataset Dataset::tfrecord(const Paths& paths, const TFRecordOptions& options) {
  return Dataset(nodes::tfrecord(paths, options));
}
Dataset Dataset::lines(const Paths& paths, const LineOptions& options) {
  return Dataset(nodes::lines(paths, options));
}
Dataset Dataset::csv(const Paths& paths, const CsvOptions& options) {
  return Dataset(nodes::csv(paths, options));
}
Dataset Dataset::fixed_records(const Paths& paths, const FixedRecordOptions& options) {
  return Dataset(nodes::fixed_records(paths, options));
}
Dataset Dataset::idx(const Paths& paths, const IdxOptions& options) {
  return Dataset(nodes::idx(paths, options));
}
Dataset Dataset::cifar10(const Paths& paths, const CifarOptions& options) {
  return Dataset(nodes::cifar10(paths, options));
}
Dataset Dataset::cifar100(const Paths& paths, const CifarOptions& options) {
  return Dataset(nodes::cifar100(paths, options));
}
Dataset Dataset::tar(const Paths& paths, const TarOptions& options) {
  return Dataset(nodes::tar(paths, options));
}

Dataset Dataset::hdf5(std::string path, std::vector<std::pair<std::string, ChunkedArray>> fields,
                      const Hdf5Options& options) {
  return Dataset(nodes::hdf5(std::move(path), std::move(fields), options));
}

Dataset Dataset::files(const Paths& paths, std::optional<std::vector<int64_t>> labels,
                       const std::string& index) {
  return Dataset(nodes::files(paths, std::move(labels), index));
}
Dataset Dataset::image_folder(const std::string& root, const ImageFolderOptions& options) {
  return Dataset(nodes::image_folder(root, options));
}
Dataset Dataset::snapshot(const std::string& path) { return Dataset(nodes::snapshot(path)); }
namespace {

// Types are checked before the data is read.
void refuse_types(const ArrowField& schema) {
  SpecRef spec;
  arrow_leaves(schema, spec);
}

}  // namespace

Dataset Dataset::arrow(ArrowArrayStream* stream, const ArrowOptions& options) {
  auto table = import_arrow(stream, options.columns, &refuse_types);
  return Dataset(nodes::arrow(std::make_shared<const ArrowTable>(std::move(table)), options));
}

Dataset Dataset::arrow(ArrowSchema* schema, ArrowArray* array, const ArrowOptions& options) {
  auto table = import_arrow(schema, array, options.columns, &refuse_types);
  return Dataset(nodes::arrow(std::make_shared<const ArrowTable>(std::move(table)), options));
}

Dataset Dataset::arrays(Example columns) { return Dataset(nodes::arrays(std::move(columns))); }
Dataset Dataset::generator(std::function<Pull(uint64_t epoch)> begin, std::string name) {
  return Dataset(nodes::generator(std::move(name), std::move(begin)));
}
Dataset Dataset::sample_from(std::vector<Dataset> inputs, const SampleOptions& options) {
  return Dataset(
      nodes::sample_from(nodes_of(inputs), options.weights, options.seed, options.stop_on_empty));
}
Dataset Dataset::choose_from(const Dataset& choices, std::vector<Dataset> inputs,
                             bool stop_on_empty) {
  return Dataset(nodes::choose_from(choices.node(), nodes_of(inputs), stop_on_empty));
}
Dataset Dataset::items(std::vector<Example> elements) {
  return Dataset(nodes::items(std::move(elements)));
}
Dataset Dataset::zip(std::vector<Dataset> inputs, std::vector<std::string> names) {
  return Dataset(nodes::zip(nodes_of(inputs), std::move(names)));
}
Dataset Dataset::concatenate(std::vector<Dataset> inputs) {
  return Dataset(nodes::concatenate(nodes_of(inputs)));
}

Dataset Dataset::filter(OpRef predicate) const {
  return Dataset(nodes::filter(node_, std::move(predicate)));
}
Dataset Dataset::take_while(OpRef predicate) const {
  return Dataset(nodes::take_while(node_, std::move(predicate)));
}
Dataset Dataset::bucket_by_length(BucketByLengthOptions options) const {
  return Dataset(nodes::bucket_by_length(node_, std::move(options)));
}
Dataset Dataset::unique(OpRef key) const { return Dataset(nodes::unique(node_, std::move(key))); }
Dataset Dataset::scan(const Example& initial, Scanning function, std::string name) const {
  return Dataset(nodes::scan(node_, std::move(name), initial, std::move(function)));
}
Dataset Dataset::flat_map(std::function<Dataset(const Example& element)> open,
                          std::string name) const {
  return Dataset(nodes::flat_map(node_, std::move(name), opening(std::move(open), "flat_map")));
}
Dataset Dataset::interleave(std::function<Dataset(const Example& element)> open,
                            const InterleaveOptions& options, std::string name) const {
  return Dataset(nodes::interleave(node_, std::move(name), opening(std::move(open), "interleave"),
                                   options.cycle, options.block));
}
Dataset Dataset::unbatch() const { return Dataset(nodes::unbatch(node_)); }
Dataset Dataset::rebatch(uint64_t n, const BatchOptions& options) const {
  return Dataset(nodes::rebatch(node_, n, options.drop_last));
}
Dataset Dataset::shuffle(const ShuffleOptions& options) const {
  if (options.buffer != 0) {
    return Dataset(nodes::shuffle_buffer(node_, options.seed, options.buffer, options.reshuffle));
  }
  return Dataset(nodes::shuffle(node_, options.seed, options.reshuffle));
}
Dataset Dataset::take(uint64_t n) const { return Dataset(nodes::take(node_, n)); }
Dataset Dataset::skip(uint64_t n) const { return Dataset(nodes::skip(node_, n)); }
Dataset Dataset::shard(uint32_t rank, uint32_t world, Remainder remainder) const {
  return Dataset(nodes::shard(node_, rank, world, remainder));
}
Dataset Dataset::enumerate(int64_t start) const { return Dataset(nodes::enumerate(node_, start)); }
Dataset Dataset::map(OpRef op) const { return Dataset(nodes::map(node_, std::move(op))); }
Dataset Dataset::batch(uint64_t n, const BatchOptions& options) const {
  return Dataset(nodes::batch(node_, n, options.drop_last));
}
Dataset Dataset::padded_batch(uint64_t n, std::vector<Padding::Field> fields,
                              const BatchOptions& options) const {
  return Dataset(nodes::padded_batch(node_, n, options.drop_last, std::move(fields)));
}
Dataset Dataset::ragged_batch(uint64_t n, const BatchOptions& options) const {
  return Dataset(nodes::ragged_batch(node_, n, options.drop_last));
}
Dataset Dataset::cache(uint64_t max_bytes) const { return Dataset(nodes::cache(node_, max_bytes)); }
Dataset Dataset::cache(const std::string& path) const { return Dataset(nodes::cache(node_, path)); }
Dataset Dataset::split_batch(uint32_t parts) const {
  return Dataset(nodes::split_batch(node_, parts));
}
Dataset Dataset::window(const WindowOptions& options) const {
  return Dataset(nodes::window(node_, options));
}
Dataset Dataset::on_error(OnError policy) const { return Dataset(nodes::on_error(node_, policy)); }
std::optional<uint64_t> Dataset::cardinality() const {
  const Plan plan(*given(node_, "Dataset", "dataset"));
  const auto once = plan.known_length();
  if (!once || *once == 0) return once;
  uint64_t all;
  const bool endless = *once == kEndless || plan.rounds() == kEndless ||
                       __builtin_mul_overflow(*once, plan.rounds(), &all);
  return endless ? kEndless : all;
}

Dataset Dataset::assert_cardinality(uint64_t count) const {
  return Dataset(nodes::assert_cardinality(node_, count));
}
Dataset Dataset::shuffle_blocks(const ShuffleBlocksOptions& options) const {
  return Dataset(nodes::shuffle_blocks(node_, options));
}
Dataset Dataset::interleave(std::vector<Dataset> inputs, uint64_t cycle, uint64_t block) {
  return Dataset(nodes::interleave(nodes_of(inputs), cycle, block));
}
Dataset Dataset::repeat(std::optional<uint64_t> count) const {
  return Dataset(nodes::repeat(node_, count.value_or(kEndless)));
}
Dataset Dataset::prefetch(std::optional<uint32_t> batches) const {
  return Dataset(nodes::prefetch(node_, batches));
}

}  // namespace penstock
