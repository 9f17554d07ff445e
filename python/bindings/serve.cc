#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "dataset.h"
#include "gil.h"
#include "module.h"
#include "numpy_memory.h"
#include "packet_outlet.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/pipeline/engine/plan_engine.h"
#include "python_op.h"
#include "python_worker.h"
#include "worker_process.h"

namespace nb = nanobind;

namespace penstock::python {

namespace {

// Runs a worker process of a data set or generator, after Python has unpacked it.
void serve_samples(uint32_t worker, int ring_fd, int arena_fd, int link, uint32_t number,
                   nb::dict s, nb::object source, nb::object collate, nb::object update) {
  SampleSettings samples = sample_settings_of(s);
  samples.rekey_globals = true;
  samples.version = setting<uint64_t>(s, "version");

  WorkerProcess process(worker, ring_fd, arena_fd, link, number, nb::cast<int64_t>(s["pid"]));
  // Samples are copied into the rows of a batch anyway; only whole items are handed over by
  // address.
  if (!samples.samples || !collate.is_none()) {
    install_numpy_memory(process.arena(), nb::cast<size_t>(s["numpy_threshold"]));
  }
  PythonWorker python(samples, source.ptr(), collate.ptr(), update.ptr(), process.ring(),
                      {&process.arena(), number, link});
  serve(process.ring(), worker, python, &process.memory());
}

// Runs a worker process of a Dataset, after Python has unpacked the Dataset.
void serve_chain(uint32_t worker, int ring_fd, int arena_fd, int link, uint32_t number, nb::dict s,
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
  serve(process.ring(), worker, *chain, &process.memory());
}

}  // namespace

void bind_serve(nb::module_& m) {
  m.def("serve_chain", &serve_chain, nb::arg("worker"), nb::arg("ring"), nb::arg("arena"),
        nb::arg("link"), nb::arg("number"), nb::arg("settings"), nb::arg("plan"));
  m.def("serve_samples", &serve_samples, nb::arg("worker"), nb::arg("ring"), nb::arg("arena"),
        nb::arg("link"), nb::arg("number"), nb::arg("settings"), nb::arg("source"),
        nb::arg("collate").none(), nb::arg("update").none());
  m.def("keep_freed_memory", &os::keep_freed_memory);
  m.def("link_pair", [] {
    auto [a, b] = link_pair();
    return nb::make_tuple(a.release(), b.release());
  });
  m.def("report_failure", [](int link, nb::bytes packed) {
    LinkHeader header{LinkMessage::kFailed, 0, 0, packed.size()};
    link_send(link, header, {static_cast<const std::byte*>(packed.data()), packed.size()});
  });
  m.def("receive_update", [](int link) {
    LinkHeader header;
    os::Fd descriptor;
    bool there;
    {
      WithoutGil unlocked;
      there = link_receive(link, header, descriptor);
    }
    if (!there) throw Error(Code::kClosed, "worker", "the consumer is gone");
    return nb::make_tuple(header.number, descriptor.release());
  });
}

}  // namespace penstock::python
