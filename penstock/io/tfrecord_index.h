#pragma once

#include "penstock/io/file.h"
#include "penstock/io/progress.h"
#include "penstock/io/record_index.h"

namespace penstock {

// One pass over the length fields of a TFRecord file; the payloads' checksums are looked at when
// they are read. Where a length field is wrong (its checksum, or more bytes than the file has left)
// the pass goes on at the next place where a length, its checksum and the payload's checksum agree;
// what lies before it, or else the rest of the file, is one damaged place. So the places cover the
// whole file, and an empty file has none. Takes no memory but the index and 64 KiB.
//
// Error kDataLoss if the file becomes shorter meanwhile, kSystem, kClosed. Any thread.
RecordIndex index_tfrecord(File& file, Progress* progress = nullptr);

}  // namespace penstock
