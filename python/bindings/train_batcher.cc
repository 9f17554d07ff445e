#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "elements.h"
#include "gil.h"
#include "module.h"
#include "numpy_api.h"
#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/stages/collate.h"
#include "penstock/train/call_queue.h"
#include "python_op.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using train::CallCounts;
using train::CallQueue;

constexpr const char* kBatcher = "Batcher";

nb::object call_helper(const char* name, nb::handle first, nb::handle second) {
  PyObject* found = helper("penstock.train.batcher", name);
  if (found == nullptr) throw nb::python_error();
  return nb::borrow(found)(first, second);
}

// A call's objects. Released with the GIL held.
class ValueCall final : public CallQueue::Call {
 public:
  ValueCall(nb::handle value, SpecRef its_spec)
      : input(nb::borrow(value)), spec(std::move(its_spec)) {}

  bool joins(const Call& oldest) const override {
    const SpecRef& other = static_cast<const ValueCall&>(oldest).spec;
    return spec == other || *spec == *other;
  }
  void fail(nb::object exception) {
    failure = std::move(exception);
    failed = true;
  }

  nb::object input;
  const SpecRef spec;
  nb::object result, failure;  // one of them, after the batch
  nb::object sink, key;        // of a submitted call: where its result goes
};
using ValueCallRef = std::shared_ptr<ValueCall>;

ValueCall& value_call(const CallQueue::CallRef& call) { return static_cast<ValueCall&>(*call); }

// The exception of an ended call, or nothing.
nb::object failure_of(const ValueCall& call) {
  if (call.failure.is_valid()) return call.failure;
  if (call.error == nullptr) return {};
  return nb::steal(exception_of(call.error));
}

[[noreturn]] void raise(const nb::object& exception) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

// A CallQueue of Python values: stacks the inputs of a batch, calls a Python function, and cuts its
// result into rows. The function comes with each call: the queue owns no object of the user, which
// the garbage collector could not see.
class ValueBatcher {
 public:
  ValueBatcher(uint64_t max_batch, int64_t max_wait_ns, uint64_t max_queue)
      : queue_(kBatcher, {.max_batch = max_batch,
                          .max_wait_ns = max_wait_ns,
                          .max_queue = max_queue,
                          .in_turn = true,
                          .while_waiting = look_for_signals}) {}

  nb::object call(nb::handle function, nb::handle value, int64_t timeout_ns) {
    const auto own = std::make_shared<ValueCall>(value, checked_spec(value));
    const uint64_t end = timeout_ns < 0 ? UINT64_MAX : now_ns() + static_cast<uint64_t>(timeout_ns);
    bool leads = queue_.enter(own);
    while (true) {
      if (!leads) {
        const Returns goes_on{queue_, *own};  // with the GIL
        const WithoutGil unlocked;
        leads = queue_.wait(*own, end);
      }
      if (!leads) break;
      lead(function, own);
      if (CallQueue::ended(*own)) break;
      leads = false;
    }
    if (nb::object failure = failure_of(*own); failure.is_valid()) raise(failure);
    return std::move(own->result);
  }

  ValueCallRef submit(nb::handle value, nb::object sink, nb::object key) {
    auto call = std::make_shared<ValueCall>(value, checked_spec(value));
    call->sink = std::move(sink);
    call->key = std::move(key);
    queue_.submit(call);
    return call;
  }

  bool withdraw(ValueCall& call) { return queue_.withdraw(call); }

  bool wait_to_lead() {
    const WithoutGil unlocked;
    return queue_.wait_to_lead();
  }

