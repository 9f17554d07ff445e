#include "codec.h"

#include <cstring>
#include <utility>

#include "penstock/memory/copy.h"

namespace penstock::python {

namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kInlineBytes = 256;
constexpr int kVariableString = 2056;  // NPY_VSTRING
constexpr uint8_t kOtherDtype = 255;

bool only_ours(PyObject* object) {
#ifdef Py_GIL_DISABLED
  (void)object;
  return false;  // other threads' counts are not visible: always copy
#else
  return Py_REFCNT(object) == 1;
#endif
}

bool plain_dtype(PyArray_Descr* descr) {
  int type = descr->type_num;
  return type >= 0 && type < NPY_OBJECT && PyArray_ISNBO(descr->byteorder);
}

bool needs_pickle(PyArray_Descr* descr) {
  return PyDataType_FLAGCHK(descr, NPY_ITEM_REFCOUNT) || descr->type_num == kVariableString;
}

bool is_namedtuple(PyObject* value) {
  return PyTuple_Check(value) && !PyTuple_CheckExact(value) &&
         PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(value)), "_fields");
}

// A dataclass that is nothing but its __dict__.
bool is_plain_dataclass(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) return false;
  PyObject* cls = reinterpret_cast<PyObject*>(type);
  if (!PyObject_HasAttrString(cls, "__dataclass_fields__")) return false;
  PyObject* check = helper("penstock._interop", "is_plain_dataclass");
  if (check == nullptr) {
    PyErr_Clear();
    return false;
  }
  Owned answer(PyObject_CallOneArg(check, cls));
  if (!answer) PyErr_Clear();
  return answer.get() == Py_True;
}

bool is_torch_tensor(PyObject* value) {
  PyObject* type = torch_tensor_type();
  return type != nullptr && reinterpret_cast<PyObject*>(Py_TYPE(value)) == type;
}

// (ndarray over the tensor's memory, dtype name), or None for what is no plain CPU tensor.
Owned array_of_tensor(PyObject* tensor) {
  PyObject* convert = helper("penstock._interop", "array_of_tensor");
  return Owned(convert == nullptr ? nullptr : PyObject_CallOneArg(convert, tensor));
}

}  // namespace

bool owns_its_memory(PyArrayObject* array, bool unique, PyArrayObject*& root, CopyReason& reason) {
  root = array;
  if (!unique) {
    reason = CopyReason::kReferenced;
    return false;
  }
  while (PyObject* base = PyArray_BASE(root)) {
    if (!PyArray_CheckExact(base)) {
      reason = CopyReason::kForeign;
      return false;
    }
    if (!only_ours(base)) {
      reason = CopyReason::kNotOwned;
      return false;
    }
    root = reinterpret_cast<PyArrayObject*>(base);
  }
  if (!PyArray_CHKFLAGS(root, NPY_ARRAY_OWNDATA)) {
    reason = CopyReason::kForeign;
    return false;
  }
  return true;
}

// ---- encoding
// ------------------------------------------------------------------------------------

void Encoder::put(const void* bytes, size_t n) {
  const auto* from = static_cast<const std::byte*>(bytes);
  tree_.insert(tree_.end(), from, from + n);
}

void Encoder::count(size_t n) { put(static_cast<uint32_t>(n)); }

void Encoder::write_tail(std::byte* to) const {
  for (const Tail& part : tail_) std::memcpy(to + part.offset, part.data, part.bytes);
}

bool Encoder::encode(PyObject* value) {
  tree_.clear();
  tail_.clear();
  tail_bytes_ = payload_ = 0;
  put(uint32_t{0});
  shared_.clear();
  if (!node(value, only_ours(value), 0)) {
    for (const penstock::Ref& ref : shared_) arena_.region()->return_lease(ref);
    return false;
  }
  auto bytes = static_cast<uint32_t>(tree_.size());
  std::memcpy(tree_.data(), &bytes, sizeof(bytes));
  return true;
}

