#include <cstring>
#include <utility>

#include "codec.h"
#include "values.h"

namespace penstock::python {

namespace {

struct Bytes {  // the memory of a place
  std::byte* data = nullptr;
  uint64_t bytes = 0;   // bytes from data on
  uint64_t before = 0;  // bytes before data, for negative strides
  Owned owner;          // keeps the memory; null: it is in the packet and must be copied
};

class Decoder {
 public:
  Decoder(std::span<const std::byte> tree, std::span<std::byte> tail, std::shared_ptr<void> owner,
          const ArenaOf& arena_of)
      : at_(tree.data()),
        end_(tree.data() + tree.size()),
        tail_(tail),
        tail_owner_(std::move(owner)),
        arena_of_(arena_of) {}

  PyObject* run() {
    uint32_t bytes;
    if (!get(bytes)) return nullptr;
    return node(0);
  }

 private:
  PyObject* broken() {
    if (PyErr_Occurred() == nullptr) {
      PyErr_SetString(PyExc_RuntimeError,
                      "penstock: a worker's packet does not add up; its memory was overwritten");
    }
    return nullptr;
  }
  bool take(const std::byte*& from, uint64_t n) {
    if (n > static_cast<uint64_t>(end_ - at_)) return broken() != nullptr;
    from = at_;
    at_ += n;
    return true;
  }
  template <class T>
  bool get(T& value) {
    const std::byte* from;
    if (!take(from, sizeof(T))) return false;
    std::memcpy(&value, from, sizeof(T));
    return true;
  }

  bool place(Bytes& out) {
    uint8_t where;
    if (!get(where)) return false;
    if (where == 0) {
      const std::byte* from;
      if (!get(out.bytes) || !take(from, out.bytes)) return false;
      out.data = const_cast<std::byte*>(from);
      return true;
    }
    if (where == 1) {
      BlockRef block;
      uint64_t delta;
      if (!get(block) || !get(delta)) return false;
      auto region = arena_of_(block.arena);
      if (region == nullptr || delta > block.bytes) return broken() != nullptr;
      Lease lease(region, {block.offset, block.bytes, block.generation, 0});
      region->prefault(block.offset, block.bytes);
      out.data = lease.data() + delta;
      out.bytes = block.bytes - delta;
      out.before = delta;
      out.owner = Owned(owner_capsule(lease.owner()));
      return static_cast<bool>(out.owner);
    }
    uint64_t offset;
    if (!get(offset) || !get(out.bytes)) return false;
    if (offset > tail_.size() || out.bytes > tail_.size() - offset) return broken() != nullptr;
    out.data = tail_.data() + offset;
    out.owner = Owned(owner_capsule(tail_owner_));
    return static_cast<bool>(out.owner);
  }

  Owned class_ref() {
    uint32_t n;
    const std::byte* from;
    if (!get(n) || !take(from, n)) return {};
    PyObject* load = helper("penstock.base.interop", "load_class");
    Owned bytes(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(from), n));
    return Owned(load == nullptr || !bytes ? nullptr : PyObject_CallOneArg(load, bytes.get()));
  }

  Owned array() {
    uint8_t flags, ndim, type;
    if (!get(flags) || !get(ndim) || !get(type) || ndim > NPY_MAXDIMS) return Owned(broken());
    if (type != kOtherDtype && !is_number(type)) return Owned(broken());
    Owned dtype = type == kOtherDtype
                      ? class_ref()
                      : Owned(reinterpret_cast<PyObject*>(PyArray_DescrFromType(type)));
    if (!dtype || !PyArray_DescrCheck(dtype.get())) return Owned(broken());
    auto* descr = reinterpret_cast<PyArray_Descr*>(dtype.get());
    npy_intp shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
    uint64_t item = PyDataType_ELSIZE(descr), total = item;
    for (int d = 0; d < ndim; ++d) {
      int64_t n;
      if (!get(n) || n < 0) return Owned(broken());
      shape[d] = n;
      if (__builtin_mul_overflow(total, static_cast<uint64_t>(n), &total)) return Owned(broken());
    }
    uint64_t below = 0, above = total;
    bool contiguous = (flags & 1) != 0;
    if (!contiguous) {
      above = item;
      for (int d = 0; d < ndim; ++d) {
        int64_t stride;
        if (!get(stride)) return {};
        strides[d] = stride;
        if (shape[d] == 0) continue;
        uint64_t step = stride < 0 ? 0 - static_cast<uint64_t>(stride) : stride, span;
        uint64_t& side = stride < 0 ? below : above;
        if (__builtin_mul_overflow(step, static_cast<uint64_t>(shape[d] - 1), &span) ||
            __builtin_add_overflow(side, span, &side)) {
          return Owned(broken());
        }
      }
      if (total == 0) below = above = 0;
    }
    Bytes bytes;
    if (!place(bytes)) return {};
    if (above > bytes.bytes || below > bytes.before) return Owned(broken());
    // Without gaps: otherwise the array's memory would have another size.
    if (!bytes.owner && (above != total || bytes.bytes < total)) return Owned(broken());
    dtype.release();  // now owned by the array
    if (!bytes.owner) {
      Owned made(PyArray_NewFromDescr(&PyArray_Type, descr, ndim, shape,
                                      contiguous ? nullptr : strides, nullptr, 0, nullptr));
      if (!made) return {};
      auto* array = reinterpret_cast<PyArrayObject*>(made.get());
      std::memcpy(PyArray_DATA(array), bytes.data, total);
      if ((flags & 2) != 0) PyArray_CLEARFLAGS(array, NPY_ARRAY_WRITEABLE);
      return made;
    }
    int writeable = (flags & 2) != 0 ? 0 : NPY_ARRAY_WRITEABLE;
    Owned made(PyArray_NewFromDescr(&PyArray_Type, descr, ndim, shape,
                                    contiguous ? nullptr : strides, bytes.data, writeable,
                                    nullptr));
    if (made && PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(made.get()),
                                      bytes.owner.release()) != 0) {
      return {};
    }
    return made;
  }

