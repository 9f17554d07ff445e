#pragma once

#include <cstdint>

#include "penstock/base/random.h"

namespace nanobind {
class module_;
}

// Random numbers for Python code: a NumPy Generator with a key, and setting the interpreter's
// global generators to that key.
namespace penstock {

// An operation of a RandomKey that no plan has: plans count operations from 0.
inline constexpr uint32_t kRngOperation = 0xFFFFFFFF;
inline constexpr uint32_t kNumpyOperation = 0xFFFFFFFE;
inline constexpr uint32_t kPythonOperation = 0xFFFFFFFD;
inline constexpr uint32_t kTorchOperation = 0xFFFFFFFC;

// From now on until clear_ticket_key, rng() in this thread is the generator of this sample, at its
// first number, even if this key is already set (a retry). Needs no GIL; takes nanoseconds.
void set_ticket_key(uint64_t seed, uint64_t epoch, uint64_t index);
void clear_ticket_key();

// Sets NumPy's global generator (np.random.rand), Python's (random.random) and, if torch was
// imported, torch's (torch.rand) to the key of this sample. For worker processes only, because it
// changes state of the whole process.
// REQUIRED: the GIL. Throws nanobind::python_error.
void rekey_globals(uint64_t seed, uint64_t epoch, uint64_t index);

}  // namespace penstock
