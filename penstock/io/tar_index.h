#pragma once

#include <memory>
#include <string>
#include <vector>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"
#include "penstock/io/record_index.h"

namespace penstock {

// Indexes an archive in one pass over its headers. Where no valid header is, the pass continues at
// the next block that is one. The bytes between are a damaged place, together with the samples
// before and behind them that have fewer entries than the first sample. An entry that the end of
// the file cuts makes its sample a damaged place. Uses 64 KiB of memory besides the index.
//
// Error kDataLoss if the file becomes shorter meanwhile, kSystem, kClosed. Any thread.
RecordIndex index_tar(File& file, Progress* progress = nullptr);

// What is wrong in a damaged place of index_tar(), with the byte. Errors as File::read(). Any
// thread.
std::string explain_tar_damage(File& file, const RecordIndex::Place& place);

// The extensions of the first sample that is not beside damage, in order and in lower case; if
// there is none, of the one with most; empty: there is no sample. Reads headers only; of a
// compressed file all bytes up to the second sample. Error kSystem. Any thread.
std::vector<std::string> first_tar_fields(const std::shared_ptr<File>& file,
                                          Compression compression);

}  // namespace penstock