bool Encoder::node(PyObject* value, bool unique, int depth) {
  if (PyArray_CheckExact(value)) return array(reinterpret_cast<PyArrayObject*>(value), unique);
  if (value == Py_None) {
    put('N');
  } else if (PyBool_Check(value)) {
    put('b');
    put(static_cast<uint8_t>(value == Py_True));
  } else if (PyLong_CheckExact(value)) {
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return pickled(value);
    put('i');
    put(static_cast<int64_t>(number));
  } else if (PyFloat_CheckExact(value)) {
    put('f');
    put(PyFloat_AS_DOUBLE(value));
  } else if (PyUnicode_CheckExact(value)) {
    Py_ssize_t n;
    const char* text = PyUnicode_AsUTF8AndSize(value, &n);
    if (text == nullptr) {
      PyErr_Clear();  // lone surrogates
      return pickled(value);
    }
    if (n > (1 << 16)) return pickled(value);
    put('s');
    count(n);
    put(text, n);
  } else if (PyBytes_CheckExact(value) && PyBytes_GET_SIZE(value) <= (1 << 16)) {
    put('y');
    count(PyBytes_GET_SIZE(value));
    put(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value));
  } else if (depth >= kMaxDepth) {
    return pickled(value);
  } else if (PyTuple_CheckExact(value) || is_namedtuple(value)) {
    if (PyTuple_CheckExact(value)) {
      put('T');
    } else {
      put('M');
      if (!class_ref(reinterpret_cast<PyObject*>(Py_TYPE(value)))) return false;
    }
    count(PyTuple_GET_SIZE(value));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
      PyObject* item = PyTuple_GET_ITEM(value, i);
      if (!node(item, unique && only_ours(item), depth + 1)) return false;
    }
  } else if (PyList_CheckExact(value)) {
    put('L');
    count(PyList_GET_SIZE(value));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); ++i) {
      PyObject* item = PyList_GET_ITEM(value, i);
      if (!node(item, unique && only_ours(item), depth + 1)) return false;
    }
  } else if (PyDict_CheckExact(value) || is_plain_dataclass(value)) {
    Owned fields;
    PyObject* dict = value;
    if (!PyDict_CheckExact(value)) {
      put('C');
      if (!class_ref(reinterpret_cast<PyObject*>(Py_TYPE(value)))) return false;
      fields = Owned(PyObject_GetAttrString(value, "__dict__"));
      if (!fields) return false;
      dict = fields.get();
    }
    put('D');
    count(PyDict_GET_SIZE(dict));
    Py_ssize_t at = 0;
    PyObject *key, *item;
    while (PyDict_Next(dict, &at, &key, &item)) {
      if (!node(key, false, depth + 1)) return false;
      if (!node(item, unique && only_ours(item), depth + 1)) return false;
    }
  } else if (PyArray_IsScalar(value, Generic) && !PyArray_IsScalar(value, Void)) {
    Owned zero_d(PyArray_FromScalar(value, nullptr));
    if (!zero_d) return false;
    if (needs_pickle(PyArray_DESCR(reinterpret_cast<PyArrayObject*>(zero_d.get())))) {
      return pickled(value);
    }
    size_t at = tree_.size();
    if (!array(reinterpret_cast<PyArrayObject*>(zero_d.get()), false)) return false;
    tree_[at] = std::byte{'S'};
  } else if (is_torch_tensor(value)) {
    Owned pair = array_of_tensor(value);
    if (!pair) return false;
    if (pair.get() == Py_None) return pickled(value);
    put('X');
    Py_ssize_t n;
    const char* name = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(pair.get(), 1), &n);
    if (name == nullptr) return false;
    count(n);
    put(name, n);
    return array(reinterpret_cast<PyArrayObject*>(PyTuple_GET_ITEM(pair.get(), 0)), unique);
  } else {
    return pickled(value);
  }
  return true;
}

