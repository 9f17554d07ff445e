#pragma once

#include <cstdint>
#include <memory>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"
#include "penstock/memory/dtype.h"
#include "penstock/memory/tensor.h"

namespace penstock {

// What an IDX file, the format of MNIST, says of itself. All numbers are big-endian, the values'
// too:
//
//   2 bytes  zero
//   1 byte   dtype: 08 uint8, 09 int8, 0B int16, 0C int32, 0D float32, 0E float64
//   1 byte   axes, at least 1
//   4 bytes  the length of each axis; that of the first one is how many rows there are
//   ...      the values in C order, and nothing behind them
//
// (Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits".)
struct IdxHeader {
  DType dtype = DType::kUint8;
  Shape shape;  // of one row
  uint64_t rows = 0;
  uint64_t row_bytes = 0;  // never 0
  uint64_t bytes = 0;      // of the header
};

// Reads it, and compares what it says with how long the file is: just so long, or, of what is
// compressed, whether that can be inflated from it. Error kDataLoss, which names file and byte: it
// is no IDX file, or was cut short, or has more bytes, or its bytes cannot be inflated; kSystem.
// Any thread.
IdxHeader read_idx_header(const std::shared_ptr<File>& file, Compression compression);

// How such a file is compressed: gzip or zlib, if it begins so, which no IDX file does. Error
// kSystem. Any thread.
Compression compression_of_idx(File& file);

}  // namespace penstock
