#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "penstock/io/glob.h"
#include "penstock/io/record_index.h"
#include "penstock/io/record_reader.h"
#include "penstock/io/record_stream.h"
#include "penstock/pipeline/plan/found_files.h"
#include "penstock/pipeline/plan/node.h"

namespace penstock {

// Records of files, one file after the other: what the sources that read files have in common.
//
// The files are found, looked at and indexed when the source is built for the first time, several
// at the same time, or their indices are read where these are kept beside them; every further build
// uses the same index. A build that is told what another one found (Builder::give) opens none. If
// one of them is compressed, or a stream was asked for, none is indexed, and the source becomes a
// stream. Building fails with Error kNotFound (no such file, a pattern without files), kSystem,
// kClosed (Builder::progress), and what the format says of a whole file. What is wrong with a
// record is that element's failure, at its place: kDataLoss, and kNotFound or kSystem for a file
// that vanished or cannot be read. It names the file, the record's number in it, its first byte and
// the bytes that are lost.
class FileSource {
 public:
  struct Reading {
    std::string compression = "none";  // "": the files tell
    bool stream = false;
    std::string index = {};  // "beside": kept beside each file; else in memory
  };

  virtual ~FileSource() = default;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  std::string title() const;
  Built build(Builder& builder) const;

 protected:
  // `operation`: the source's name, a literal. Error kInvalidArgument: no paths; a compression, or
  // a place for the index, that is not known; a stream and such a place.
  FileSource(const char* operation, Paths paths, const Reading& reading);

  const char* operation() const { return operation_; }

 private:
  virtual RecordIndex index(const std::shared_ptr<File>& file, Progress* progress) const = 0;
  // What a kept index's format is called. REQUIRED: only asked of sources whose Reading::index may
  // be other than the default.
  virtual std::string index_format() const { return operation_; }
  virtual IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const = 0;
  // How a file is compressed, by what is in it.
  virtual Compression compression_of(File& file) const { return (void)file, Compression::kNone; }
  // Bytes of a file in front of its records, where it is read from the front. Errors as of build.
  virtual bool has_front() const { return false; }
  virtual uint64_t front(const std::shared_ptr<File>& file, Compression compression) const {
    return (void)file, (void)compression, 0;
  }
  // REQUIRED: only asked of sources whose Reading may be other than the default.
  virtual StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const;
  // Behind the files in the title.
  virtual std::string arguments() const { return {}; }

  // What else the source knows of these files, all of which it looked at; and a source that did not
  // is told. Calls are not at the same time.
  virtual std::vector<int64_t> about(const std::vector<std::string>& paths) const {
    return (void)paths, std::vector<int64_t>();
  }
  virtual void recall(const std::vector<std::string>& paths, std::span<const int64_t> about) const {
    (void)paths, (void)about;
  }

  FoundFilesRef find(Builder& builder) const;
  RecordIndex index_of(Builder& builder, const std::shared_ptr<File>& file) const;

  const char* const operation_;
  const Paths paths_;
  const std::optional<Compression> compression_;  // nothing: the files tell
  const bool stream_, beside_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<FileSystem> found_in_;  // whose files these are
  mutable FoundFilesRef found_;
};

// The node of such a source.
Node::Ref file_source(std::shared_ptr<const FileSource> source);

// What such a source becomes: records of one leaf without a name, or of more. Readers come from the
// format.
class FileStage : public Indexed {
 public:
  FileStage(std::shared_ptr<const RecordFiles> files, std::string title, SpecRef spec);
  FileStage(std::shared_ptr<const RecordFiles> files, std::string title, Leaf leaf)
      : FileStage(std::move(files), std::move(title),
                  std::make_shared<ElementSpec>(std::vector<Leaf>{std::move(leaf)})) {}

  uint64_t length(uint64_t) const override { return files_->size(); }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return false; }
  std::string origin(const Context& context, const At& at, uint64_t position) const override;

  const std::shared_ptr<const RecordFiles>& files() const { return files_; }
  const std::string& title() const { return title_; }
  // The rows of a read that failed are lost.
  void fail(std::span<const RecordReader::Failure> failures, std::span<const uint64_t> positions,
            Chunk& out, uint32_t row) const;

 private:
  std::shared_ptr<const RecordFiles> files_;
  std::string title_;
  SpecRef spec_;
};

}  // namespace penstock
