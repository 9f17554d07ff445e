#pragma once

#include <memory>
#include <string>

#include "penstock/pipeline/dataset_options.h"
#include "penstock/pipeline/sources/file_source.h"

namespace penstock {

// The records of TFRecord files: one leaf of bytes without a name. Both checksums of each are
// verified. A stretch where nobody knows how many records it had is one element. Compressed files,
// or `stream`: a stream.
class TFRecordNode : public FileSource {
 public:
  // Errors as FileSource's.
  TFRecordNode(Paths paths, const TFRecordOptions& options);

 private:
  RecordIndex index(const std::shared_ptr<File>& file, Progress* progress) const override;
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override;
  Compression compression_of(File& file) const override;
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override;
};

}  // namespace penstock
