#include "penstock/pipeline/streams/section_stream.h"

#include <utility>

#include "penstock/pipeline/streams/section_reader.h"

namespace penstock {
namespace {

class SectionStream : public Streamed {
 public:
  SectionStream(uint32_t number, StreamedRef serial)
      : number_(number), serial_(std::move(serial)) {}

  SpecRef spec() const override { return serial_->spec(); }
  std::optional<uint64_t> length() const override { return serial_->length(); }
  // Whoever takes what workers made takes their exceptions, too.
  bool python() const override { return serial_->python(); }
  std::unique_ptr<StreamReader> reader(Context& context) const override {
    if (context.sections == nullptr) return serial_->reader(context);
    return std::make_unique<SectionReader>(number_, spec(), context);
  }

 private:
  uint32_t number_;
  StreamedRef serial_;
};

}  // namespace

StreamedRef section_stream(uint32_t number, StreamedRef serial) {
  return std::make_shared<SectionStream>(number, std::move(serial));
}

}  // namespace penstock