  // `own`: null for the helper.
  void lead(nb::handle function, const ValueCallRef& own) {
    if (queue_.options().max_wait_ns > 0) {
      const WithoutGil unlocked;
      queue_.gather(own.get());
    }
    const CallQueue::Batch batch = queue_.take(own.get());
    if (batch.empty()) return;
    bool interrupted = false;
    try {
      run(function, batch);
    } catch (nb::python_error& error) {
      // Ctrl-C, or the end of a thread, concerns the leader alone.
      interrupted = own != nullptr && !error.matches(PyExc_Exception);
      const nb::object exception = nb::borrow(error.value());
      const CallQueue::Call* first = own == nullptr ? batch.front().get() : own.get();
      for (const auto& each : batch) {
        ValueCall& call = value_call(each);
        if (each.get() == first) {
          call.fail(exception);
        } else if (!interrupted) {
          call.fail(call_helper("_copy_of", exception, nb::int_(batch.size())));
        }
      }
    } catch (const std::exception&) {
      for (const auto& each : batch) each->error = std::current_exception();
    }
    if (interrupted) {
      queue_.put_back(batch, own.get());
    } else {
      queue_.finish(batch);
    }
    deliver(batch);
  }

  nb::dict stats() const {
    const CallCounts now = queue_.counts();
    nb::dict all;
    all["calls"] = now.calls;
    all["batches"] = now.batches;
    all["failed"] = now.failed;
    all["withdrawn"] = now.withdrawn;
    all["queued"] = now.queued;
    all["blocked"] = now.blocked;
    all["waited"] = latencies(now.waited);
    all["total"] = latencies(now.total);
    return all;
  }

  uint64_t waiting() const { return queue_.waiting(); }
  bool closed() const { return queue_.closed(); }
  void close() { deliver(queue_.close()); }

 private:
  static nb::dict latencies(const LatencyHistogram& all) {
    const auto seconds = [](auto ns) { return static_cast<double>(ns) * 1e-9; };
    nb::dict one;
    one["count"] = all.count();
    one["mean"] = seconds(all.mean_ns());
    one["p50"] = seconds(all.quantile_ns(0.5));
    one["p99"] = seconds(all.quantile_ns(0.99));
    one["max"] = seconds(all.longest_ns());
    nb::list counts;
    for (size_t bucket = 0; bucket < LatencyHistogram::kBuckets; ++bucket) {
      if (all.count(bucket) == 0) continue;
      counts.append(nb::make_tuple(seconds(LatencyHistogram::limit_ns(bucket)), all.count(bucket)));
    }
    one["histogram"] = counts;
    return one;
  }

  struct Returns {
    CallQueue& queue;
    CallQueue::Call& call;
    ~Returns() { queue.returned(call); }
  };

  // Error kInvalidArgument: the value differs from the first input that had an answer.
  SpecRef checked_spec(nb::handle value) {
    SpecRef spec = spec_of(value.ptr(), last_);
    last_ = spec;
    check(spec);
    return spec;
  }

  void check(const SpecRef& spec) const {
    if (like_ == nullptr || spec == like_ || *spec == *like_) return;
    throw Error(Code::kInvalidArgument, kBatcher,
                "the input is " + describe(*nest_of(spec)) + ", those before are " +
                    describe(*nest_of(like_)) +
                    ": calls share a batch, so names, shapes and dtypes must be the same");
  }

  void run(nb::handle function, const CallQueue::Batch& batch) {
    const SpecRef spec = value_call(batch.front()).spec;
    check(spec);
    const nb::object rows =
        call_helper("_rows_of", function(stacked(spec, batch)), nb::int_(batch.size()));
    if (like_ == nullptr) like_ = spec;
    for (size_t row = 0; row < batch.size(); ++row) value_call(batch[row]).result = rows[row];
  }

