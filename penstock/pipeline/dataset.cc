#include "penstock/pipeline/dataset.h"

#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/plan.h"
#include "penstock/pipeline/sources/arrays.h"
#include "penstock/pipeline/sources/cifar.h"
#include "penstock/pipeline/sources/csv.h"
#include "penstock/pipeline/sources/fixed_records.h"
#include "penstock/pipeline/sources/idx.h"
#include "penstock/pipeline/sources/items.h"
#include "penstock/pipeline/sources/lines.h"
#include "penstock/pipeline/sources/range.h"
#include "penstock/pipeline/sources/snapshot.h"
#include "penstock/pipeline/sources/tfrecord.h"
#include "penstock/pipeline/transformations/batch.h"
#include "penstock/pipeline/transformations/cache.h"
#include "penstock/pipeline/transformations/cardinality.h"
#include "penstock/pipeline/transformations/choose_from.h"
#include "penstock/pipeline/transformations/concatenate.h"
#include "penstock/pipeline/transformations/enumerate.h"
#include "penstock/pipeline/transformations/filter.h"
#include "penstock/pipeline/transformations/interleave.h"
#include "penstock/pipeline/transformations/interleave_stream.h"
#include "penstock/pipeline/transformations/map.h"
#include "penstock/pipeline/transformations/on_error.h"
#include "penstock/pipeline/transformations/padded_batch.h"
#include "penstock/pipeline/transformations/prefetch.h"
#include "penstock/pipeline/transformations/ragged_batch.h"
#include "penstock/pipeline/transformations/rebatch.h"
#include "penstock/pipeline/transformations/repeat.h"
#include "penstock/pipeline/transformations/sample_from.h"
#include "penstock/pipeline/transformations/shuffle.h"
#include "penstock/pipeline/transformations/shuffle_buffer.h"
#include "penstock/pipeline/transformations/skip.h"
#include "penstock/pipeline/transformations/split_batch.h"
#include "penstock/pipeline/transformations/take.h"
#include "penstock/pipeline/transformations/take_while.h"
#include "penstock/pipeline/transformations/unbatch.h"
#include "penstock/pipeline/transformations/unique.h"
#include "penstock/pipeline/transformations/zip.h"

