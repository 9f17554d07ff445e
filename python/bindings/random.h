#pragma once

#include <cstdint>

#include "penstock/base/random.h"

namespace nanobind {
class module_;
}

// Random numbers for Python code: a NumPy Generator whose numbers have an address, and the
// interpreter's global generators put at that address.
namespace penstock {

// Operations of a RandomKey that no plan's operation has: plans count from 0.
inline constexpr uint32_t kRngOperation = 0xFFFFFFFF;
inline constexpr uint32_t kNumpyOperation = 0xFFFFFFFE;
inline constexpr uint32_t kPythonOperation = 0xFFFFFFFD;
inline constexpr uint32_t kTorchOperation = 0xFFFFFFFC;

// From now on until clear_ticket_key, rng() in this thread is the generator of this sample, at its
// first number; also if the key is the one already set (a retry). No GIL needed; nanoseconds.
void set_ticket_key(uint64_t seed, uint64_t epoch, uint64_t index);
void clear_ticket_key();

// Puts NumPy's global generator (np.random.rand and its like), Python's (random.random) and, where
// torch has been imported, torch's (torch.rand) at the address of this sample. For process workers
// only: it changes what belongs to the whole process.
// REQUIRED: the GIL. Throws nanobind::python_error.
void rekey_globals(uint64_t seed, uint64_t epoch, uint64_t index);

void bind_random(nanobind::module_& m);

}  // namespace penstock
