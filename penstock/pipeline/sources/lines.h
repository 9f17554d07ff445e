#pragma once

#include <memory>
#include <string>

#include "penstock/pipeline/dataset_options.h"
#include "penstock/pipeline/sources/file_source.h"

namespace penstock {

// The lines of text files, without their ends: one leaf of text without a name. A line that is no
// UTF-8 is lost: kDataLoss, which names file, record and byte. Compressed files, or `stream`: a
// stream.
class LinesNode : public FileSource {
 public:
  // Errors as FileSource's.
  LinesNode(Paths paths, const LineOptions& options);

 private:
  RecordIndex index(const std::shared_ptr<File>& file, Progress* progress) const override;
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override;
  Compression compression_of(File& file) const override;
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override;
};

}  // namespace penstock
