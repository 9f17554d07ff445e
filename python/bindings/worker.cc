#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "core.h"
#include "gil.h"
#include "numpy_memory.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "worker_process.h"

namespace nb = nanobind;

namespace penstock::python {

namespace {

// Runs a worker process, after Python has unpacked the dataset.
void serve_process(uint32_t worker, int ring_fd, int arena_fd, int link, uint32_t number,
                   nb::dict s, nb::object source, nb::object collate, nb::object update) {
  PlanSettings plan;
  plan.order.length = nb::cast<uint64_t>(s["length"]);
  plan.order.batch_size = std::max<uint64_t>(nb::cast<uint64_t>(s["batch_size"]), 1);
  plan.order.shuffle = nb::cast<bool>(s["shuffle"]);
  plan.order.seed = nb::cast<uint64_t>(s["seed"]);
  plan.order.drop_last = plan.drop_last = nb::cast<bool>(s["drop_last"]);
  plan.order.rank = nb::cast<uint32_t>(s["rank"]);
  plan.order.world = nb::cast<uint32_t>(s["world"]);
  plan.samples = nb::cast<bool>(s["samples"]);
  plan.retries = nb::cast<uint32_t>(s["retries"]);
  plan.falls_back = nb::cast<bool>(s["falls_back"]);
  plan.covers = nb::cast<bool>(s["covers"]);
  plan.streams = std::max(nb::cast<uint32_t>(s["streams"]), 1u);
  plan.on_error = on_error_of(nb::cast<std::string>(s["on_error"]));
  if (nb::cast<std::string>(s["source"]) == "stream") {
    plan.source = PlanSettings::Source::kStream;
  }
  plan.rekey_globals = true;
  plan.version = nb::cast<uint64_t>(s["version"]);

  WorkerProcess process(worker, ring_fd, arena_fd, link, number, nb::cast<int64_t>(s["pid"]));
  // Samples are copied into the rows of a batch anyway; only whole items are handed over by
  // address.
  if (!plan.samples || !collate.is_none()) {
    install_numpy_memory(process.arena(), nb::cast<size_t>(s["numpy_threshold"]));
  }
  PythonWorker python(plan, source.ptr(), collate.ptr(), update.ptr(), process.ring(),
                      {&process.arena(), number, link});
  serve(process.ring(), worker, python, &process.rows());
}

}  // namespace

void bind_worker(nb::module_& m) {
  m.def("serve_process", &serve_process, nb::arg("worker"), nb::arg("ring"), nb::arg("arena"),
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
