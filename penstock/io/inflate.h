#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"

namespace penstock {

// The bytes of a compressed file, in order, as many at a time as are asked for; checksums verified.
// gzip: all members one after the other, and zeros that fill up the end. Memory: some 150 KiB,
// whatever the file says. One thread.
class Inflate {
 public:
  // REQUIRED: `compression` is not kNone.
  Inflate(std::shared_ptr<File> file, Compression compression);
  ~Inflate();

  // Fills `to`, less only at the end or before damage; 0 at the end. Error kDataLoss where the
  // compressed bytes are wrong or end too early, or kSystem; now and at each call after that.
  size_t read(std::span<std::byte> to);

  // Bytes of the file that were used. After damage: about where it is, the nearer the less was
  // asked for at a time.
  uint64_t used() const;

 private:
  struct State;

  size_t step(std::span<std::byte> to);
  bool refill();
  bool begin_member();
  void damaged(const char* why);

  const std::unique_ptr<State> state_;
};

}  // namespace penstock
