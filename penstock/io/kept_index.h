#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/io/file.h"
#include "penstock/io/record_index.h"

namespace penstock {

// Indices that are kept beside their files, so that who comes next need not go over these;
// docs/formats.md has the bytes. An index says which file it is of, as it was when it was gone
// over, and has a checksum over all of itself: one that is of another file, of one that changed
// since, or damaged, is never used.

// What the name of a file's index has behind the file's own. No pattern of glob() finds it.
inline constexpr std::string_view kIndexSuffix = ".penstock-index";

// What an index is of.
struct IndexedFile {
  std::string format;       // what its records are, at most 8 characters: "tfrecord"
  uint64_t begin = 0;       // where the first one may begin
  uint64_t bytes = 0;       // of the file
  int64_t modified_ns = 0;  // as DatedFile's
  bool operator==(const IndexedFile&) const = default;
};

// Error kSystem. REQUIRED: the index ends where the file does. One thread.
void write_index(Sink& kept, const RecordIndex& index, const IndexedFile& of);

// Nothing: it is not of this file, or it is damaged. Believes no length, and takes no memory that
// `kept` does not have bytes for. Errors as File::read's. Any thread.
std::optional<RecordIndex> read_index(File& kept, const IndexedFile& of);

// The index of `file` that is kept beside it; where there is none, or none that may be used, the
// one that `make` gives, which is kept from then on. Where it cannot be kept (a folder that nobody
// may write to, a full disk, a file that changes meanwhile or has no time) it is given all the
// same. Several processes may do this with one file at the same time: each has a whole index, and
// so has the disk. Errors are `make`'s, and File's of `file`. Any thread.
RecordIndex kept_index(FileSystem& files, File& file, std::string format, uint64_t begin,
                       const std::function<RecordIndex()>& make);

}  // namespace penstock
