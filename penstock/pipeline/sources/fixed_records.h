#pragma once

#include <memory>
#include <string>

#include "penstock/pipeline/dataset_options.h"
#include "penstock/pipeline/sources/file_source.h"

namespace penstock {

// Records of one length, of files that are nothing else between a header and a footer: one leaf
// without a name, uint8 of shape {record_bytes}. Nothing is read to index them. Building fails with
// Error kDataLoss for a file whose length is another one than that of whole records. Compressed
// files, or `stream`: a stream, of which what is left over is a record that is lost.
class FixedRecordsNode : public FileSource {
 public:
  // Errors as FileSource's, and kInvalidArgument: record_bytes is 0 or beyond 2^31 - 1.
  FixedRecordsNode(Paths paths, const FixedRecordOptions& options);

 private:
  RecordIndex index(const std::shared_ptr<File>& file, Progress* progress) const override;
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override;
  std::string arguments() const override;
  Compression compression_of(File& file) const override;
  bool has_front() const override { return options_.header_bytes > 0; }
  uint64_t front(const std::shared_ptr<File>& file, Compression compression) const override;
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override;

  const FixedRecordOptions options_;
};

}  // namespace penstock
