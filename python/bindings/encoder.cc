#include <algorithm>
#include <cstring>
#include <utility>

#include "codec.h"
#include "penstock/memory/copy.h"
#include "values.h"

namespace penstock::python {

namespace {

constexpr size_t kInlineBytes = 256;
constexpr int kVariableString = 2056;  // NPY_VSTRING
// Limits of a plain value: with more nodes, and more nodes per array, a pickle is faster.
constexpr size_t kMaxNodes = 10'000, kNodesPerArray = 4;

bool plain_dtype(PyArray_Descr* descr) {
  int type = descr->type_num;
  return is_number(type) && PyArray_ISNBO(descr->byteorder);
}

// Whether the strides are those of C order, also along axes of length 1, by which torch recognises
// channels_last.
bool has_plain_strides(PyArrayObject* array) {
  npy_intp stride = PyArray_ITEMSIZE(array);
  for (int d = PyArray_NDIM(array); d-- > 0;
       stride *= std::max<npy_intp>(PyArray_DIM(array, d), 1)) {
    if (PyArray_STRIDE(array, d) != stride) return false;
  }
  return true;
}

bool needs_pickle(PyArray_Descr* descr) {
  return PyDataType_FLAGCHK(descr, NPY_ITEM_REFCOUNT) || descr->type_num == kVariableString;
}

// (ndarray over the tensor's memory, dtype name), or None if it is not a plain CPU tensor.
Owned array_of_tensor(PyObject* tensor) {
  PyObject* convert = helper("penstock.base.interop", "array_of_tensor");
  return Owned(convert == nullptr ? nullptr : PyObject_CallOneArg(convert, tensor));
}

}  // namespace

void Encoder::put(const void* bytes, size_t n) {
  const auto* from = static_cast<const std::byte*>(bytes);
  tree_.insert(tree_.end(), from, from + n);
}

void Encoder::count(size_t n) { put(static_cast<uint32_t>(n)); }

void Encoder::write_tail(std::byte* to) const {
  for (const Tail& part : tail_) std::memcpy(to + part.offset, part.data, part.bytes);
}

std::vector<std::span<const std::byte>> Encoder::tail_parts() const {
  static constexpr std::byte kGap[64] = {};
  std::vector<std::span<const std::byte>> parts;
  for (const Tail& part : tail_) {
    parts.push_back({static_cast<const std::byte*>(part.data), part.bytes});
    parts.push_back({kGap, (64 - part.bytes % 64) % 64});
  }
  return parts;
}

bool Encoder::encode(PyObject* value) {
  tree_.clear();
  tail_.clear();
  tail_bytes_ = payload_ = 0;
  put(uint32_t{0});
  shared_.clear();
  if (plain_only()) met_ = {};
  nodes_ = arrays_ = 0;
  if (!node(value, only_ours(value), 0)) {
    for (const penstock::Ref& ref : shared_) arena_->region()->return_lease(ref);
    return false;
  }
  auto bytes = static_cast<uint32_t>(tree_.size());
  std::memcpy(tree_.data(), &bytes, sizeof(bytes));
  return true;
}

bool Encoder::node(PyObject* value, bool unique, int depth) {
  if (plain_only() && ++nodes_ > kMaxNodes && nodes_ > kNodesPerArray * arrays_) return false;
  if (PyArray_CheckExact(value)) {
    auto* found = reinterpret_cast<PyArrayObject*>(value);
    if (plain_only() && !met_.first(value)) return false;
    return array(found, unique, plain_only() && PyArray_IS_F_CONTIGUOUS(found));
  }
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
  } else if (PyTuple_CheckExact(value)) {
    put('T');
    return parts(Parts(value, unique), depth);
  } else if (is_namedtuple(value)) {
    put('M');
    return class_ref(reinterpret_cast<PyObject*>(Py_TYPE(value))) &&
           parts(Parts(value, unique), depth);
  } else if (PyList_CheckExact(value)) {
    if (plain_only() && !met_.first(value)) return false;
    put('L');
    return parts(Parts(value, unique), depth);
  } else if (PyDict_CheckExact(value)) {
    if (plain_only() && !met_.first(value)) return false;
    put('D');
    return parts(Parts(value, unique), depth);
  } else if (is_plain_dataclass(value)) {
    if (plain_only() && !met_.first(value)) return false;
    put('C');
    if (!class_ref(reinterpret_cast<PyObject*>(Py_TYPE(value)))) return false;
    put('D');
    return parts(Parts::of_fields(value, unique), depth);
  } else if (PyArray_IsScalar(value, Generic) && !PyArray_IsScalar(value, Void)) {
    Owned zero_d(PyArray_FromScalar(value, nullptr));
    if (!zero_d) return false;
    auto* made = reinterpret_cast<PyArrayObject*>(zero_d.get());
    if (needs_pickle(PyArray_DESCR(made))) return pickled(value);
    if (plain_only() && Py_TYPE(value) != PyArray_DESCR(made)->typeobj) return false;
    size_t at = tree_.size();
    if (!array(made, false, false)) return false;
    tree_[at] = std::byte{'S'};
  } else if (is_torch_tensor(value)) {
    return tensor(value, unique);
  } else {
    return pickled(value);
  }
  return true;
}

