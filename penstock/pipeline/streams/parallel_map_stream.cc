#include <utility>

#include "penstock/pipeline/streams/parallel_map_reader.h"
#include "penstock/pipeline/streams/streams.h"

namespace penstock {
namespace {

class ParallelMapStream : public Streamed {
 public:
  ParallelMapStream(uint32_t number, StreamedRef serial)
      : number_(number), serial_(std::move(serial)) {}

  SpecRef spec() const override { return serial_->spec(); }
  std::optional<uint64_t> length() const override { return serial_->length(); }
  // The thread that takes the workers' elements also takes their exceptions, which may be Python's.
  bool python() const override { return serial_->python(); }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    if (context.parallel_maps == nullptr) return serial_->reader(context);
    return std::make_unique<ParallelMapReader>(number_, spec(), context);
  }

 private:
  uint32_t number_;
  StreamedRef serial_;
};

}  // namespace

StreamedRef parallel_map_stream(uint32_t number, StreamedRef serial) {
  return std::make_shared<ParallelMapStream>(number, std::move(serial));
}

}  // namespace penstock
