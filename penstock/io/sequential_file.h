#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"
#include "penstock/io/inflate.h"

namespace penstock {

// The bytes of a file in order, inflated if it is compressed. One thread.
class SequentialFile {
 public:
  SequentialFile(std::shared_ptr<File> file, Compression compression);

  // As Inflate's: fills `to`, less only at the end or before damage; 0 at the end. Error kDataLoss,
  // kSystem; now and at each call after that.
  size_t read(std::span<std::byte> to);

  // Leaves out as much, of a file that is not compressed, as far as it goes.
  void skip(uint64_t bytes);

  bool compressed() const { return inflate_.has_value(); }
  // Bytes of the file that were not used yet; about, where it is compressed.
  uint64_t left() const { return size_ - (inflate_ ? inflate_->used() : offset_); }
  // The most bytes that read() may give in all: all of them, where nothing is compressed.
  uint64_t most() const;

 private:
  std::shared_ptr<File> file_;
  uint64_t size_, offset_ = 0;
  std::optional<Inflate> inflate_;
};

}  // namespace penstock
