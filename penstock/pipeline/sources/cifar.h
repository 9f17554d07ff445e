#pragma once

#include <memory>
#include <string>

#include "penstock/pipeline/dataset_options.h"
#include "penstock/pipeline/sources/record_rows.h"

namespace penstock {

// The records of CIFAR's binary files: labels, a byte each, and a picture of 32 by 32 pixels, all
// of its red, then green, then blue, row by row. Elements are {image, label}, uint8 (3, 32, 32) and
// (); of CIFAR-100 {image, label, coarse_label}.
//
// A file has no header, so building can only say (Error kDataLoss) that its length is not that of
// whole records. A record with a label that there is none of is lost: kDataLoss. Compressed files,
// or `stream`: a stream.
//
// (A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; the layout is that
// of the binary versions on the data sets' page.)
class CifarNode : public FileSource {
 public:
  enum class Kind { kCifar10, kCifar100 };

  // Errors as FileSource's.
  CifarNode(Kind kind, Paths paths, const CifarOptions& options);

 private:
  RecordIndex index(const std::shared_ptr<File>& file, Progress* progress) const override;
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override;
  Compression compression_of(File& file) const override;
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override;

  const char* operation() const { return kind_ == Kind::kCifar10 ? "cifar10" : "cifar100"; }

  const Kind kind_;
};

}  // namespace penstock
