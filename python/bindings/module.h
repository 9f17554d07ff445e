#pragma once

namespace nanobind {
class module_;
}

// The parts of the extension: each adds its classes and functions to the module.
namespace penstock {

// A fast hash of large buffers, to detect changes.
void bind_digest(nanobind::module_& m);

// System calls that Python's os module lacks, at least if it was built against an old C library.
void bind_os(nanobind::module_& m);

// Keyed random numbers.
void bind_random(nanobind::module_& m);

}  // namespace penstock

namespace penstock::python {

// Loaders, Datasets, their elements, and several consumers of one Loader.
void bind_python_loader(nanobind::module_& m);
void bind_epoch_iterator(nanobind::module_& m);
void bind_dataset(nanobind::module_& m);
// The plan of a Loader over arrays.
void bind_columns(nanobind::module_& m);
void bind_elements(nanobind::module_& m);
void bind_feeds(nanobind::module_& m);

// What worker processes call: serving tickets, and the link to the consumer's process.
void bind_serve(nanobind::module_& m);

// Workers on other hosts: their connections, and what their processes call.
void bind_remote(nanobind::module_& m);

// The order of a shuffled epoch, for use without a Loader.
void bind_permutation(nanobind::module_& m);

// Staging of batches on a CUDA device.
void bind_device(nanobind::module_& m);

// Files of URLs, by Python's fsspec.
void bind_remote_files(nanobind::module_& m);

// Passes over whole files, for the command line.
void bind_survey(nanobind::module_& m);

// Writing TFRecord files, and the bytes of tf.Examples.
void bind_tfrecord(nanobind::module_& m);

// Files that appear when they are complete, for the command line.
void bind_file_writer(nanobind::module_& m);

// The operations of penstock.image. REQUIRED: bind_dataset() was called.
void bind_image_operations(nanobind::module_& m);
// What penstock.device needs to apply these operations on a device.
void bind_image_numbers(nanobind::module_& m);

// Writing tar archives, and passes over them for the command line.
void bind_tar(nanobind::module_& m);

// Slabs of weights, which penstock.train wraps.
void bind_train_slab(nanobind::module_& m);

// Schedules, optimizers and updaters.
void bind_train_updater(nanobind::module_& m);

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

// Published weights that are sent to other hosts.
void bind_train_relay(nanobind::module_& m);

// The two ends of a parameter server.
void bind_train_server(nanobind::module_& m);

// One shard of a parameter server on several hosts, and its snapshots.
void bind_train_hosted(nanobind::module_& m);

// The two ends of a channel.
void bind_train_channel(nanobind::module_& m);

// One function for many callers, in Python.
void bind_train_batcher(nanobind::module_& m);

// The queue of Online, and its sources. REQUIRED of bind_mqtt(): bind_online() was called.
void bind_online(nanobind::module_& m);
void bind_mqtt(nanobind::module_& m);

}  // namespace penstock::python
