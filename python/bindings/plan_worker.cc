#include "plan_worker.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "dataset.h"
#include "gil.h"
#include "penstock/pipeline/stages/losses.h"
#include "python_op.h"
#include "worker_process.h"

namespace nb = nanobind;

namespace penstock::python {

void PacketOutlet::rows(Slot& slot, uint64_t bytes, std::vector<Outcome::Loss> losses) {
  if (losses.empty()) {
    slot.finish_inline(ResultKind::kRows, bytes, {});
    return;
  }
  // A ticket of single elements, with Python in their chain, is one element.
  for (Outcome::Loss& loss : losses) {
    if (loss.error == nullptr) continue;
    return fail(slot, slot.ticket(), {loss.stage, loss.index, loss.error});
  }
  WithGil locked;
  nb::list list;
  for (const Outcome::Loss& loss : losses) {
    nb::object reason = nb::steal(PyUnicode_DecodeUTF8(
        loss.reason.data(), static_cast<Py_ssize_t>(loss.reason.size()), "backslashreplace"));
    list.append(nb::make_tuple(loss.row, loss.index, reason, loss.replaced, loss.gap));
  }
  if (!packets_.encode(list.ptr())) throw nb::python_error();
  packets_.send(slot, ResultKind::kRows, bytes);
}

void PacketOutlet::item(Slot&, const Ticket&, void*, std::vector<Outcome::Loss>) {
  throw Error(Code::kInternal, "worker", "a C++ object cannot leave its process");
}

namespace {

nb::object text_object(const std::string& text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

// The failure's exception as bytes. With the GIL held.
nb::object packed(const Failure& failure, const std::string& where, const Ticket& ticket) {
  Owned exception(exception_of(failure.error));
  PyObject* pack = helper("penstock.errors", "pack_exception");
  if (pack == nullptr) throw nb::python_error();
  return nb::borrow(pack)(nb::handle(exception.get()), where, ticket.epoch, failure.position);
}

}  // namespace

void PacketOutlet::element(Slot& slot, const Ticket& ticket, uint64_t bytes,
                           ParallelMapResult result) {
  const ResultKind kind = result.failure ? ResultKind::kError : ResultKind::kRows;
  if (!result.failure && result.notes.empty()) {
    slot.finish_inline(kind, bytes, {});
    return;
  }
  WithGil locked;
  auto entry = [&](const Failure& failure, bool whole) {
    const std::string where =
        "worker " + std::to_string(slot.claim().worker) + ", " + failure.stage;
    return nb::make_tuple(whole ? packed(failure, where, ticket) : nb::none(),
                          text_object(failure.stage), failure.position,
                          text_object(text_of(failure.error)),
                          static_cast<uint32_t>(failure.decision), failure.unsure);
  };
  nb::list notes;
  for (const Failure& lost : result.notes) notes.append(entry(lost, false));
  nb::object failed = nb::none();
  if (result.failure) failed = entry(*result.failure, !result.failure->settled());
  if (!packets_.encode(nb::make_tuple(failed, notes).ptr())) throw nb::python_error();
  packets_.send(slot, kind, bytes);
}

void PacketOutlet::fail(Slot& slot, const Ticket& ticket, Failure failure) {
  WithGil locked;
  Owned exception(exception_of(failure.error));
  PyObject* pack = helper("penstock.errors", "pack_exception");
  std::string name = "worker " + std::to_string(slot.claim().worker) + ", " + failure.stage;
  Owned packed(pack == nullptr
                   ? nullptr
                   : PyObject_CallFunction(pack, "OsKK", exception.get(), name.c_str(),
                                           static_cast<unsigned long long>(ticket.epoch),
                                           static_cast<unsigned long long>(failure.position)));
  Owned value;
  if (packed) {
    value = Owned(Py_BuildValue("(OIKIL)", packed.get(), 0U,
                                static_cast<unsigned long long>(failure.position),
                                slot.claim().worker, -1LL));
  }
  if (!value || !packets_.encode(value.get())) {
    PyErr_Clear();
    slot.finish_inline(ResultKind::kError, 0, {});
    return;
  }
  packets_.send(slot, ResultKind::kError, 0);
}

namespace {

// Runs a worker process of a Dataset, after Python has unpacked the Dataset.
void serve_plan(uint32_t worker, int ring_fd, int arena_fd, int link, uint32_t number, nb::dict s,
                const BuiltPlan& built) {
  WorkerProcess process(worker, ring_fd, arena_fd, link, number, nb::cast<int64_t>(s["pid"]));
  rekey_globals_for_elements();
  Packets packets(process.arena(), number, link, process.ring(),
                  process.ring().place(worker).counters);
  ChainWorker::Options options{nb::cast<uint64_t>(s["seed"]), nb::cast<uint32_t>(s["retries"]),
                               nb::cast<std::string>(s["on_error"]) == "skip"};
  WithoutGil unlocked;
  std::unique_ptr<TicketRunner> chain = worker_of_plan(
      built.plan, options, process.ring(), [&] { return std::make_unique<PacketOutlet>(packets); });
  serve(process.ring(), worker, *chain, &process.rows());
}

}  // namespace

void bind_plan_worker(nb::module_& m) {
  m.def("serve_plan", &serve_plan, nb::arg("worker"), nb::arg("ring"), nb::arg("arena"),
        nb::arg("link"), nb::arg("number"), nb::arg("settings"), nb::arg("plan"));
}

}  // namespace penstock::python
