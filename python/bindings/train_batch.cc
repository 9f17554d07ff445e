#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "codec.h"
#include "gil.h"
#include "module.h"
#include "penstock/base/error.h"
#include "train.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

constexpr uint64_t kLongCopy = 1 << 20;  // bytes; for longer copies the GIL is released

// A writable buffer, held until this is destroyed. REQUIRED: the GIL at construction and
// destruction.
class Memory {
 public:
  explicit Memory(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_WRITABLE) != 0) throw nb::python_error();
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { PyBuffer_Release(&view_); }
  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

// Writes a batch, and returns the bytes of `memory` that it needs; if `memory` has fewer, nothing
// was written. None: the batch needs a pickle.
std::optional<uint64_t> write_batch(nb::handle batch, nb::handle memory) {
  WorkerCounters uncounted{};
  Encoder encoder(Encoder::Tailed::kPlain, uncounted);
  if (!encoder.encode(batch.ptr())) {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return std::nullopt;
  }
  const Memory held(memory);
  const auto tree = encoder.tree();
  const uint64_t end =
      encoder.has_tail() ? encoder.tail_offset() + encoder.tail_bytes() : tree.size();
  if (end <= held.bytes().size()) {
    std::byte* to = held.bytes().data();
    std::memcpy(to, tree.data(), tree.size());
    to += encoder.tail_offset();
    if (end < kLongCopy) {
      encoder.write_tail(to);
    } else {
      WithoutGil unlocked;
      encoder.write_tail(to);
    }
  }
  return end;
}

// Reads the batch that write_batch() wrote; its arrays are views of `memory` and keep it.
nb::object read_batch(nb::handle memory) {
  auto held = std::make_shared<Memory>(memory);
  const std::span<std::byte> all = held->bytes();
  uint32_t tree = 0;
  if (all.size() >= sizeof(tree)) std::memcpy(&tree, all.data(), sizeof(tree));
  if (tree < sizeof(tree) || tree > all.size()) {
    throw Error(Code::kInternal, "Hogwild", "a batch longer than its memory");
  }
  const uint64_t tail = std::min<uint64_t>(Encoder::tail_offset(tree), all.size());
  PyObject* made = decode(all.first(tree), all.subspan(tail), std::move(held),
                          [](uint32_t) { return std::shared_ptr<Region>(); });
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

}  // namespace

void bind_train_batch(nb::module_& m) {
  m.def("write_batch", &write_batch, nb::arg("batch").none(), nb::arg("memory"));
  m.def("read_batch", &read_batch, nb::arg("memory"));
}

}  // namespace penstock::python