bool Encoder::class_ref(PyObject* type) {
  PyObject* dump = helper("penstock._interop", "dump_class");
  Owned bytes(dump == nullptr ? nullptr : PyObject_CallOneArg(dump, type));
  if (!bytes) return false;
  count(PyBytes_GET_SIZE(bytes.get()));
  put(PyBytes_AS_STRING(bytes.get()), PyBytes_GET_SIZE(bytes.get()));
  return true;
}

void Encoder::put_block(void* block, const void* data) {
  auto ref = arena_.share(block);
  shared_.push_back(*ref);
  put(uint8_t{1});
  put(BlockRef{ref->offset, ref->bytes, ref->generation, number_});
  put(static_cast<uint64_t>(static_cast<const std::byte*>(data) - static_cast<std::byte*>(block)));
}

bool Encoder::array(PyArrayObject* array, bool unique) {
  PyArray_Descr* descr = PyArray_DESCR(array);
  if (needs_pickle(descr)) return pickled(reinterpret_cast<PyObject*>(array));
  size_t bytes = PyArray_NBYTES(array);
  CopyReason reason = CopyReason::kSmall;
  void* block = nullptr;
  if (bytes > kInlineBytes) {
    PyArrayObject* root;
    if (owns_its_memory(array, unique, root, reason)) {
      block = arena_.contains(PyArray_DATA(root)) ? arena_.block_of(PyArray_DATA(root)) : nullptr;
      if (block != PyArray_DATA(root)) block = nullptr;
      reason = CopyReason::kForeign;
      if (block != nullptr && bytes < arena_.bytes_of(block) / 2) {
        block = nullptr;
        reason = CopyReason::kSparse;
      }
    }
  }
  bool contiguous = block == nullptr || PyArray_IS_C_CONTIGUOUS(array);
  put('A');
  put(static_cast<uint8_t>((contiguous ? 1 : 0) | (PyArray_ISWRITEABLE(array) ? 0 : 2)));
  put(static_cast<uint8_t>(PyArray_NDIM(array)));
  if (plain_dtype(descr)) {
    put(static_cast<uint8_t>(descr->type_num));
  } else {
    put(kOtherDtype);
    if (!class_ref(reinterpret_cast<PyObject*>(descr))) return false;
  }
  for (int d = 0; d < PyArray_NDIM(array); ++d) put(static_cast<int64_t>(PyArray_DIM(array, d)));
  if (!contiguous) {
    for (int d = 0; d < PyArray_NDIM(array); ++d) {
      put(static_cast<int64_t>(PyArray_STRIDE(array, d)));
    }
  }
  payload_ += bytes;
  if (block != nullptr) {
    put_block(block, PyArray_DATA(array));
    count_avoided_copy(counters_, bytes);
  } else {
    place_array(array, reason);
    if (PyErr_Occurred() != nullptr) return false;
  }
  return true;
}

// Copies an array's elements, in C order, to where they can travel from.
void Encoder::place_array(PyArrayObject* array, CopyReason reason) {
  if (PyArray_IS_C_CONTIGUOUS(array)) {
    place_bytes(PyArray_DATA(array), PyArray_NBYTES(array), reason,
                reinterpret_cast<PyObject*>(array));
    return;
  }
  size_t bytes = PyArray_NBYTES(array);
  void* block = bytes > kInlineBytes ? arena_.allocate(bytes) : nullptr;
  if (block == nullptr) {
    Owned copy(PyArray_NewCopy(array, NPY_CORDER));
    if (!copy) return;
    auto* copied = reinterpret_cast<PyArrayObject*>(copy.get());
    place_bytes(PyArray_DATA(copied), bytes, reason, copy.get());
    return;
  }
  // NumPy does the strided copy, into an array laid over the block.
  Py_INCREF(PyArray_DESCR(array));
  Owned over(PyArray_NewFromDescr(&PyArray_Type, PyArray_DESCR(array), PyArray_NDIM(array),
                                  PyArray_DIMS(array), nullptr, block, NPY_ARRAY_CARRAY, nullptr));
  if (over && PyArray_CopyInto(reinterpret_cast<PyArrayObject*>(over.get()), array) == 0) {
    put_block(block, block);
    count_copy(counters_, reason, bytes);
  }
  over = Owned();
  arena_.release(block);
}

