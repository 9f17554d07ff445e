#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "numpy_api.h"
#include "penstock/memory/allocator.h"
#include "penstock/observe/counters.h"
#include "penstock/workers/ticket_ring.h"
#include "values.h"

namespace penstock::python {

inline constexpr uint8_t kOtherDtype = 255;  // in a packet: a pickled one follows

// Values as bytes: the result of a worker process, or a plain batch for one. A packet is a tree of
// one-letter nodes, which describes arrays without their bytes. Layout (integers in native byte
// order, without alignment):
//
//   packet := u32 bytes of the tree, node
//   node   := 'N' | 'b' u8 | 'i' i64 | 'f' f64 | 's' u32 utf8 | 'y' u32 bytes
//           | 'T' u32 node*            tuple        | 'L' u32 node*           list
//           | 'D' u32 (node node)*     dict         | 'M' class u32 node*     namedtuple
//           | 'C' class node('D')      dataclass, by its __dict__
//           | 'A' array | 'S' array    a NumPy scalar
//           | 'X' u32 dtype name, array   a torch tensor
//           | 'P' u64 pickle, u32 place*  anything else: pickle protocol 5 with its buffers
//   class  := u32 pickle
//   array  := u8 flags (1 C-contiguous, 2 read-only), u8 ndim, dtype, i64 shape*, i64 stride*
//   unless
//             contiguous, place
//   dtype  := u8 NumPy's type number, or 255 u32 pickle of the dtype
//   place  := 0 u64 bytes                 inline
//           | 1 BlockRef u64 delta        in a block of an arena, `delta` into it
//           | 2 u64 offset u64 bytes      after the tree, at tail + offset (no arena, or no space)
class Encoder {
 public:
  // `arena`: the worker's own allocator; `number`: the consumer's number for it.
  Encoder(Allocator& arena, uint32_t number, WorkerCounters& counters)
      : arena_(&arena), number_(number), counters_(counters) {}
  // Without an arena, so values that are not small go into the tail. plain: nothing is pickled, and
  // the tail refers to the arrays until write_tail(). remote: anything is encoded, and the tail is
  // valid until the next value is encoded, whatever other code does meanwhile.
  enum class Tailed { kPlain, kRemote };
  Encoder(Tailed tailed, WorkerCounters& counters) : tailed_(tailed), counters_(counters) {}

  // Encodes `value`, to which the caller has one reference. Arrays without any other reference are
  // handed over and not copied; drop `value` before the packet is sent. False: a Python exception
  // is set, and nothing is held. An encoder without an arena also returns false, without an
  // exception, if `value` needs a pickle.
  bool encode(PyObject* value);

  std::span<const std::byte> tree() const { return tree_; }
  uint64_t payload_bytes() const { return payload_; }
  // There was no arena, or no space, for some arrays: tree() and, from tail_offset() on,
  // write_tail() must be sent over the link.
  bool has_tail() const { return !tail_.empty(); }
  uint64_t tail_offset() const { return tail_offset(tree_.size()); }
  static uint64_t tail_offset(uint64_t tree) { return (tree + 63) / 64 * 64; }
  uint64_t tail_bytes() const { return tail_bytes_; }
  void write_tail(std::byte* to) const;
  // The tail in parts, with the gaps between them.
  std::vector<std::span<const std::byte>> tail_parts() const;

 private:
  bool plain_only() const { return tailed_ == Tailed::kPlain; }
  bool remote() const { return tailed_ == Tailed::kRemote; }
  bool node(PyObject* value, bool unique, int depth);
  bool parts(const Parts& parts, int depth);
  bool tensor(PyObject* value, bool unique);
  // `as_it_lies`: the array has no gaps, and a copy keeps its order instead of C order.
  bool array(PyArrayObject* array, bool unique, bool as_it_lies);
  bool pickled(PyObject* value);
  bool class_ref(PyObject* type);
  void place_bytes(const void* data, size_t bytes, CopyReason reason, PyObject* keep);
  // `ours`: no other object refers to the array.
  void place_array(PyArrayObject* array, CopyReason reason, bool ours);
  void count(size_t n);
  void put(const void* bytes, size_t n);
  template <class T>
  void put(T value) {
    put(&value, sizeof(value));
  }
  std::optional<penstock::Ref> share(void* block);
  struct Space {
    void* block;  // must be released
    penstock::Ref ref;
  };
  std::optional<Space> space_for(size_t bytes);
  void put_block(const penstock::Ref& ref, void* block, const void* data);

  struct Tail {
    uint64_t offset, bytes;
    const void* data;
    Owned keep;
  };
  std::optional<Tailed> tailed_;  // nullopt: there is an arena
  Allocator* arena_ = nullptr;
  uint32_t number_ = 0;
  WorkerCounters& counters_;
  PlainValue met_;  // without an arena
  size_t nodes_ = 0, arrays_ = 0;
  std::vector<std::byte> tree_;
  std::vector<Tail> tail_;
  std::vector<penstock::Ref> shared_;
  uint64_t tail_bytes_ = 0;
  uint64_t payload_ = 0;
};

// Returns the arena with a packet's number; nullptr: it no longer exists.
using ArenaOf = std::function<std::shared_ptr<Region>(uint32_t)>;

// Decodes a packet to a new reference; its arrays hold leases on their blocks. nullptr: a Python
// exception is set (for an invalid packet penstock's Internal error).
// `tail`: the bytes after the tree and their owner, if there are any.
PyObject* decode(std::span<const std::byte> tree, std::span<std::byte> tail,
                 std::shared_ptr<void> tail_owner, const ArenaOf& arena_of);

// For hand-over in the consumer's process: returns `value` (stolen) with copies of all arrays that
// other objects refer to. Counts like an encoder. nullptr: a Python exception is set.
PyObject* detach(PyObject* value, WorkerCounters& counters, uint64_t& payload_bytes);

}  // namespace penstock::python
