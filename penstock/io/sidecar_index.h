#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/io/file.h"
#include "penstock/io/record_index.h"

namespace penstock {

// Record indices that are stored beside their files, so that later runs need not index the files
// again; docs/formats.md has the bytes. An index records the file's format, size and modification
// time, and has a checksum over all of its bytes. An index that is damaged, or does not match the
// file's current state, is never used.

// Appended to a file's name to get the name of its index. No pattern of glob() matches it.
inline constexpr std::string_view kIndexSuffix = ".penstock-index";

// The file that an index describes.
struct IndexedFile {
  std::string format;       // of the records, at most 8 characters: "tfrecord"
  uint64_t begin = 0;       // the earliest offset of the first record
  uint64_t bytes = 0;       // of the file
  int64_t modified_ns = 0;  // as in TimestampedFile
  bool operator==(const IndexedFile&) const = default;
};

// Error kSystem. REQUIRED: the index ends at the end of the file. One thread.
void write_index(Sink& sidecar, const RecordIndex& index, const IndexedFile& of);

// nullopt: the index is damaged, or does not match the file. Checks every length, and allocates no
// more memory than `sidecar` has bytes for. Errors as File::read(). Any thread.
std::optional<RecordIndex> read_index(File& sidecar, const IndexedFile& of);

// The stored index of `file`. Without a valid one, calls `make` and stores its result. A failure to
// store the index (a read-only folder, a full disk, a file that changes meanwhile or has no
// modification time) is ignored. Several processes may call this for one file at the same time:
// each gets a complete index, and so does the disk. Errors of `make`, and of `file`. Any thread.
RecordIndex load_or_build_index(FileSystem& files, File& file, std::string format, uint64_t begin,
                                const std::function<RecordIndex()>& make);

}  // namespace penstock