void Encoder::place_bytes(const void* data, size_t bytes, CopyReason reason, PyObject* keep) {
  if (bytes <= kInlineBytes) {
    put(uint8_t{0});
    put(static_cast<uint64_t>(bytes));
    put(data, bytes);
    count_copy(counters_, CopyReason::kSmall, bytes);
    return;
  }
  if (void* block = arena_.allocate(bytes)) {
    copy_stream(block, data, bytes);
    put_block(block, block);
    arena_.release(block);
    count_copy(counters_, reason, bytes);
    return;
  }
  put(uint8_t{2});
  put(tail_bytes_);
  put(static_cast<uint64_t>(bytes));
  tail_.push_back({tail_bytes_, bytes, data, Owned::borrow(keep)});
  tail_bytes_ += (bytes + 63) / 64 * 64;
  count_copy(counters_, CopyReason::kNoRoom, bytes);
}

bool Encoder::pickled(PyObject* value) {
  PyObject* dump = helper("penstock._interop", "dump");
  Owned pair(dump == nullptr ? nullptr : PyObject_CallOneArg(dump, value));
  if (!pair) return false;
  PyObject* bytes = PyTuple_GET_ITEM(pair.get(), 0);
  PyObject* buffers = PyTuple_GET_ITEM(pair.get(), 1);
  put('P');
  payload_ += PyBytes_GET_SIZE(bytes);
  place_bytes(PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes), CopyReason::kPickled, bytes);
  count(PyList_GET_SIZE(buffers));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(buffers); ++i) {
    PyObject* view = PyList_GET_ITEM(buffers, i);
    Py_buffer* buffer = PyMemoryView_GET_BUFFER(view);
    payload_ += buffer->len;
    place_bytes(buffer->buf, buffer->len, CopyReason::kPickled, view);
  }
  return true;
}

// ---- decoding
// ------------------------------------------------------------------------------------