namespace penstock {
namespace {

template <class N, class... Arguments>
Dataset made(Arguments&&... arguments) {
  return Dataset(std::make_shared<N>(std::forward<Arguments>(arguments)...));
}

std::vector<Node::Ref> nodes_of(const std::vector<Dataset>& inputs) {
  std::vector<Node::Ref> nodes;
  for (const Dataset& input : inputs) nodes.push_back(input.node());
  return nodes;
}

Opening opening(std::function<Dataset(const Example& element)> open, const char* operation) {
  open = given(std::move(open), operation, "function");
  return [open = std::move(open)](const Example& element) { return open(element).node(); };
}

}  // namespace

Dataset Dataset::range(int64_t begin, int64_t end, int64_t step) {
  return made<RangeNode>(begin, end, step);
}

Dataset Dataset::tfrecord(const Paths& paths, const TFRecordOptions& options) {
  return made<TFRecordNode>(paths, options);
}
Dataset Dataset::lines(const Paths& paths, const LineOptions& options) {
  return made<LinesNode>(paths, options);
}
Dataset Dataset::csv(const Paths& paths, const CsvOptions& options) {
  return made<CsvNode>(paths, options);
}
Dataset Dataset::fixed_records(const Paths& paths, const FixedRecordOptions& options) {
  return made<FixedRecordsNode>(paths, options);
}
Dataset Dataset::idx(const Paths& paths, const IdxOptions& options) {
  auto rows = std::make_shared<IdxNode>(paths, options);
  if (options.labels.empty()) return Dataset(std::move(rows));
  return made<IdxPairsNode>(std::move(rows),
                            std::make_shared<IdxNode>(Paths(options.labels), options));
}
Dataset Dataset::cifar10(const Paths& paths, const CifarOptions& options) {
  return made<CifarNode>(CifarNode::Kind::kCifar10, paths, options);
}
Dataset Dataset::cifar100(const Paths& paths, const CifarOptions& options) {
  return made<CifarNode>(CifarNode::Kind::kCifar100, paths, options);
}

Dataset Dataset::snapshot(const std::string& path) { return made<SnapshotNode>(path); }
Dataset Dataset::arrays(Example columns) { return made<ArraysNode>(std::move(columns)); }
Dataset Dataset::generator(std::function<Pull(uint64_t epoch)> begin, std::string name) {
  return made<GeneratorNode>(std::move(name), std::move(begin));
}
Dataset Dataset::sample_from(std::vector<Dataset> inputs, const SampleOptions& options) {
  return made<SampleFromNode>(nodes_of(inputs), options.weights, options.seed,
                              options.stop_on_empty);
}
Dataset Dataset::choose_from(const Dataset& choices, std::vector<Dataset> inputs,
                             bool stop_on_empty) {
  return made<ChooseFromNode>(choices.node(), nodes_of(inputs), stop_on_empty);
}
Dataset Dataset::items(std::vector<Example> elements) {
  return made<ItemsNode>(std::move(elements));
}
Dataset Dataset::zip(std::vector<Dataset> inputs, std::vector<std::string> names) {
  return made<ZipNode>(nodes_of(inputs), std::move(names));
}
Dataset Dataset::concatenate(std::vector<Dataset> inputs) {
  return made<ConcatenateNode>(nodes_of(inputs));
}

Dataset Dataset::filter(OpRef predicate) const {
  return made<FilterNode>(node_, std::move(predicate));
}
Dataset Dataset::take_while(OpRef predicate) const {
  return made<TakeWhileNode>(node_, std::move(predicate));
}
Dataset Dataset::bucket_by_length(BucketByLengthNode::Options options) const {
  return made<BucketByLengthNode>(node_, std::move(options));
}
Dataset Dataset::unique(OpRef key) const { return made<UniqueNode>(node_, std::move(key)); }
Dataset Dataset::scan(const Example& initial, Scanning function, std::string name) const {
  return made<ScanNode>(node_, std::move(name), initial, std::move(function));
}
Dataset Dataset::flat_map(std::function<Dataset(const Example& element)> open,
                          std::string name) const {
  return made<FlatMapNode>(node_, std::move(name), opening(std::move(open), "flat_map"));
}
Dataset Dataset::interleave(std::function<Dataset(const Example& element)> open,
                            const InterleaveOptions& options, std::string name) const {
  return made<InterleaveStreamNode>(node_, std::move(name), opening(std::move(open), "interleave"),
                                    options.cycle, options.block);
}
Dataset Dataset::unbatch() const { return made<UnbatchNode>(node_); }
Dataset Dataset::rebatch(uint64_t n, const BatchOptions& options) const {
  return made<RebatchNode>(node_, n, options.drop_last);
}
Dataset Dataset::shuffle(const ShuffleOptions& options) const {
  if (options.buffer != 0) {
    return made<ShuffleBufferNode>(node_, options.seed, options.buffer, options.reshuffle);
  }
  return made<ShuffleNode>(node_, options.seed, options.reshuffle);
}
Dataset Dataset::take(uint64_t n) const { return made<TakeNode>(node_, n); }
Dataset Dataset::skip(uint64_t n) const { return made<SkipNode>(node_, n); }
Dataset Dataset::shard(uint32_t rank, uint32_t world, Remainder remainder) const {
  return made<ShardNode>(node_, rank, world, remainder);
}
Dataset Dataset::enumerate(int64_t start) const { return made<EnumerateNode>(node_, start); }
Dataset Dataset::map(OpRef op) const { return made<MapNode>(node_, std::move(op)); }
Dataset Dataset::batch(uint64_t n, const BatchOptions& options) const {
  return made<BatchNode>(node_, n, options.drop_last);
}
Dataset Dataset::padded_batch(uint64_t n, std::vector<Padding::Field> fields,
                              const BatchOptions& options) const {
  return made<PaddedBatchNode>(node_, n, options.drop_last, std::move(fields));
}
Dataset Dataset::ragged_batch(uint64_t n, const BatchOptions& options) const {
  return made<RaggedBatchNode>(node_, n, options.drop_last);
}
Dataset Dataset::cache(uint64_t max_bytes) const { return made<CacheNode>(node_, max_bytes); }
Dataset Dataset::cache(const std::string& path) const { return made<CacheNode>(node_, path); }
Dataset Dataset::split_batch(uint32_t parts) const { return made<SplitBatchNode>(node_, parts); }
Dataset Dataset::window(const WindowOptions& options) const {
  return made<WindowNode>(node_, options);
}
Dataset Dataset::on_error(OnError policy) const { return made<OnErrorNode>(node_, policy); }
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
  return made<AssertCardinalityNode>(node_, count);
}
Dataset Dataset::shuffle_blocks(const ShuffleBlocksOptions& options) const {
  return made<ShuffleBlocksNode>(node_, options);
}
Dataset Dataset::interleave(std::vector<Dataset> inputs, uint64_t cycle, uint64_t block) {
  return made<InterleaveNode>(nodes_of(inputs), cycle, block);
}
Dataset Dataset::repeat(std::optional<uint64_t> count) const {
  return made<RepeatNode>(node_, count.value_or(kEndless));
}
Dataset Dataset::prefetch(std::optional<uint32_t> batches) const {
  return made<PrefetchNode>(node_, batches);
}

}  // namespace penstock
