#pragma once

#include <functional>
#include <memory>
#include <string>

#include "penstock/io/record_stream.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// Records of files that are read from the front, because they are compressed or nobody wants to
// index them. State: {"file": number, "offset": bytes of what was inflated, "record": number in the
// file, "element": elements before it}; loading one inflates its file up to there.
class FileStreamReader : public ElementReader {
 public:
  // `title`: the stage's. Both outlive it.
  FileStreamReader(std::shared_ptr<const StreamFiles> files, const char* operation,
                   const std::string& title, std::unique_ptr<Framing> framing,
                   const Context& context);

  void begin(uint64_t epoch) override;
  uint32_t next(uint32_t most, Chunk& out) override;
  State save() const override;
  void load(uint64_t epoch, const State& state) override;

 protected:
  RecordStream& records() { return records_; }
  // Row `row` of the last read() is lost: of all its record's bytes, for this reason.
  void fail(uint32_t row, Chunk& out, const std::string& why);

 private:
  // Rows [0, count) of `out` become those of records(). What failed there is said already.
  virtual void make(uint32_t count, Chunk& out) = 0;
  virtual const SpecRef& spec() const = 0;

  const std::string& title_;
  RecordStream records_;
  StreamMemory::Part buffer_;
  uint64_t element_ = 0;  // of the last read()'s first row
  uint32_t count_ = 0;    // and how many there were
};

// Such records as they are: elements of one leaf without a name.
class FileStream : public Streamed {
 public:
  FileStream(std::shared_ptr<const StreamFiles> files, const char* operation, std::string title,
             Leaf leaf, std::function<std::unique_ptr<Framing>()> framing);

  SpecRef spec() const override { return spec_; }
  std::optional<uint64_t> length() const override { return std::nullopt; }
  bool python() const override { return false; }
  std::unique_ptr<ElementReader> reader(Context& context) const override;

 private:
  class Reader;

  const std::shared_ptr<const StreamFiles> files_;
  const char* const operation_;
  const std::string title_;
  const SpecRef spec_;
  const std::function<std::unique_ptr<Framing>()> framing_;
};

}  // namespace penstock