bool Encoder::parts(const Parts& parts, int depth) {
  if (!parts) return false;
  count(parts.size());
  return parts.each([&](PyObject* key, PyObject* part, bool unique) {
    return (key == nullptr || node(key, false, depth + 1)) && node(part, unique, depth + 1);
  });
}

bool Encoder::tensor(PyObject* value, bool unique) {
  Owned pair = array_of_tensor(value);
  if (!pair) return false;
  if (pair.get() == Py_None) return pickled(value);
  auto* over = reinterpret_cast<PyArrayObject*>(PyTuple_GET_ITEM(pair.get(), 0));
  if (plain_only() && !(met_.first(value) && met_.tensor(value, over))) return false;
  put('X');
  Py_ssize_t n;
  const char* name = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(pair.get(), 1), &n);
  if (name == nullptr) return false;
  count(n);
  put(name, n);
  return array(over, unique, plain_only());
}

bool Encoder::class_ref(PyObject* type) {
  if (plain_only()) return false;
  PyObject* dump = helper("penstock.base.interop", "dump_class");
  Owned bytes(dump == nullptr ? nullptr : PyObject_CallOneArg(dump, type));
  if (!bytes) return false;
  count(PyBytes_GET_SIZE(bytes.get()));
  put(PyBytes_AS_STRING(bytes.get()), PyBytes_GET_SIZE(bytes.get()));
  return true;
}

// A lease for the consumer, which is dropped if the rest cannot be encoded. Nothing if there is no
// page for its header.
std::optional<Ref> Encoder::share(void* block) {
  std::optional<Ref> ref = arena_->share(block);
  if (ref) shared_.push_back(*ref);
  return ref;
}

std::optional<Encoder::Space> Encoder::space_for(size_t bytes) {
  void* block = arena_ == nullptr ? nullptr : arena_->allocate(bytes);
  if (block == nullptr) return std::nullopt;
  std::optional<Ref> ref = share(block);
  if (ref) return Space{block, *ref};
  arena_->release(block);
  return std::nullopt;
}

void Encoder::put_block(const Ref& ref, void* block, const void* data) {
  put(uint8_t{1});
  put(BlockRef{ref.offset, ref.bytes, ref.generation, number_});
  put(static_cast<uint64_t>(static_cast<const std::byte*>(data) - static_cast<std::byte*>(block)));
}

bool Encoder::array(PyArrayObject* array, bool unique, bool as_it_lies) {
  PyArray_Descr* descr = PyArray_DESCR(array);
  ++arrays_;
  if (plain_only() && !PlainValue::array(array)) return false;
  if (needs_pickle(descr)) return pickled(reinterpret_cast<PyObject*>(array));
  size_t bytes = PyArray_NBYTES(array);
  CopyReason reason = CopyReason::kSmall;
  void* block = nullptr;
  bool ours = false;  // found out only for another host
  if (bytes > kInlineBytes && remote()) {
    PyArrayObject* root;
    ours = owns_its_memory(array, unique, root, reason);
    as_it_lies = ours && PyArray_IS_F_CONTIGUOUS(array) && !PyArray_IS_C_CONTIGUOUS(array);
  }
  if (bytes > kInlineBytes && arena_ != nullptr) {
    PyArrayObject* root;
    if (owns_its_memory(array, unique, root, reason)) {
      block = arena_->contains(PyArray_DATA(root)) ? arena_->block_of(PyArray_DATA(root)) : nullptr;
      if (block != PyArray_DATA(root)) block = nullptr;
      reason = CopyReason::kForeign;
      if (block != nullptr && bytes < arena_->bytes_of(block) / 2) {
        block = nullptr;
        reason = CopyReason::kSparse;
      }
    }
  }
  std::optional<Ref> ref = block != nullptr ? share(block) : std::nullopt;
  if (block != nullptr && !ref) {
    block = nullptr;
    reason = CopyReason::kArenaFull;
  }
  bool in_c_order = block == nullptr && !as_it_lies;  // as a copy
  bool contiguous =
      in_c_order || (as_it_lies ? has_plain_strides(array) : PyArray_IS_C_CONTIGUOUS(array));
  // A pickle's copy of an array that is not contiguous is writeable.
  bool writeable = PyArray_ISWRITEABLE(array) ||
                   (plain_only() && !as_it_lies && !PyArray_IS_C_CONTIGUOUS(array));
  put('A');
  put(static_cast<uint8_t>((contiguous ? 1 : 0) | (writeable ? 0 : 2)));
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
    put_block(*ref, block, PyArray_DATA(array));
    count_avoided_copy(counters_, bytes);
  } else if (as_it_lies) {
    place_bytes(PyArray_DATA(array), bytes, reason, reinterpret_cast<PyObject*>(array));
  } else {
    place_array(array, reason, ours);
    if (PyErr_Occurred() != nullptr) return false;
  }
  return true;
}

