#include "nest.h"

#include <array>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "penstock/base/error.h"

namespace penstock::python {
namespace {

constexpr size_t kMaxKept = 1024;

[[noreturn]] void refuse(const std::string& why) {
  PyErr_Clear();
  throw Error(Code::kDataLoss, "ElementSpec", "its nest is none: " + why);
}

Owned string_of(std::string_view utf8) {
  Owned text(PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), nullptr));
  if (!text) refuse("a name that is not UTF-8");
  return text;
}

// Null if NumPy has no such type: bfloat16 without ml_dtypes.
Owned descr_of(DType dtype) {
  static constexpr std::array<int, kDTypeCount> kTypes = {
      NPY_BOOL,  NPY_INT8,    NPY_INT16,   NPY_INT32,     NPY_INT64,
      NPY_UINT8, NPY_UINT16,  NPY_UINT32,  NPY_UINT64,    NPY_FLOAT16,
      NPY_VOID,  NPY_FLOAT32, NPY_FLOAT64, NPY_COMPLEX64, NPY_COMPLEX128};
  if (dtype != DType::kBfloat16) {
    return Owned(reinterpret_cast<PyObject*>(PyArray_DescrFromType(kTypes[size_t(dtype)])));
  }
  PyObject* type = helper("ml_dtypes", "bfloat16");
  PyArray_Descr* descr = nullptr;
  if (type == nullptr || PyArray_DescrConverter(type, &descr) == NPY_FAIL) PyErr_Clear();
  return Owned(reinterpret_cast<PyObject*>(descr));
}

class NestReader {
 public:
  explicit NestReader(Nest& nest) : nest_(nest), text_(nest.spec->nest()) {}

  void read() {
    if (text_.empty()) {
      by_name();
    } else {
      node({}, 0);
      if (!text_.empty()) refuse("something comes after its end");
    }
    if (leaf_ != nest_.spec->leaves().size()) refuse("it has fewer leaves than the spec");
  }

 private:
  void by_name() {
    if (nest_.spec->leaves().size() == 1 && nest_.spec->leaves()[0].name.empty()) {
      add('.', {}, 0);
      return;
    }
    add('{', {}, 0);
    for (const Leaf& leaf : nest_.spec->leaves()) {
      add('.', string_of(leaf.name), 1);
      ++nest_.nodes[0].count;
    }
  }

  size_t add(char kind, Owned key, int depth) {
    if (depth > kDeepestNest) refuse("it is too deep");
    Nest::Node node;
    node.kind = kind;
    node.key = std::move(key);
    if (kind == '.') {
      if (leaf_ == nest_.spec->leaves().size()) refuse("it has more leaves than the spec");
      node.leaf = static_cast<uint32_t>(leaf_++);
    }
    nest_.nodes.push_back(std::move(node));
    return nest_.nodes.size() - 1;
  }

  char next() {
    if (text_.empty()) refuse("it ends too soon");
    char first = text_.front();
    text_.remove_prefix(1);
    return first;
  }

  Owned string() {
    size_t bytes = 0;
    bool begun = false;
    for (char digit = next(); digit != ':'; digit = next()) {
      if (digit < '0' || digit > '9' || (begun && bytes == 0)) refuse("a length that is none");
      bytes = bytes * 10 + static_cast<size_t>(digit - '0');
      begun = true;
      if (bytes > text_.size()) refuse("a name that is longer than all of it");
    }
    if (!begun || bytes > text_.size()) refuse("a length that is none");
    Owned text = string_of(text_.substr(0, bytes));
    text_.remove_prefix(bytes);
    return text;
  }

  void node(Owned key, int depth) {
    char kind = next();
    if (std::strchr(".([{<", kind) == nullptr || kind == '\0') refuse("a node of no known kind");
    size_t at = add(kind, std::move(key), depth);
    if (kind == '.') return;
    const char close = kind == '(' ? ')' : kind == '[' ? ']' : kind == '{' ? '}' : '>';
    const bool named = kind == '{' || kind == '<';
    Owned names(named ? PySet_New(nullptr) : nullptr);
    Owned fields(kind == '<' ? PyList_New(0) : nullptr);
    if (kind == '<') {
      nest_.nodes[at].module = string();
      nest_.nodes[at].name = string();
    }
    uint32_t count = 0;
    for (; peek() != close; ++count) {
      Owned name = named ? string() : Owned();
      if (named && (PySet_Contains(names.get(), name.get()) != 0 ||
                    PySet_Add(names.get(), name.get()) != 0)) {
        refuse("a name that comes twice");
      }
      if (fields && PyList_Append(fields.get(), name.get()) != 0) refuse("no memory");
      node(std::move(name), depth + 1);
    }
    next();
    Nest::Node& made = nest_.nodes[at];
    made.count = count;
    if (kind != '<') return;
    made.fields = Owned(PyList_AsTuple(fields.get()));
    PyObject* find = helper("penstock.base.nests", "named_tuple");
    if (find == nullptr) refuse("penstock.base.nests cannot be imported");
    made.type = Owned(PyObject_CallFunctionObjArgs(find, made.module.get(), made.name.get(),
                                                   made.fields.get(), nullptr));
    if (!made.type) refuse("a named tuple that cannot be");
  }

