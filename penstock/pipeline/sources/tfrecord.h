#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "penstock/io/glob.h"
#include "penstock/io/tfrecord_files.h"
#include "penstock/pipeline/dataset_options.h"
#include "penstock/pipeline/node.h"

namespace penstock {

// The records of TFRecord files, one file after the other: one leaf of bytes without a name.
//
// The files are found and indexed when the node is built for the first time, several at the same
// time; every further build uses the same index. Building fails with Error kNotFound (no such file,
// a pattern without files) and kSystem. What is wrong with a record is that element's failure, at
// its place: kDataLoss, and kNotFound or kSystem for a file that vanished or cannot be read. It
// names the file, the record's number in it, its first byte and the bytes that are lost. A stretch
// where nobody knows how many records it had is one element.
class TFRecordNode : public Node {
 public:
  // Error kInvalidArgument: no paths; a compression that is not known, or not there yet.
  TFRecordNode(Paths paths, const TFRecordOptions& options);

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  const Paths paths_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<FileSystem> found_in_;  // whose files these are
  mutable std::shared_ptr<const TFRecordFiles> files_;
};

}  // namespace penstock