  // The inputs as a batch, each copied once if its size is fixed.
  static nb::object stacked(const SpecRef& spec, const CallQueue::Batch& batch) {
    Scratch scratch;
    const auto count = static_cast<uint32_t>(batch.size());
    BlockLayout layout;
    std::shared_ptr<std::byte> memory;
    const auto allocate = [&] {
      memory.reset(static_cast<std::byte*>(operator new (std::max<uint64_t>(layout.bytes(), 1),
                                                         std::align_val_t{64})),
                   [](std::byte* at) { operator delete (at, std::align_val_t{64}); });
    };
    if (spec->fixed()) {
      layout = BlockLayout(*spec, count);
      allocate();
      Chunk chunk(scratch);
      for (uint32_t first = 0; first < count; first += Chunk::kRows) {
        const uint32_t rows = std::min(count - first, Chunk::kRows);
        chunk.reset(spec, rows);
        for (size_t leaf = 0; leaf < spec->leaves().size(); ++leaf) {
          const uint64_t stride = layout.fixed().fields()[leaf].row_bytes;
          chunk.bind(leaf, layout.fixed().column(memory.get(), leaf) + first * stride, stride);
        }
        put(batch, first, rows, chunk, scratch);
      }
    } else {
      Collector collector(scratch, Collector::Lengths::kEqual, nullptr, nullptr);
      collector.begin(spec);
      std::vector<uint64_t> positions(Chunk::kRows);
      for (uint32_t first = 0; first < count; first += Chunk::kRows) {
        const uint32_t rows = std::min(count - first, Chunk::kRows);
        put(batch, first, rows, collector.add(std::span(positions).first(rows)), scratch);
      }
      collector.settle();
      layout = collector.layout(count);
      allocate();
      collector.write(layout, memory.get());
    }
    std::byte* const data = memory.get();
    return batch_object(Block(spec, count, data, layout.bytes(), std::move(memory)));
  }

  static void put(const CallQueue::Batch& batch, uint32_t first, uint32_t rows, Chunk& into,
                  Scratch& scratch) {
    for (uint32_t row = 0; row < rows; ++row) {
      // Held by the call, so never taken over: large rows are copied.
      put_element(value_call(batch[first + row]).input.ptr(), into, row, scratch);
    }
  }

  // Hands over the results of submitted calls, to each sink once.
  static void deliver(const CallQueue::Batch& batch) {
    nb::dict by_sink;
    for (const auto& each : batch) {
      const ValueCall& call = value_call(each);
      if (!each->submitted() || each->abandoned || !CallQueue::ended(*each)) continue;
      const nb::object failure = failure_of(call);
      nb::object items = nb::steal(Py_XNewRef(PyDict_GetItem(by_sink.ptr(), call.sink.ptr())));
      if (!items.is_valid()) by_sink[call.sink] = items = nb::list();
      nb::borrow<nb::list>(items).append(
          nb::make_tuple(call.key, failure.is_valid() ? nb::object(nb::none()) : call.result,
                         failure.is_valid() ? failure : nb::object(nb::none())));
    }
    for (const auto& [sink, items] : by_sink) sink.attr("take")(items);
  }

  CallQueue queue_;
  SpecRef last_;  // guarded by the GIL
  SpecRef like_;  // of the first input that had an answer; guarded by the GIL
};

}  // namespace

void bind_train_batcher(nb::module_& m) {
  nb::class_<ValueCall>(m, "BatcherCall", "Internal: a call that a coroutine waits for.");
  nb::class_<ValueBatcher>(m, "ValueBatcher", "Internal: use penstock.train.Batcher.")
      .def(nb::init<uint64_t, int64_t, uint64_t>(), nb::arg("max_batch"), nb::arg("max_wait_ns"),
           nb::arg("max_queue"))
      .def("call", &ValueBatcher::call, nb::arg("function"), nb::arg("value").none(),
           nb::arg("timeout_ns"))
      .def("submit", &ValueBatcher::submit, nb::arg("value").none(), nb::arg("sink"),
           nb::arg("key"))
      .def("withdraw", &ValueBatcher::withdraw, nb::arg("call"))
      .def("wait_to_lead", &ValueBatcher::wait_to_lead)
      .def(
          "lead", [](ValueBatcher& self, nb::handle function) { self.lead(function, nullptr); },
          nb::arg("function"))
      .def("stats", &ValueBatcher::stats)
      .def("close", &ValueBatcher::close)
      .def_prop_ro("waiting", &ValueBatcher::waiting)
      .def_prop_ro("closed", &ValueBatcher::closed);
}

}  // namespace penstock::python
