#pragma once

namespace nanobind {
class module_;
}

namespace penstock::python {

// Writing TFRecord files, and the bytes of tf.Examples.
void bind_tfrecord(nanobind::module_& m);

}  // namespace penstock::python
