#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "penstock/io/glob.h"
#include "penstock/io/record_reader.h"
#include "penstock/pipeline/node.h"

namespace penstock {

// Records of files, one file after the other: what the sources that read files have in common.
//
// The files are found and indexed when the node is built for the first time, several at the same
// time; every further build uses the same index. Building fails with Error kNotFound (no such file,
// a pattern without files), kSystem, and what the format says of a whole file. What is wrong with a
// record is that element's failure, at its place: kDataLoss, and kNotFound or kSystem for a file
// that vanished or cannot be read. It names the file, the record's number in it, its first byte and
// the bytes that are lost.
class FileSource : public Node {
 public:
  std::string title() const final;
  Built build(std::vector<Built> inputs, Builder& builder) const final;

 protected:
  // `operation`: the source's name, a literal. Error kInvalidArgument: no paths; a compression that
  // is not known, or not there yet.
  FileSource(const char* operation, Paths paths, const std::string& compression);

 private:
  virtual RecordIndex index(File& file) const = 0;
  virtual IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const = 0;
  // Behind the files in the title.
  virtual std::string arguments() const { return {}; }

  const char* const operation_;
  const Paths paths_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<FileSystem> found_in_;  // whose files these are
  mutable std::shared_ptr<const RecordFiles> files_;
};

// What such a node becomes: elements of one leaf without a name. Readers come from the format.
class FileStage : public Indexed {
 public:
  FileStage(std::shared_ptr<const RecordFiles> files, std::string title, Leaf leaf);

  uint64_t length(uint64_t) const override { return files_->size(); }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return false; }

  const std::shared_ptr<const RecordFiles>& files() const { return files_; }
  // The rows of a read that failed are lost.
  void fail(std::span<const RecordReader::Failure> failures, std::span<const uint64_t> positions,
            Chunk& out, uint32_t row) const;

 private:
  std::shared_ptr<const RecordFiles> files_;
  std::string title_;
  SpecRef spec_;
};

}  // namespace penstock
