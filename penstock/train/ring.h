#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/train/channel_layout.h"

namespace penstock::train {

// Records on their way from one producer to one learner, in memory that both have. Neither takes a
// lock, so whoever is killed, at whatever instruction, has put or taken a record or has not.
//
// 1. `tail` is moved by the producer alone, after the record was written: what lies before it is
//    whole. `head` only goes forward, by compare-and-swap from one record's place to the next.
// 2. Places count records, so two of them are equal only if nothing happened in between.
// 3. The producer writes only where no record lies between head and tail.
// 4. The learner takes a record by moving head past it, after it copied it out. Where the producer
//    may drop the oldest record it does so by the same: whoever moves head has the record. The
//    learner may then have copied what was being written over, but its move fails. So that this is
//    no data race, both ends copy by atomic words in such a ring (`contended`): a word that the
//    learner read and that was written after a drop makes that drop visible to its move.
//
// Threads: one writer and one reader at a time; the const members any.
class Ring {
 public:
  static constexpr uint64_t kMostBytes = uint64_t{1} << 33;

  struct Place {
    uint64_t count = 0;  // records before it, modulo 2^kCountBits
    uint64_t at = 0;     // byte, below the capacity
  };
  static constexpr int kCountBits = 36;
  static constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;

  // `data`: the ring's bytes, twice in a row. `capacity` is a multiple of 64, at most kMostBytes.
  Ring(RingWords* words, std::byte* data, uint64_t capacity, bool contended)
      : words_(words), data_(data), capacity_(capacity), contended_(contended) {}

  bool contended() const { return contended_; }
  Place head() const { return unpack(words_->head.load()); }
  Place tail() const { return unpack(words_->tail.load()); }
  uint64_t queued() const;        // records
  uint64_t queued_bytes() const;  // at most the capacity

  // ---- the producer's side. `bytes`: of a record, a multiple of 64, at most the capacity.

  // Whether there is room at the tail.
  bool has_room(uint64_t bytes) const;
  // Lets go of the oldest records until there is. Contended rings only.
  void make_room(uint64_t bytes);
  // The record's place; nobody reads there until put(). REQUIRED: has_room(bytes).
  std::byte* tail_data() const { return data_ + tail().at; }
  // A record that was made elsewhere, 8-byte aligned. REQUIRED: as above, contended.
  void write(const std::byte* record, uint64_t bytes);
  void put(uint64_t bytes);

  // ---- the learner's side.

  struct Record {
    Place place;
    const std::byte* data = nullptr;  // bytes that may be written over, if contended: copy()
    uint64_t bytes = 0;
    uint64_t spec_bytes = 0;
    bool sane = false;  // it is in the ring, and its sizes agree; otherwise it is not to be read
  };
  // The oldest record; false: there is none.
  bool front(Record& record) const;
  // To `to`, from `from` on within the record, which is a multiple of 8.
  void copy(const Record& record, uint64_t from, void* to, uint64_t bytes) const;
  // The record is still the oldest: what was copied of it is what was put.
  bool still(const Record& record) const;
  // The same, and it is not in the ring any more.
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
