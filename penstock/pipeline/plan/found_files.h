#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "penstock/base/os.h"
#include "penstock/io/file_listing.h"
#include "penstock/io/record_files.h"
#include "penstock/io/record_stream.h"

namespace penstock {

// The files that a source found, and their indices. Immutable.
struct FoundFiles {
  std::shared_ptr<const RecordFiles> indexed;      // either these
  std::shared_ptr<const StreamFiles> streamed;     // or these
  std::shared_ptr<const FileListing> listed = {};  // or these
  std::vector<int64_t> about = {};                 // used by the source itself
};
using FoundFilesRef = std::shared_ptr<const FoundFiles>;

// Files may be added, grow or shrink after a plan was built. A worker process that looked for files
// itself could then number records differently from its consumer. So workers get the found files
// and their indices in one memory file, which all workers map. They do not index files again.

// Writes the files found by a plan's sources. A source that occurs twice is written once. Error
// kOutOfMemory, kSystem.
os::Fd write_found_files(std::span<const FoundFilesRef> found);

// Reads them back. `pool` opens the files when they are used; indices stay in the mapping. Errors
// kInvalidArgument: not written by write_found_files(); kOutOfMemory, kSystem.
std::vector<FoundFilesRef> read_found_files(const os::Fd& written,
                                            const std::shared_ptr<FilePool>& pool);

}  // namespace penstock