namespace {

struct Bytes {  // what a place names
  std::byte* data = nullptr;
  uint64_t bytes = 0;   // from data on
  uint64_t before = 0;  // and before it, for negative strides
  Owned owner;          // keeps it; null: lives in the packet, copy it
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
    PyObject* load = helper("penstock._interop", "load_class");
    Owned bytes(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(from), n));
    return Owned(load == nullptr || !bytes ? nullptr : PyObject_CallOneArg(load, bytes.get()));
  }

  Owned array() {
    uint8_t flags, ndim, type;
    if (!get(flags) || !get(ndim) || !get(type) || ndim > NPY_MAXDIMS) return Owned(broken());
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
        uint64_t span = static_cast<uint64_t>(stride < 0 ? -stride : stride) *
                        static_cast<uint64_t>(shape[d] - 1);
        (stride < 0 ? below : above) += span;
      }
      if (total == 0) below = above = 0;
    }
    Bytes bytes;
    if (!place(bytes)) return {};
    if (above > bytes.bytes || below > bytes.before) return Owned(broken());
    dtype.release();  // the array's now
    if (!bytes.owner) {
      Owned made(
          PyArray_NewFromDescr(&PyArray_Type, descr, ndim, shape, nullptr, nullptr, 0, nullptr));
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
      // An array as the buffer: it keeps the lease, whatever is made from it.
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
    PyObject* load = helper("penstock._interop", "load");
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
        PyObject* convert = helper("penstock._interop", "tensor_of_array");
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
        PyObject* make = helper("penstock._interop", "make_dataclass");
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

// ---- in the same process
// -------------------------------------------------------------------------

namespace {

// The value to use instead of `value` (a new reference), which may be `value` itself.
PyObject* detached(PyObject* value, bool unique, int depth, WorkerCounters& counters,
                   uint64_t& bytes) {
  if (PyArray_Check(value)) {
    auto* array = reinterpret_cast<PyArrayObject*>(value);
    bytes += PyArray_NBYTES(array);
    PyArrayObject* root;
    CopyReason reason = CopyReason::kForeign;
    // A subclass may keep more references than its base says: only plain arrays are handed over.
    if (PyArray_CheckExact(value) && owns_its_memory(array, unique, root, reason)) {
      if (PyArray_NBYTES(array) >= PyArray_NBYTES(root) / 2) {
        count_avoided_copy(counters, PyArray_NBYTES(array));
        return Py_NewRef(value);
      }
      reason = CopyReason::kSparse;
    }
    count_copy(counters, reason, PyArray_NBYTES(array));
    PyObject* copy = helper("penstock._interop", "copy_array");
    if (copy != nullptr && !PyArray_CheckExact(value)) return PyObject_CallOneArg(copy, value);
    PyObject* made = PyArray_NewCopy(array, NPY_KEEPORDER);
    if (made != nullptr && !PyArray_ISWRITEABLE(array)) {
      PyArray_CLEARFLAGS(reinterpret_cast<PyArrayObject*>(made), NPY_ARRAY_WRITEABLE);
    }
    return made;
  }
  if (is_torch_tensor(value)) {
    PyObject* copy = helper("penstock._interop", "copy_tensor");
    return copy == nullptr ? nullptr : PyObject_CallOneArg(copy, value);
  }
  if (depth >= kMaxDepth) return Py_NewRef(value);
  if (PyTuple_Check(value)) {
    Py_ssize_t n = PyTuple_GET_SIZE(value);
    Owned made(PyTuple_New(n));
    bool changed = false;
    for (Py_ssize_t i = 0; made && i < n; ++i) {
      PyObject* item = PyTuple_GET_ITEM(value, i);
      PyObject* other = detached(item, unique && only_ours(item), depth + 1, counters, bytes);
      if (other == nullptr) return nullptr;
      changed = changed || other != item;
      PyTuple_SET_ITEM(made.get(), i, other);
    }
    if (!changed) return Py_NewRef(value);
    if (PyTuple_CheckExact(value)) return made.release();
    if (!is_namedtuple(value)) return Py_NewRef(value);
    return PyObject_CallMethod(reinterpret_cast<PyObject*>(Py_TYPE(value)), "_make", "(O)",
                               made.get());
  }
  if (PyList_CheckExact(value)) {
    Owned made(PyList_New(PyList_GET_SIZE(value)));
    for (Py_ssize_t i = 0; made && i < PyList_GET_SIZE(value); ++i) {
      PyObject* item = PyList_GET_ITEM(value, i);
      PyObject* other = detached(item, unique && only_ours(item), depth + 1, counters, bytes);
      if (other == nullptr) return nullptr;
      PyList_SET_ITEM(made.get(), i, other);
    }
    return made.release();
  }
  if (PyDict_CheckExact(value) || is_plain_dataclass(value)) {
    bool object = !PyDict_CheckExact(value);
    Owned fields = object ? Owned(PyObject_GetAttrString(value, "__dict__")) : Owned::borrow(value);
    Owned made(PyDict_New());
    Py_ssize_t at = 0;
    PyObject *key, *item;
    while (fields && made && PyDict_Next(fields.get(), &at, &key, &item)) {
      Owned other(detached(item, unique && only_ours(item), depth + 1, counters, bytes));
      if (!other || PyDict_SetItem(made.get(), key, other.get()) != 0) return nullptr;
    }
    if (!object || !made) return made.release();
    PyObject* make = helper("penstock._interop", "make_dataclass");
    if (make == nullptr) return nullptr;
    return PyObject_CallFunctionObjArgs(make, reinterpret_cast<PyObject*>(Py_TYPE(value)),
                                        made.get(), nullptr);
  }
  return Py_NewRef(value);
}

}  // namespace

PyObject* detach(PyObject* value, WorkerCounters& counters, uint64_t& payload_bytes) {
  Owned held(value);
  return detached(value, only_ours(value), 0, counters, payload_bytes);
}

}  // namespace penstock::python
