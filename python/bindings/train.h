#pragma once

#include <string>

namespace nanobind {
class list;
class module_;
}  // namespace nanobind

namespace penstock::train {
class Layout;
struct Threading;
}  // namespace penstock::train

namespace penstock::python {

// From pairs (name, lengths).
train::Layout layout_of(nanobind::list blocks);

// Slabs of weights, which penstock.train wraps.
void bind_train_slab(nanobind::module_& m);

// Schedules, optimizers and updaters.
void bind_train_updater(nanobind::module_& m);

// Python threads, named "name 0", "name 1", ..., that run Python steps; Ctrl-C ends a wait for
// them.
train::Threading python_threads(std::string name);

// A Hogwild with steps that are Python; the board and a worker, for worker processes.
void bind_train_hogwild(nanobind::module_& m);

// Towers with steps that are Python.
void bind_train_towers(nanobind::module_& m);

// Batches in memory that a worker process of a Hogwild reads.
void bind_train_batch(nanobind::module_& m);

// Parameters and updaters in files.
void bind_train_files(nanobind::module_& m);

// The two ends of publish and attach.
void bind_train_publish(nanobind::module_& m);

// The two ends of a parameter server.
void bind_train_server(nanobind::module_& m);

// The two ends of a channel.
void bind_train_channel(nanobind::module_& m);

}  // namespace penstock::python
