#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "penstock/io/idx.h"
#include "penstock/pipeline/dataset_options.h"
#include "penstock/pipeline/sources/record_rows.h"
#include "penstock/pipeline/transformations/zip.h"

namespace penstock {

// The rows of IDX files (the format of MNIST), which are as their header says: one leaf without a
// name, of the file's dtype in the machine's byte order and the shape of all axes but the first.
//
// Building reads every header and fails with Error kDataLoss for a file that is none, or is not as
// long as its header says, and with kInvalidArgument for files whose rows are not alike. Compressed
// files, or `stream`: a stream, whose length is known; a file of which then less or more can be
// inflated than its header says ends the pass with kDataLoss, whatever becomes of elements that
// fail, since what follows would stand beside another file's labels.
class IdxNode : public FileSource {
 public:
  // Errors as FileSource's. What options.labels says is for who pairs them.
  IdxNode(Paths paths, const IdxOptions& options);

  struct Counted {
    std::string path;
    uint64_t rows = 0;
  };
  // The files, as they were last built.
  std::vector<Counted> counted() const;

 private:
  RecordIndex index(const std::shared_ptr<File>& file, Progress* progress) const override;
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override;
  Compression compression_of(File& file) const override { return compression_of_idx(file); }
  bool has_front() const override { return true; }
  uint64_t front(const std::shared_ptr<File>& file, Compression compression) const override;
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override;
  std::vector<int64_t> about(const std::vector<std::string>& paths) const override;
  void recall(const std::vector<std::string>& paths, std::span<const int64_t> about) const override;

  IdxHeader look(const std::shared_ptr<File>& file, Compression compression) const;
  IdxHeader agreed(const std::vector<std::string>& paths) const;

  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, IdxHeader> headers_;  // by path, as they were read
  mutable std::vector<Counted> counted_;
};

// Rows side by side with their labels, {image, label}: file by file there must be as many of one as
// of the other, or building fails with Error kInvalidArgument, which names both files.
class IdxPairsNode : public ZipNode {
 public:
  IdxPairsNode(std::shared_ptr<const IdxNode> images, std::shared_ptr<const IdxNode> labels);

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  const std::shared_ptr<const IdxNode> images_, labels_;
};

}  // namespace penstock
