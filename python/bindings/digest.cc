#include <Python.h>
#include <nanobind/nanobind.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "gil.h"
#include "module.h"

namespace nb = nanobind;

namespace penstock {
namespace {

// xxHash64's rounds (Yann Collet) on eight lanes instead of four, which keeps a core's multiplier
// busy, folded to 128 bits. A round is a bijection of its lane, so a change within any 8 bytes
// always changes that lane. Not for cryptography; its values are not stored.
constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F,
                   kPrime3 = 0x165667B19E3779F9;
constexpr size_t kLanes = 8, kStripe = kLanes * sizeof(uint64_t);

using Lanes = std::array<uint64_t, kLanes>;

uint64_t round(uint64_t lane, uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

void absorb(Lanes& lanes, const char* stripe) {
  for (size_t i = 0; i < kLanes; ++i) {
    uint64_t word;
    std::memcpy(&word, stripe + i * sizeof word, sizeof word);
    lanes[i] = round(lanes[i], word);
  }
}

uint64_t fold(const Lanes& lanes, uint64_t seed) {
  uint64_t hash = seed;
  for (uint64_t lane : lanes) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime3;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

std::array<uint64_t, 2> digest(const char* data, size_t bytes) {
  Lanes lanes;
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = kPrime3 * (i + 1);
  size_t at = 0;
  for (; at + kStripe <= bytes; at += kStripe) absorb(lanes, data + at);
  std::array<char, kStripe> last{};
  if (at < bytes) std::memcpy(last.data(), data + at, bytes - at);
  absorb(lanes, last.data());
  return {fold(lanes, bytes), fold(lanes, ~uint64_t{bytes})};
}

}  // namespace

void bind_digest(nb::module_& m) {
  m.def(
      "digest",
      [](nb::handle buffer) {
        Py_buffer view;
        if (PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
        std::array<uint64_t, 2> hash;
        {
          python::WithoutGil released;
          hash = digest(static_cast<const char*>(view.buf), static_cast<size_t>(view.len));
        }
        PyBuffer_Release(&view);
        return nb::bytes(reinterpret_cast<const char*>(hash.data()), sizeof hash);
      },
      nb::arg("buffer"), "128 bits of a contiguous buffer, at the speed of memory.");
}

}  // namespace penstock
