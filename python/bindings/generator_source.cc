#include <nanobind/nanobind.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "elements.h"
#include "gil.h"
#include "penstock/base/json.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "penstock/pipeline/streams/streams.h"
#include "python_op.h"
#include "python_stages.h"
#include "random.h"
#include "references.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

class PythonStream : public Streamed {
 public:
  PythonStream(UserObjectRef function, uint32_t operation, std::string title)
      : function_(std::move(function)), operation_(operation), title_(std::move(title)) {}

  SpecRef spec() const override { return nullptr; }
  std::optional<uint64_t> length() const override { return std::nullopt; }
  bool python() const override { return true; }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const PythonStream& stage, Context& context) : stage_(stage), context_(context) {}

    void begin(uint64_t epoch) override {
      WithGil locked;
      iterator_ = nullptr;
      inferred_ = nullptr;
      epoch_ = epoch;
      taken_ = 0;
      over_ = false;
      Owned iterable(PyObject_CallNoArgs(stage_.function_->take().get()));
      Owned iterator(iterable ? PyObject_GetIter(iterable.get()) : nullptr);
      if (!iterator) throw Raised::take();
      iterator_ = share(iterator.get());
    }

    uint32_t next(uint32_t most, Chunk& out) override {
      StageClock::Part part(context_.clock);
      WithGil locked;
      release_references();
      out.reset(nullptr, most);
      if (inferred_ != nullptr) (void)out.settle(inferred_);
      uint32_t count = 0;
      while (count < most && !over_ && context_.watch->progress(0, 0)) {
        if (take(out, count)) ++count;
      }
      if (count == 0 && !over_) context_.check_open();  // not the end of the stream
      inferred_ = out.spec();
      out.remove(count == Chunk::kRows ? 0 : ~uint64_t{0} << count);
      return count;
    }

    State save() const override { return {{"taken", taken_}}; }
    void load(uint64_t epoch, const State& state) override {
      const uint64_t taken = count_in(state, "taken");
      begin(epoch);
      WithGil locked;
      while (taken_ < taken) {
        context_.check_open();
        const Owned value = pull();
        if (!value) throw refuse_restore("the state is beyond the generator's end");
        if (inferred_ == nullptr) learn(value.get());
      }
    }

   private:
    // Writes the next element into a row before the generator runs again, because the generator may
    // reuse the element's memory. False: there is no element.
    bool take(Chunk& out, uint32_t row) {
      const uint64_t position = taken_;
      try {
        const Owned value = pull();
        if (!value) return false;
        try {
          put_element(value.get(), out, row, context_.scratch);
        } catch (nb::python_error& raised) {
          raised.restore();
          throw Raised::take();
        }
      } catch (const Raised& raised) {
        const bool interrupted =
            !raised.is_error() && context_.watch->interrupted(std::current_exception());
        if (interrupted) throw;
        // A generator that raised has ended: no policy can continue.
        out.fail(row, {stage_.title_, position, std::current_exception(), Decision::kRaise});
      } catch (const Error& error) {
        if (error.code() != Code::kInvalidArgument && error.code() != Code::kDataLoss) throw;
        out.fail(row, {stage_.title_, position, std::current_exception()});
      }
      return true;
    }

    // Infers the schema from a skipped element.
    void learn(PyObject* value) {
      Chunk one(context_.scratch);
      one.reset(nullptr, 1);
      try {
        put_element(value, one, 0, context_.scratch);
      } catch (nb::python_error&) {  // it failed the first time, too
      } catch (const Error&) {
      }
      inferred_ = one.spec();
    }

    // The next element, or nothing at the end. With the GIL held.
    Owned pull() {
      const uint64_t seed = derive_key(context_.seed, stage_.operation_, KeyUse::kSamples);
      set_ticket_key(seed, epoch_, taken_);
      StayWhenEnded stay;
      Owned value(PyIter_Next(static_cast<PyObject*>(iterator_.get())));
      stay.returned();
      clear_ticket_key();
      if (value) {
        ++taken_;
      } else {
        over_ = true;
        iterator_ = nullptr;  // so that objects that the generator refers to can be collected
        if (PyErr_Occurred() != nullptr) throw Raised::take();
      }
      return value;
    }

    const PythonStream& stage_;
    Context& context_;
    std::shared_ptr<void> iterator_;
    SpecRef inferred_;  // from the elements so far; elements that differ fail
    uint64_t epoch_ = 0, taken_ = 0;
    bool over_ = false;
  };

  UserObjectRef function_;
  uint32_t operation_;
  std::string title_;
};

}  // namespace

Node::Ref generator_source(UserObjectRef function, std::string title) {
  return make_node({
      .title = std::move(title),
      .build =
          [function = std::move(function)](std::vector<Built>, Builder& builder) {
            return Built::of(
                std::make_shared<PythonStream>(function, builder.operation(), builder.title()));
          },
  });
}

}  // namespace penstock::python
