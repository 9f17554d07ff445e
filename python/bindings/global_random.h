#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

namespace penstock {

// The state of a Mersenne twister in NumPy or CPython: 624 words and the number of used ones. Their
// memory layouts differ, hence the pointers.
struct TwisterState {
  uint32_t* words = nullptr;
  int* used = nullptr;

  static constexpr size_t kWords = 624;
  explicit operator bool() const { return words != nullptr; }
};

// The generators of np.random.rand and random.random. Their state is written in place, which takes
// a tenth of the time of their seed(). The state's address is found by searching memory for the
// values of their public get_state(). If it is not found (another interpreter, a future NumPy),
// their public seed() is used: it is slower and gives other numbers, which are the same in all
// workers of a run. torch's default generator, in processes that have imported torch, is always set
// by its public function.
//
// Not synchronised. REQUIRED everywhere: the GIL. Throws nanobind::python_error.
class GlobalGenerators {
 public:
  GlobalGenerators();
  void rekey(uint64_t seed, uint64_t epoch, uint64_t index);

  // Whether both states are written in place; for tests.
  bool in_place() const { return numpy_state_ && numpy_has_gauss_ && python_state_; }

 private:
  void find_numpy_state();  // again whenever np.random.set_bit_generator was called
  void find_numpy_gauss();
  void find_python_state();
  void seed_numpy(uint64_t key);
  void seed_torch(uint64_t key);

  nanobind::object numpy_, numpy_bits_, python_, none_;
  nanobind::object torch_seed_;  // manual_seed of torch's default generator, once there is one
  TwisterState numpy_state_, python_state_;
  int* numpy_has_gauss_ = nullptr;  // whether the second number of a normal pair is cached
};

}  // namespace penstock
