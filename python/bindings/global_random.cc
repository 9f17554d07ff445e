#include "global_random.h"

#include <numpy/random/bitgen.h>

#include <array>
#include <cstring>

#include "penstock/base/random.h"
#include "random.h"

namespace nb = nanobind;

namespace penstock {
namespace {

uint64_t one_word(const RandomKey& key) { return RandomStream(key).next_u64(); }

// The words only have to differ from those of other keys, because the twister mixes them. So they
// are made by splitmix64 from a Philox word, which is twice as fast as Philox. Steele, Lea and
// Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
void fill(const TwisterState& state, const RandomKey& key) {
  uint64_t counter = one_word(key);
  for (size_t i = 0; i < TwisterState::kWords; i += 2) {
    counter += 0x9E3779B97F4A7C15;
    uint64_t z = counter;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    z ^= z >> 31;
    state.words[i] = static_cast<uint32_t>(z);
    state.words[i + 1] = static_cast<uint32_t>(z >> 32);
  }
  state.words[0] |= 0x80000000;  // a state of only zeroes is invalid
  *state.used = static_cast<int>(TwisterState::kWords);
}

using Words = std::array<uint32_t, TwisterState::kWords>;

Words words_of(nb::handle sequence) {
  Words words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = nb::cast<uint32_t>(nb::int_(sequence[i]));
  return words;
}

}  // namespace

GlobalGenerators::GlobalGenerators()
    : numpy_(nb::module_::import_("numpy.random.mtrand").attr("_rand")),
      python_(nb::module_::import_("random").attr("_inst")) {
  find_numpy_state();
  if (numpy_state_) find_numpy_gauss();
  find_python_state();
}

void GlobalGenerators::rekey(uint64_t seed, uint64_t epoch, uint64_t index) {
  static PyObject* bit_generator = PyUnicode_InternFromString("_bit_generator");
  static PyObject* gauss_next = PyUnicode_InternFromString("gauss_next");

  PyObject* now = PyObject_GetAttr(numpy_.ptr(), bit_generator);
  if (now == nullptr) throw nb::python_error();
  Py_DECREF(now);
  if (now != numpy_bits_.ptr()) find_numpy_state();

  RandomKey key{seed, epoch, index, kNumpyOperation};
  if (numpy_state_ && numpy_has_gauss_ != nullptr) {
    fill(numpy_state_, key);
    *numpy_has_gauss_ = 0;
  } else {
    seed_numpy(one_word(key));
  }

  key.operation = kPythonOperation;
  if (python_state_) {
    fill(python_state_, key);
    if (PyObject_SetAttr(python_.ptr(), gauss_next, Py_None) != 0) throw nb::python_error();
  } else {
    python_.attr("seed")(one_word(key));
  }

  key.operation = kTorchOperation;
  seed_torch(one_word(key));
}

void GlobalGenerators::seed_torch(uint64_t key) {
  static PyObject* torch_name = PyUnicode_InternFromString("torch");
  if (!torch_seed_.is_valid()) {
    PyObject* torch = PyDict_GetItem(PyImport_GetModuleDict(), torch_name);  // borrowed
    // It may be partly imported.
    if (torch == nullptr || !nb::hasattr(torch, "default_generator")) return;
    torch_seed_ = nb::getattr(torch, "default_generator").attr("manual_seed");
  }
  torch_seed_(key >> 1);  // torch takes a signed number
}

void GlobalGenerators::seed_numpy(uint64_t key) {
  nb::object bits = numpy_.attr("_bit_generator");
  if (nb::str("MT19937").equal(bits.type().attr("__name__"))) {
    nb::list words;
    words.append(static_cast<uint32_t>(key));
    words.append(static_cast<uint32_t>(key >> 32));
    numpy_.attr("seed")(words);
    return;
  }
  // seed() is only for the twister.
  bits.attr("state") = bits.type()(key).attr("state");
  if (numpy_has_gauss_ != nullptr) *numpy_has_gauss_ = 0;
}

void GlobalGenerators::find_numpy_state() {
  numpy_bits_ = numpy_.attr("_bit_generator");
  numpy_state_ = {};
  try {
    nb::object public_state = numpy_bits_.attr("state");
    if (!nb::str("MT19937").equal(public_state["bit_generator"])) return;
    Words words = words_of(public_state["state"]["key"]);
    int used = nb::cast<int>(nb::int_(public_state["state"]["pos"]));

    auto* numpy = static_cast<bitgen_t*>(
        PyCapsule_GetPointer(nb::object(numpy_bits_.attr("capsule")).ptr(), "BitGenerator"));
    if (numpy == nullptr) throw nb::python_error();
    auto* state = static_cast<uint32_t*>(numpy->state);
    auto* position = reinterpret_cast<int*>(state + TwisterState::kWords);
    if (std::memcmp(state, words.data(), sizeof words) == 0 && *position == used) {
      numpy_state_ = {state, position};
    }
  } catch (nb::python_error&) {
    // The layout is another one: use seed().
  }
}

// The cached normal variate is in the RandomState itself, as {bool-like int, double}: set it to a
// unique value, and search memory for that value.
void GlobalGenerators::find_numpy_gauss() {
  try {
    nb::object before = numpy_.attr("get_state")(nb::arg("legacy") = false);
    nb::object marked = numpy_.attr("get_state")(nb::arg("legacy") = false);
    const double mark = 0x1.6A09E667F3BCCp-77;
    marked["has_gauss"] = 1;
    marked["gauss"] = mark;
    numpy_.attr("set_state")(marked);

    auto* object = reinterpret_cast<char*>(numpy_.ptr());
    auto size = static_cast<size_t>(Py_TYPE(numpy_.ptr())->tp_basicsize);
    for (size_t at = 2 * sizeof(double); at + sizeof mark <= size; at += alignof(double)) {
      if (std::memcmp(object + at, &mark, sizeof mark) != 0) continue;
      int* has_gauss = reinterpret_cast<int*>(object + at - sizeof(double));
      if (*has_gauss != 1) continue;
      *has_gauss = 0;
      nb::object now = numpy_.attr("get_state")(nb::arg("legacy") = false);
      if (nb::cast<int>(nb::int_(now["has_gauss"])) == 0) {
        numpy_has_gauss_ = has_gauss;
        break;
      }
      *has_gauss = 1;
    }
    numpy_.attr("set_state")(before);
  } catch (nb::python_error&) {
    numpy_has_gauss_ = nullptr;
  }
}

void GlobalGenerators::find_python_state() {
  try {
    nb::object before = python_.attr("getstate")();
    Words words = words_of(before[1]);
    int used = nb::cast<int>(before[1][TwisterState::kWords]);

    nb::object base = nb::module_::import_("_random").attr("Random");
    auto size = static_cast<size_t>(reinterpret_cast<PyTypeObject*>(base.ptr())->tp_basicsize);
    auto* object = reinterpret_cast<char*>(python_.ptr());
    for (size_t at = sizeof(PyObject) + sizeof(int); at + sizeof words <= size; at += sizeof(int)) {
      int* index = reinterpret_cast<int*>(object + at) - 1;
      if (std::memcmp(object + at, words.data(), sizeof words) != 0 || *index != used) continue;
      TwisterState found{reinterpret_cast<uint32_t*>(object + at), index};
      fill(found, {1, 2, 3, kPythonOperation});
      nb::object now = python_.attr("getstate")();
      bool works = std::memcmp(words_of(now[1]).data(), found.words, sizeof words) == 0 &&
                   nb::cast<int>(now[1][TwisterState::kWords]) == *found.used;
      python_.attr("setstate")(before);
      if (works) python_state_ = found;
      break;
    }
  } catch (nb::python_error&) {
    python_state_ = {};
  }
}

}  // namespace penstock
