#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/train/channel_memory.h"

namespace penstock::train {

// A queue of records from one producer to one learner, in shared memory, without a lock. A process
// that is killed at any instruction has either put (or taken) a record or not.
//
// 1. Only the producer moves `tail`, after it wrote the record: records before `tail` are complete.
//    `head` only moves forward, by compare-and-swap from one record's place to the next.
// 2. Places count records, so two places are equal only if nothing happened in between.
// 3. The producer writes only where no record lies between head and tail.
// 4. The learner takes a record by moving head past it, after copying the record. A producer that
//    drops the oldest record moves head in the same way. Moving head takes the record. The
//    learner may then have copied bytes that were being overwritten, but its compare-and-swap
//    fails. To avoid a data race, both ends copy such rings (`contended`) by atomic words: if the
//    learner read a word written after a drop, its compare-and-swap sees that drop.
//
// Either process may leave anything in the memory that it writes. Neither end reads or writes
// outside the ring: a place beyond its end counts as its beginning for the producer, and makes a
// record invalid for the learner; a producer whose records are not as it wrote them drops all.
//
// Threads: one writer and one reader at a time; const members: any.
class Ring {
 public:
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 33;

  struct Place {
    uint64_t count = 0;  // records before it, modulo 2^kCountBits
    uint64_t at = 0;     // byte offset, below the capacity
  };
  static constexpr int kCountBits = 36;
  static constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;

  // `data`: the ring's bytes, mapped twice in a row. `capacity`: a multiple of 64, at most
  // kMaxBytes.
  Ring(RingWords* words, std::byte* data, uint64_t capacity, bool contended)
      : words_(words), data_(data), capacity_(capacity), contended_(contended) {}

  bool contended() const { return contended_; }
  Place head() const { return unpack(words_->head.load()); }
  Place tail() const;
  uint64_t queued() const;  // records
  // The number of records before a recent tail, since the ring was made: its count without modulo.
  uint64_t put_before(Place tail) const;
  uint64_t queued_bytes() const;  // at most the capacity

  // ---- the producer's side. `bytes`: of a record, a multiple of 64, at most the capacity.

  // Whether a record of `bytes` bytes fits at the tail.
  bool has_space(uint64_t bytes) const;
  // Drops the oldest records until it fits. Contended rings only.
  void make_space(uint64_t bytes);
  // The record's place; timeout_error reads there until put(). REQUIRED: has_space(bytes).
  std::byte* tail_data() const { return data_ + tail().at; }
  // Copies a complete record to the tail, from 8-byte aligned memory. REQUIRED: has_space(bytes),
  // contended.
  void write(const std::byte* record, uint64_t bytes);
  void put(uint64_t bytes);

  // ---- the learner's side.

  struct Record {
    Place place;
    const std::byte* data = nullptr;  // if contended, these bytes may be overwritten: use copy()
    uint64_t bytes = 0;
    uint64_t spec_bytes = 0;
    // the record lies in the ring and its sizes are consistent; else do not read it
    bool valid = false;
  };
  // Finds the oldest record; false: the ring is empty.
  bool front(Record& record) const;
  // Copies `bytes` bytes to `to`, from offset `from` of the record, a multiple of 8.
  void copy(const Record& record, uint64_t from, void* to, uint64_t bytes) const;
  // Whether the record is still the oldest: then everything copied from it is intact.
  bool is_oldest(const Record& record) const;
  // Removes the record if it is still the oldest; false otherwise.
  bool take(const Record& record);

 private:
  static uint64_t pack(Place place) {
    return (place.count & kCountMask) | (place.at / kRecordUnit) << kCountBits;
  }
  static Place unpack(uint64_t word) {
    return {word & kCountMask, (word >> kCountBits) * kRecordUnit};
  }
  Place after(Place place, uint64_t bytes) const;
  uint64_t used(Place head, Place tail) const;

  RingWords* words_;
  std::byte* data_;
  uint64_t capacity_;
  bool contended_;
};

}  // namespace penstock::train