  PyObject* sequence(bool list, int depth, PyObject* cls = nullptr) {
    uint32_t n;
    if (!get(n) || n > static_cast<uint64_t>(end_ - at_)) return broken();
    Owned made(list ? PyList_New(n) : PyTuple_New(n));
    if (!made) return nullptr;
    for (uint32_t i = 0; i < n; ++i) {
      PyObject* item = node(depth + 1);
      if (item == nullptr) return nullptr;
      if (list) {
        PyList_SET_ITEM(made.get(), i, item);
      } else {
        PyTuple_SET_ITEM(made.get(), i, item);
      }
    }
    if (cls == nullptr) return made.release();
    return PyObject_CallMethod(cls, "_make", "(O)", made.get());
  }

  PyObject* dict(int depth) {
    uint32_t n;
    if (!get(n)) return nullptr;
    Owned made(PyDict_New());
    for (uint32_t i = 0; made && i < n; ++i) {
      Owned key(node(depth + 1));
      if (!key) return nullptr;
      Owned item(node(depth + 1));
      if (!item || PyDict_SetItem(made.get(), key.get(), item.get()) != 0) return nullptr;
    }
    return made.release();
  }

  PyObject* pickled() {
    Bytes pickle;
    uint32_t n;
    if (!place(pickle) || !get(n)) return nullptr;
    Owned buffers(PyList_New(0));
    for (uint32_t i = 0; buffers && i < n; ++i) {
      Bytes part;
      if (!place(part)) return nullptr;
      // The buffer is an array: it keeps the lease for all objects made from it.
      npy_intp size = static_cast<npy_intp>(part.bytes);
      Owned over(part.owner ? PyArray_New(&PyArray_Type, 1, &size, NPY_UINT8, nullptr, part.data, 0,
                                          NPY_ARRAY_CARRAY, nullptr)
                            : PyArray_SimpleNew(1, &size, NPY_UINT8));
      if (!over) return nullptr;
      auto* array = reinterpret_cast<PyArrayObject*>(over.get());
      if (!part.owner) {
        std::memcpy(PyArray_DATA(array), part.data, part.bytes);
      } else if (PyArray_SetBaseObject(array, part.owner.release()) != 0) {
        return nullptr;
      }
      if (PyList_Append(buffers.get(), over.get()) != 0) return nullptr;
    }
    Owned view(PyMemoryView_FromMemory(reinterpret_cast<char*>(pickle.data),
                                       static_cast<Py_ssize_t>(pickle.bytes), PyBUF_READ));
    PyObject* load = helper("penstock.base.interop", "load");
    if (!buffers || !view || load == nullptr) return nullptr;
    return PyObject_CallFunctionObjArgs(load, view.get(), buffers.get(), nullptr);
  }

  PyObject* node(int depth) {
    char kind;
    if (!get(kind) || depth > kMaxDepth + 1) return broken();
    const std::byte* from;
    uint32_t n;
    switch (kind) {
      case 'N':
        return Py_NewRef(Py_None);
      case 'b': {
        uint8_t value;
        return get(value) ? PyBool_FromLong(value) : nullptr;
      }
      case 'i': {
        int64_t value;
        return get(value) ? PyLong_FromLongLong(value) : nullptr;
      }
      case 'f': {
        double value;
        return get(value) ? PyFloat_FromDouble(value) : nullptr;
      }
      case 's':
        if (!get(n) || !take(from, n)) return nullptr;
        return PyUnicode_FromStringAndSize(reinterpret_cast<const char*>(from), n);
      case 'y':
        if (!get(n) || !take(from, n)) return nullptr;
        return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(from), n);
      case 'A':
        return array().release();
      case 'S': {
        Owned made = array();
        return made ? PyArray_Return(reinterpret_cast<PyArrayObject*>(made.release())) : nullptr;
      }
      case 'X': {
        char array_kind;
        if (!get(n) || !take(from, n) || !get(array_kind)) return nullptr;
        Owned made = array();
        PyObject* convert = helper("penstock.base.interop", "tensor_of_array");
        if (!made || convert == nullptr) return nullptr;
        return PyObject_CallFunction(convert, "Os#", made.get(),
                                     reinterpret_cast<const char*>(from), Py_ssize_t{n});
      }
      case 'T':
        return sequence(false, depth);
      case 'L':
        return sequence(true, depth);
      case 'M': {
        Owned cls = class_ref();
        return cls ? sequence(false, depth, cls.get()) : nullptr;
      }
      case 'D':
        return dict(depth);
      case 'C': {
        Owned cls = class_ref();
        if (!cls) return nullptr;
        Owned fields(node(depth + 1));
        PyObject* make = helper("penstock.base.interop", "make_dataclass");
        if (!fields || make == nullptr) return nullptr;
        return PyObject_CallFunctionObjArgs(make, cls.get(), fields.get(), nullptr);
      }
      case 'P':
        return pickled();
      default:
        return broken();
    }
  }

  const std::byte* at_;
  const std::byte* end_;
  std::span<std::byte> tail_;
  std::shared_ptr<void> tail_owner_;
  const ArenaOf& arena_of_;
};

}  // namespace

PyObject* decode(std::span<const std::byte> tree, std::span<std::byte> tail,
                 std::shared_ptr<void> tail_owner, const ArenaOf& arena_of) {
  return Decoder(tree, tail, std::move(tail_owner), arena_of).run();
}

}  // namespace penstock::python
