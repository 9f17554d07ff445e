#include "penstock/io/tfrecord_files.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {

TFRecordFiles::TFRecordFiles(std::shared_ptr<FilePool> pool, std::vector<std::string> paths,
                             std::vector<RecordIndex> indices)
    : pool_(std::move(pool)), paths_(std::move(paths)), indices_(std::move(indices)), begins_{0} {
  if (paths_.size() != indices_.size()) {
    throw Error(Code::kInvalidArgument, "tfrecord",
                std::to_string(paths_.size()) + " files, but " + std::to_string(indices_.size()) +
                    " indices");
  }
  for (size_t i = 0; i < paths_.size(); ++i) {
    numbers_.push_back(pool_->add(paths_[i]));
    begins_.push_back(begins_.back() + indices_[i].size());
  }
}

size_t TFRecordFiles::file_of(uint64_t record) const {
  // The last file that begins at or before it: files without records begin there, too.
  return static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), record) -
                             begins_.begin()) -
         1;
}

}  // namespace penstock
