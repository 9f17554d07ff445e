#pragma once

#include <memory>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"
#include "penstock/io/framing.h"

namespace penstock {

// TFRecord for whoever goes through it from the front: both checksums of every record are verified,
// and what is lost is what index_tfrecord() and TFRecordReader lose of the same bytes.
std::unique_ptr<Framing> tfrecord_framing();

// How a TFRecord file is compressed, by its first bytes; a file whose first record is sound is not,
// and of the others those named so are gzip files. Error kSystem. Any thread.
Compression compression_of_tfrecord(File& file);

}  // namespace penstock
