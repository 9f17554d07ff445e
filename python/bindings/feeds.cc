// Several consumers of one Loader of a Dataset.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <utility>

#include "epoch_iterator.h"
#include "gil.h"
#include "module.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/engine/feeds_hub.h"
#include "python_loader.h"
#include "references.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

constexpr int64_t kFeedsSignalCheckNs = 100'000'000;

// The hub calls this without the GIL.
class LoaderSource : public FeedsHub::Source {
 public:
  explicit LoaderSource(nb::object loader)
      : loader_(share(loader.ptr())),
        core_(share(nb::object(loader.attr("_core")).ptr())),
        engine_(nb::cast<PythonLoader&>(loader.attr("_core"))) {}

  void begin_pass() override {
    WithGil locked;
    nb::object iterator = loader().attr("__iter__")();
    serial_ = nb::cast<EpochIterator&>(iterator).serial();
  }
  FeedsHub::Pulled pull() override {
    WithGil locked;
    try {
      const uint64_t before = engine_.bytes_delivered();
      nb::object batch = engine_.next(serial_);
      if (batch.ptr() == end_marker()) return {};
      return {FeedsHub::Item{share(batch.ptr()), engine_.bytes_delivered() - before}, nullptr, {}};
    } catch (nb::python_error& error) {
      // An interrupt belongs to the thread that receives it, and not to a batch.
      if (!error.matches(PyExc_Exception) || engine_.closed()) throw;
      return {std::nullopt, std::current_exception(), error.what()};
    } catch (const Error& error) {
      if (engine_.closed()) throw;
      return {std::nullopt, std::current_exception(), error.what()};
    }
  }
  FeedsHub::Place place() override {
    WithGil locked;
    return FeedsHub::place_at(engine_.state(), engine_.rounds());
  }
  void restore(const LoaderState& state) override {
    WithGil locked;
    nb::object json = nb::module_::import_("json").attr("loads")(state.to_json());
    loader().attr("restore")(json);
  }
  void close() override {
    WithGil locked;
    loader().attr("close")();
  }
  ByteBudget& budget() override { return engine_.budget(); }

 private:
  nb::object loader() const { return nb::borrow(static_cast<PyObject*>(loader_.get())); }

  std::shared_ptr<void> loader_, core_;
  PythonLoader& engine_;
  uint64_t serial_ = 0;
};

class Hub {
 public:
  Hub(nb::object loader, uint32_t consumers, uint64_t most, double patience) {
    FeedsHub::Options options;
    options.consumers = consumers;
    options.most = most;
    if (patience >= 0) options.patience_ns = static_cast<int64_t>(patience * 1e9);
    auto source = std::make_unique<LoaderSource>(std::move(loader));
    WithoutGil unlocked;
    hub_ = std::make_unique<FeedsHub>(std::move(source), options);
  }
  ~Hub() {
    // The Loader's close() is Python, and a destructor may run while an exception is raised.
    const nb::error_scope raised;
    const WithoutGil unlocked;
    hub_.reset();
  }

  nb::object next(uint32_t consumer) {
    for (;;) {
      FeedsHub::Item item;
      FeedsHub::Next found;
      {
        WithoutGil unlocked;
        found = hub_->next(consumer, kFeedsSignalCheckNs, item);
      }
      if (found == FeedsHub::Next::kBatch) {
        return nb::borrow(static_cast<PyObject*>(item.value.get()));
      }
      if (found == FeedsHub::Next::kEnd) throw nb::stop_iteration();
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
  void begin(uint32_t consumer) { hub_->begin(consumer); }
  void close_one(uint32_t consumer) { hub_->close(consumer); }
  void close() { hub_->close(); }
  std::string state() { return hub_->state(); }
  void restore(const std::string& state) { hub_->restore(state); }
  nb::list counts() {
    nb::list all;
    for (const FeedsHub::Counts& counts : hub_->counts()) {
      all.append(nb::make_tuple(counts.taken, counts.dropped));
    }
    return all;
  }

 private:
  std::unique_ptr<FeedsHub> hub_;
};

}  // namespace

void bind_feeds(nb::module_& m) {
  using Released = nb::call_guard<WithoutGil>;
  nb::class_<Hub>(m, "FeedsHub", "Several consumers of one Loader. Internal: use Dataset.feeds.")
      .def(nb::init<nb::object, uint32_t, uint64_t, double>())
      .def("next", &Hub::next)
      .def("begin", &Hub::begin, Released())
      .def("close_one", &Hub::close_one, Released())
      .def("close", &Hub::close, Released())
      .def("state", &Hub::state, Released())
      .def("restore", &Hub::restore, Released())
      .def("counts", &Hub::counts);
}

}  // namespace penstock::python