  char peek() const { return text_.empty() ? '\0' : text_.front(); }

  Nest& nest_;
  std::string_view text_;
  size_t leaf_ = 0;
};

void read_leaves(Nest& nest) {
  for (const Leaf& leaf : nest.spec->leaves()) {
    Nest::LeafForm form{leaf.kind, leaf.dtype, leaf.fixed(), descr_of(leaf.dtype), {}, {}, 0};
    form.shape.assign(leaf.shape.begin(), leaf.shape.end());
    if (form.fixed) form.bytes = static_cast<size_t>(leaf.fixed_values()) * size_of(leaf.dtype);
    if (leaf.kind == LeafKind::kRagged) {
      Owned axes(PyList_New(0));
      for (size_t axis = 0; axis < leaf.shape.size(); ++axis) {
        if (leaf.shape[axis] >= 0) continue;
        Owned number(PyLong_FromSize_t(axis));
        PyList_Append(axes.get(), number.get());
      }
      form.axes = Owned(PyList_AsTuple(axes.get()));
    }
    nest.leaves.push_back(std::move(form));
  }
}

std::string_view bytes_of(const ElementSpec& spec) {
  return {reinterpret_cast<const char*>(spec.bytes().data()), spec.bytes().size()};
}

// Requested specs, by address and by content. Guarded by the GIL. Never destroyed, because the
// interpreter outlives every use.
struct Kept {
  struct Recent {
    SpecRef spec;  // kept alive, so its address is not reused
    NestRef nest;
  };
  std::array<Recent, 16> recent;
  std::unordered_map<std::string_view, NestRef> all;  // keys: bytes of the nests' specs
};

void describe(const Nest& nest, size_t& at, std::string& out) {
  const Nest::Node& node = nest.nodes[at++];
  if (node.kind == '.') {
    ElementSpec alone({nest.spec->leaves()[node.leaf]});
    std::string shown = alone.to_string();  // "{name: what it is}"
    size_t before = nest.spec->leaves()[node.leaf].name.size() + 3;
    out += shown.substr(before, shown.size() - before - 1);
    return;
  }
  out += node.kind == '<' ? '(' : node.kind;
  for (uint32_t i = 0; i < node.count; ++i) {
    if (i > 0) out += ", ";
    if (PyObject* key = nest.nodes[at].key.get()) {
      const char* name = PyUnicode_AsUTF8(key);
      out += std::string(name != nullptr ? name : "?") + (node.kind == '<' ? "=" : ": ");
    }
    describe(nest, at, out);
  }
  if (node.kind == '(' && node.count == 1) out += ',';
  out += node.kind == '{' ? '}' : node.kind == '[' ? ']' : ')';
}

}  // namespace

NestRef nest_of(const SpecRef& spec) {
  static auto* kept = new Kept;
  Kept::Recent& recent = kept->recent[(reinterpret_cast<uintptr_t>(spec.get()) >> 5) % 16];
  if (recent.spec == spec) return recent.nest;
  NestRef nest;
  if (auto found = kept->all.find(bytes_of(*spec)); found != kept->all.end()) {
    nest = found->second;
  } else {
    auto made = std::make_shared<Nest>();
    made->spec = spec;
    NestReader(*made).read();
    read_leaves(*made);
    nest = std::move(made);
    if (kept->all.size() >= kMaxKept) kept->all.clear();
    kept->all.emplace(bytes_of(*nest->spec), nest);
  }
  recent = {spec, nest};
  return nest;
}

std::string describe(const Nest& nest) {
  std::string out;
  size_t at = 0;
  describe(nest, at, out);
  return out;
}

void write_string(std::string& nest, const char* utf8, size_t bytes) {
  nest += std::to_string(bytes);
  nest += ':';
  nest.append(utf8, bytes);
}

}  // namespace penstock::python
