#pragma once

#include <functional>
#include <memory>
#include <string>

#include "penstock/io/record_stream.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

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
