#include <utility>

#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "python_op.h"
#include "python_stages.h"

namespace penstock::python {
namespace {

class PythonSource : public Indexed {
 public:
  PythonSource(UserObjectRef object, uint64_t length, uint32_t operation, std::string title)
      : object_(std::move(object)),
        length_(length),
        operation_(operation),
        title_(std::move(title)) {}

  uint64_t length(uint64_t) const override { return length_; }
  SpecRef spec() const override { return nullptr; }
  bool costly() const override { return true; }
  bool python() const override { return true; }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const PythonSource& source, Context& context) : source_(source), context_(context) {}

    void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out,
               uint32_t row) override {
      StageClock::Part part(context_.clock);
      Keys keys(context_, at.epoch, positions, source_.operation_);
      call_for_rows(context_, keys, ~uint64_t{0}, out, row, [&](uint32_t j, uint32_t) {
        Owned index(PyLong_FromUnsignedLongLong(keys.position(j)));
        return index ? PyObject_GetItem(source_.object_->take().get(), index.get()) : nullptr;
      });
      for (auto& [lost, failure] : out.failures()) {
        if (!failure.stage.empty()) continue;
        failure.stage = source_.title_;
        failure.position = positions[lost - row];
      }
    }

   private:
    const PythonSource& source_;
    Context& context_;
  };

  UserObjectRef object_;
  uint64_t length_;
  uint32_t operation_;
  std::string title_;
};

}  // namespace

Node::Ref python_source(UserObjectRef object, uint64_t length, std::string title) {
  return make_node({
      .title = std::move(title),
      .build = [object = std::move(object), length](std::vector<Built>, Builder& builder) -> Built {
        return {
            std::make_shared<PythonSource>(object, length, builder.operation(), builder.title())};
      },
  });
}

}  // namespace penstock::python
