#pragma once

#include <cstdint>
#include <memory>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"
#include "penstock/memory/dtype.h"
#include "penstock/memory/tensor.h"

namespace penstock {

// The header of an IDX file, the format of MNIST. All numbers are big-endian, the values too:
//
// - 2 bytes: zero
// - 1 byte: dtype (08 uint8, 09 int8, 0B int16, 0C int32, 0D float32, 0E float64)
// - 1 byte: number of axes, at least 1
// - 4 bytes for each axis: its length; the first axis is the rows
// - the values in C order, and nothing after them
//
// (Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits".)
struct IdxHeader {
  DType dtype = DType::kUint8;
  Shape shape;  // of one row
  uint64_t rows = 0;
  uint64_t row_bytes = 0;  // never 0
  uint64_t bytes = 0;      // of the header
};

// Reads the header and checks the file's size: exactly as long as the header says or, if
// compressed, long enough to contain that. Error kDataLoss, which names file and byte: no IDX file,
// too short, too long, or damaged compressed bytes; kSystem. Any thread.
IdxHeader read_idx_header(const std::shared_ptr<File>& file, Compression compression);

// How such a file is compressed: gzip or zlib, by its first bytes, which no IDX file has. Error
// kSystem. Any thread.
Compression compression_of_idx(File& file);

}  // namespace penstock
