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

// The files that a source found, and what it knows of them. Immutable.
struct FoundFiles {
  std::shared_ptr<const RecordFiles> indexed;      // either these,
  std::shared_ptr<const StreamFiles> streamed;     // or these,
  std::shared_ptr<const FileListing> listed = {};  // or these
  std::vector<int64_t> about = {};                 // the source's own, of all of them
};
using FoundFilesRef = std::shared_ptr<const FoundFiles>;

// Files may come, grow and shrink after a plan was built, and a worker process that looked for
// itself would number other records than its consumer does. So it is told what was found, indices
// and all, in one file in memory, which all workers map: none goes over a file again.

// What the sources of a plan found, one after the other; a source that comes twice takes no more
// than once. Error kOutOfMemory, kSystem.
os::Fd write_found_files(std::span<const FoundFilesRef> found);

// The same, of files that `pool` opens; indices lie in the mapping. Nothing is opened. Error
// kInvalidArgument: that is not what was written; kOutOfMemory, kSystem.
std::vector<FoundFilesRef> read_found_files(const os::Fd& written,
                                            const std::shared_ptr<FilePool>& pool);

}  // namespace penstock