// Copies an array's elements, in C order, to memory that can be sent.
void Encoder::place_array(PyArrayObject* array, CopyReason reason, bool ours) {
  // What others refer to may change before the packet is sent, so it is copied now.
  const bool stays = !remote() || ours || PyArray_NBYTES(array) <= npy_intp{kInlineBytes};
  if (PyArray_IS_C_CONTIGUOUS(array) && stays) {
    place_bytes(PyArray_DATA(array), PyArray_NBYTES(array), reason,
                reinterpret_cast<PyObject*>(array));
    return;
  }
  size_t bytes = PyArray_NBYTES(array);
  std::optional<Space> space = bytes > kInlineBytes ? space_for(bytes) : std::nullopt;
  if (!space) {
    Owned copy(PyArray_NewCopy(array, NPY_CORDER));
    if (!copy) return;
    auto* copied = reinterpret_cast<PyArrayObject*>(copy.get());
    place_bytes(PyArray_DATA(copied), bytes, reason, copy.get());
    return;
  }
  // NumPy makes the strided copy into an array over the block.
  Py_INCREF(PyArray_DESCR(array));
  Owned over(PyArray_NewFromDescr(&PyArray_Type, PyArray_DESCR(array), PyArray_NDIM(array),
                                  PyArray_DIMS(array), nullptr, space->block, NPY_ARRAY_CARRAY,
                                  nullptr));
  if (over && PyArray_CopyInto(reinterpret_cast<PyArrayObject*>(over.get()), array) == 0) {
    put_block(space->ref, space->block, space->block);
    count_copy(counters_, reason, bytes);
  }
  over = Owned();
  arena_->release(space->block);
}

void Encoder::place_bytes(const void* data, size_t bytes, CopyReason reason, PyObject* keep) {
  if (bytes <= kInlineBytes) {
    put(uint8_t{0});
    put(static_cast<uint64_t>(bytes));
    put(data, bytes);
    count_copy(counters_, CopyReason::kSmall, bytes);
    return;
  }
  if (std::optional<Space> space = space_for(bytes)) {
    copy_stream(space->block, data, bytes);
    put_block(space->ref, space->block, space->block);
    arena_->release(space->block);
    count_copy(counters_, reason, bytes);
    return;
  }
  put(uint8_t{2});
  put(tail_bytes_);
  put(static_cast<uint64_t>(bytes));
  tail_.push_back({tail_bytes_, bytes, data, Owned::borrow(keep)});
  tail_bytes_ += (bytes + 63) / 64 * 64;
  count_copy(counters_, CopyReason::kArenaFull, bytes);
}

bool Encoder::pickled(PyObject* value) {
  if (plain_only()) return false;
  PyObject* dump = helper("penstock.base.interop", "dump");
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
    if (remote()) {
      Owned copy(PyBytes_FromStringAndSize(static_cast<const char*>(buffer->buf), buffer->len));
      if (!copy) return false;
      place_bytes(PyBytes_AS_STRING(copy.get()), buffer->len, CopyReason::kPickled, copy.get());
      continue;
    }
    place_bytes(buffer->buf, buffer->len, CopyReason::kPickled, view);
  }
  return true;
}

}  // namespace penstock::python
