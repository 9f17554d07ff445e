#include "random.h"

#include <nanobind/nanobind.h>
#include <numpy/random/bitgen.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <memory>
#include <random>
#include <span>

#include "global_random.h"
#include "module.h"

namespace nb = nanobind;

namespace penstock {
namespace {

// ---- NumPy's interface over a RandomStream ------------------------------------------------------

// A stream that makes its words ahead, in growing blocks while they are used up: a sample that
// draws one number needs one block, and one that draws an image makes eight blocks at a time.
class WordSource {
 public:
  explicit WordSource(const RandomKey& key) : stream_(key) {}

  void rekey(const RandomKey& key) {
    stream_ = RandomStream(key);
    at_ = end_ = 0;
  }

  uint32_t next_u32() {
    if (at_ == end_) refill();
    return words_[at_++];
  }

  uint64_t next_u64() {
    if (end_ - at_ >= 2) {
      at_ += 2;
      return words_[at_ - 2] | uint64_t{words_[at_ - 1]} << 32;
    }
    uint64_t low = next_u32();
    return low | uint64_t{next_u32()} << 32;
  }

 private:
  void refill() {
    end_ = end_ == 0 ? 4 : end_ < words_.size() ? end_ * 4 : end_;
    at_ = 0;
    stream_.fill(std::span(words_).first(end_));
  }

  RandomStream stream_;
  uint32_t at_ = 0, end_ = 0;
  std::array<uint32_t, 256> words_;
};

struct BitGeneratorState {
  explicit BitGeneratorState(const RandomKey& key) : words(key) {
    numpy.state = &words;
    numpy.next_uint64 = [](void* s) { return static_cast<WordSource*>(s)->next_u64(); };
    numpy.next_uint32 = [](void* s) { return static_cast<WordSource*>(s)->next_u32(); };
    numpy.next_double = [](void* s) {
      return static_cast<double>(static_cast<WordSource*>(s)->next_u64() >> 11) * 0x1p-53;
    };
    numpy.next_raw = numpy.next_uint64;
  }
  bitgen_t numpy;
  WordSource words;
};

// The interface that numpy.random.Generator requires of a bit generator: `capsule` and `lock`. The
// capsule owns the state, so it may outlive this.
class PhiloxBitGenerator {
 public:
  PhiloxBitGenerator(uint64_t seed, uint64_t epoch, uint64_t index, uint32_t operation)
      : lock_(nb::module_::import_("_thread").attr("allocate_lock")()) {
    auto state = std::make_unique<BitGeneratorState>(RandomKey{seed, epoch, index, operation});
    words_ = &state->words;
    capsule_ = nb::steal(PyCapsule_New(&state->numpy, "BitGenerator", [](PyObject* self) {
      auto* numpy = static_cast<bitgen_t*>(PyCapsule_GetPointer(self, "BitGenerator"));
      std::unique_ptr<BitGeneratorState>(reinterpret_cast<BitGeneratorState*>(numpy));
    }));
    if (!capsule_.is_valid()) throw nb::python_error();
    state.release();
  }
  static_assert(offsetof(BitGeneratorState, numpy) == 0, "the capsule's destructor relies on it");

  const nb::object& capsule() const { return capsule_; }
  const nb::object& lock() const { return lock_; }
  WordSource& words() { return *words_; }

