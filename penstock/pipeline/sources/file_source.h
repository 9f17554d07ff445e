#pragma once

#include <cstdint>
#include <functional>
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
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// Base of the sources that read the records of files, one file after the other.
//
// The first build finds, opens and indexes the files, several at the same time. Where indices are
// kept beside the files, the build reads these instead. Later builds use the same index. A build
// that gets the found files of another build (Builder::give) opens no file. If a file is
// compressed, or Reading::stream is set, no file is indexed and the source becomes a stream.
//
// Building throws Error kNotFound (no such file, or a pattern that matches no file), kSystem,
// kClosed (Builder::progress), and the format's own errors for a whole file. A bad record fails
// only its own element: kDataLoss, or kNotFound or kSystem for a file that vanished or cannot be
// read. The error names the file, the record's number in the file, the record's first byte and the
// number of lost bytes.
class FileSource {
 public:
  struct Reading {
    std::string compression = "none";  // "": inferred from the files
    bool stream = false;
    std::string index = {};  // "beside": kept beside each file; else only in memory
  };

  virtual ~FileSource() = default;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  std::string title() const;
  Built build(Builder& builder) const;

 protected:
  // `operation`: the source's name, a literal that outlives the source. Error kInvalidArgument: no
  // paths; an unknown compression; an unknown place for the index; a stream together with a place
  // for the index.
  FileSource(const char* operation, Paths paths, const Reading& reading);

  const char* operation() const { return operation_; }

 private:
  virtual RecordIndex index(const std::shared_ptr<File>& file, Progress* progress) const = 0;
  // The name of the format, as written into an index that is kept beside its file. REQUIRED: only
  // called for sources that allow Reading::index "beside".
  virtual std::string index_format() const { return operation_; }
  virtual IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const = 0;
  // The compression of a file, inferred from its contents.
  virtual Compression compression_of(File& file) const { return (void)file, Compression::kNone; }
  // The number of bytes before a file's first record. `has_header`: files have such bytes. Errors:
  // as of build().
  virtual bool has_header() const { return false; }
  virtual uint64_t front(const std::shared_ptr<File>& file, Compression compression) const {
    return (void)file, (void)compression, 0;
  }
  // REQUIRED: only called for sources that can be read as streams.
  virtual StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const;
  // Further arguments, which follow the files in the title.
  virtual std::string arguments() const { return {}; }

  // What the source read from these files besides their records (such as headers), as numbers that
  // restore_metadata() accepts. A source that did not open the files gets the numbers through
  // restore_metadata(). Calls do not overlap.
  virtual std::vector<int64_t> about(const std::vector<std::string>& paths) const {
    return (void)paths, std::vector<int64_t>();
  }
  virtual void restore_metadata(const std::vector<std::string>& paths,
                                std::span<const int64_t> about) const {
    (void)paths, (void)about;
  }

  FoundFilesRef find(Builder& builder) const;
  RecordIndex index_of(Builder& builder, const std::shared_ptr<File>& file) const;

  const char* const operation_;
  const Paths paths_;
  const std::optional<Compression> compression_;  // nullopt: inferred from the files
  const bool stream_, beside_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<FileSystem> found_in_;  // the file system of found_
  mutable FoundFilesRef found_;
};

// The node of a source that reads files.
Node::Ref file_source(std::shared_ptr<const FileSource> source);

// The indexed stage of such a source: each record is an element of one or more leaves. Derived
// classes make the readers.
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
  // Marks the rows of failed reads as failed.
  void fail(std::span<const RecordReader::Failure> failures, std::span<const uint64_t> positions,
            Chunk& out, uint32_t row) const;

 private:
  std::shared_ptr<const RecordFiles> files_;
  std::string title_;
  SpecRef spec_;
};

// Base of the streams of records of files, which are read from the front, because the files are
// compressed or a stream was asked for. `operation`: a literal.
class FileStreamStage : public Streamed {
 public:
  FileStreamStage(std::shared_ptr<const StreamFiles> files, const char* operation,
                  std::string title, SpecRef spec)
      : files_(std::move(files)),
        operation_(operation),
        title_(std::move(title)),
        spec_(std::move(spec)) {}

  SpecRef spec() const override { return spec_; }
  std::optional<uint64_t> length() const override { return std::nullopt; }
  bool python() const override { return false; }

  const std::shared_ptr<const StreamFiles>& files() const { return files_; }
  const char* operation() const { return operation_; }
  const std::string& title() const { return title_; }

 private:
  const std::shared_ptr<const StreamFiles> files_;
  const char* const operation_;
  const std::string title_;
  const SpecRef spec_;
};

// The reader of such a stage. State: {"file": number, "offset": inflated bytes, "record": number in
// the file, "element": number of elements before this one}. Loading a state inflates its file up to
// the offset.
class FileStreamReader : public ElementReader {
 public:
  // `stage` must outlive the reader.
  FileStreamReader(const FileStreamStage& stage, std::unique_ptr<Framing> framing,
                   const Context& context);

  void begin(uint64_t epoch) override;
  uint32_t next(uint32_t most, Chunk& out) override;
  State save() const override;
  void load(uint64_t epoch, const State& state) override;

 protected:
  RecordStream& records() { return records_; }
  // Row `row` of the last read() fails with kDataLoss for all bytes of its record. `why`: the
  // reason.
  void fail(uint32_t row, Chunk& out, const std::string& why);
  // Sets the origin of row `row` of the last read().
  void set_origin(uint32_t row, Chunk& out);

 private:
  // Fills rows [0, count) of `out` from records(). Rows whose records failed are already marked.
  virtual void make(uint32_t count, Chunk& out) = 0;

  const FileStreamStage& stage_;
  RecordStream records_;
  StreamMemory::Part buffer_;
  uint64_t element_ = 0;  // number of the first row of the last read()
  uint32_t count_ = 0;    // number of rows of the last read()
  uint64_t number_ = 0;   // number of the file that file_ names
  std::shared_ptr<const std::string> file_;
};

// A stream of records as elements of one leaf without a name.
class FileStream : public FileStreamStage {
 public:
  FileStream(std::shared_ptr<const StreamFiles> files, const char* operation, std::string title,
             Leaf leaf, std::function<std::unique_ptr<Framing>()> framing);

  std::unique_ptr<ElementReader> reader(Context& context) const override;

 private:
  class Reader;

  const std::function<std::unique_ptr<Framing>()> framing_;
};

}  // namespace penstock