 private:
  nb::object lock_, capsule_;
  WordSource* words_;
};

// ---- penstock.rng() -----------------------------------------------------------------------------

struct CurrentGenerator {
  nb::object generator;         // numpy.random.Generator, the only owner of...
  nb::handle bit_generator;     // ...its PhiloxBitGenerator, which owns...
  WordSource* words = nullptr;  // ...these
  uint64_t made_for = 0;        // the thread's turn, or the process's forks
};

// A thread's generators. The dictionary of Python's thread state owns them, so they are destroyed
// with the thread while the interpreter still runs.
struct ThreadGenerators {
  CurrentGenerator ticket, outside;
};

// Trivially destructible: a thread's end must not run code that needs the GIL.
struct ThreadKey {
  uint64_t seed, epoch, index;
  uint64_t turn;  // how many keys were set
  bool in_ticket;
  ThreadGenerators* generators;
};
constinit thread_local ThreadKey t_key{};

// Outside tickets, a forked child must not draw the same numbers as its parent.
std::atomic<uint64_t> forks{1};

constexpr const char* kGeneratorsName = "penstock.generators";

ThreadGenerators& generators_of_this_thread() {
  if (t_key.generators != nullptr) return *t_key.generators;
  auto made = std::make_unique<ThreadGenerators>();
  nb::object capsule = nb::steal(PyCapsule_New(made.get(), kGeneratorsName, [](PyObject* self) {
    std::unique_ptr<ThreadGenerators> ended(
        static_cast<ThreadGenerators*>(PyCapsule_GetPointer(self, kGeneratorsName)));
    if (t_key.generators == ended.get()) t_key.generators = nullptr;
  }));
  if (!capsule.is_valid()) throw nb::python_error();
  ThreadGenerators* generators = made.release();
  PyObject* dictionary = PyThreadState_GetDict();
  if (dictionary == nullptr || PyDict_SetItemString(dictionary, kGeneratorsName, capsule.ptr())) {
    throw nb::python_error();
  }
  t_key.generators = generators;
  return *generators;
}

void renew(CurrentGenerator& current, const RandomKey& key) {
  nb::object bit_generator =
      nb::type<PhiloxBitGenerator>()(key.seed, key.epoch, key.index, key.operation);
  current.words = &nb::cast<PhiloxBitGenerator&>(bit_generator).words();
  current.bit_generator = bit_generator;
  current.generator = nb::module_::import_("numpy.random").attr("Generator")(bit_generator);
}

// Whether no other code can draw from it, now or later.
bool is_ours_alone(const CurrentGenerator& current) {
#ifdef Py_GIL_DISABLED
  return false;  // reference counts are not reliable there
#else
  return current.generator.is_valid() && Py_REFCNT(current.generator.ptr()) == 1 &&
         Py_REFCNT(current.bit_generator.ptr()) == 1;
#endif
}

nb::object rng() {
  ThreadGenerators& mine = generators_of_this_thread();
  if (!t_key.in_ticket) {
    CurrentGenerator& current = mine.outside;
    uint64_t now = forks.load(std::memory_order_relaxed);
    if (current.made_for != now) {
      std::random_device system;
      auto draw = [&system] { return uint64_t{system()} << 32 | system(); };
      renew(current, {draw(), draw(), draw(), kRngOperation});
      current.made_for = now;
    }
    return current.generator;
  }
  CurrentGenerator& current = mine.ticket;
  if (current.made_for != t_key.turn) {
    RandomKey key{t_key.seed, t_key.epoch, t_key.index, kRngOperation};
    if (is_ours_alone(current)) {
      current.words->rekey(key);
    } else {
      renew(current, key);
    }
    current.made_for = t_key.turn;
  }
  return current.generator;
}

}  // namespace

void set_ticket_key(uint64_t seed, uint64_t epoch, uint64_t index) {
  ThreadKey& key = t_key;
  key.seed = seed;
  key.epoch = epoch;
  key.index = index;
  key.in_ticket = true;
  ++key.turn;
}

void clear_ticket_key() { t_key.in_ticket = false; }

namespace {

GlobalGenerators& global_generators() {
  // Never destroyed: it refers to Python objects, and static destructors run without Python.
  static GlobalGenerators* generators = new GlobalGenerators();
  return *generators;
}

}  // namespace

void rekey_globals(uint64_t seed, uint64_t epoch, uint64_t index) {
  global_generators().rekey(seed, epoch, index);
}

void bind_random(nb::module_& m) {
  pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  nb::class_<PhiloxBitGenerator>(m, "PhiloxBitGenerator",
                                 "Philox 4x32-10 at the address (seed, epoch, index, operation), "
                                 "for ``numpy.random.Generator``.",
                                 nb::is_weak_referenceable())
      .def(nb::init<uint64_t, uint64_t, uint64_t, uint32_t>(), nb::arg("seed"), nb::arg("epoch"),
           nb::arg("index"), nb::arg("operation") = 0)
      .def_prop_ro("capsule", [](const PhiloxBitGenerator& self) { return self.capsule(); })
      .def_prop_ro("lock", [](const PhiloxBitGenerator& self) { return self.lock(); });
  m.def("rng", &rng,
        "Return this thread's ``numpy.random.Generator``.\n\n"
        "Inside ``__getitem__`` (a generator's ``next``, a map function) its numbers depend on\n"
        "(seed, epoch, index) only: not on the worker, nor on how many there are. Calls for the\n"
        "same index return the same object; keep none for the next index. Elsewhere, also in\n"
        "threads that ``__getitem__`` starts, it is seeded by the operating system.");
  m.def("set_ticket_key", &set_ticket_key, nb::arg("seed"), nb::arg("epoch"), nb::arg("index"));
  m.def("clear_ticket_key", &clear_ticket_key);
  m.def("rekey_globals", &rekey_globals, nb::arg("seed"), nb::arg("epoch"), nb::arg("index"),
        "Put NumPy's, Python's and torch's global generators at the address of a sample.");
  m.def(
      "rekeys_in_place", [] { return global_generators().in_place(); },
      "Whether `rekey_globals` found the generators' states, rather than calling seed().");
}

}  // namespace penstock
