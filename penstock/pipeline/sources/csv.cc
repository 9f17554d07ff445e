#include <array>
#include <cstdio>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/io/csv_parser.h"
#include "penstock/io/lines.h"
#include "penstock/pipeline/sources/file_source.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

using FormatRef = std::shared_ptr<const CsvFormat>;

Leaf leaf_of(const CsvColumn& column) {
  switch (column.kind) {
    case CsvColumn::Kind::kText:
      return {column.name, LeafKind::kText, DType::kUint8, {-1}};
    case CsvColumn::Kind::kBytes:
      return {column.name, LeafKind::kBytes, DType::kUint8, {-1}};
    case CsvColumn::Kind::kNumber:
      break;
  }
  return {column.name, LeafKind::kDense, column.dtype, {}};
}

// Escapes the bytes of a default value, since titles are text.
std::string shown(std::string_view bytes) {
  std::string text = "'";
  for (const char c : bytes) {
    if (c >= ' ' && c <= '~') {
      text += c;
    } else {
      std::array<char, 5> escaped;
      std::snprintf(escaped.data(), escaped.size(), "\\x%02x", static_cast<unsigned char>(c));
      text += escaped.data();
    }
  }
  return text + "'";
}

SpecRef spec_of(const CsvFormat& format) {
  std::vector<Leaf> leaves;
  for (const CsvColumn& column : format.columns) leaves.push_back(leaf_of(column));
  return std::make_shared<ElementSpec>(std::move(leaves));
}

// Writes parsed records into rows of a chunk. One thread.
class CsvRows {
 public:
  // The position of a record.
  struct Place {
    const std::string& path;
    Compression compression;
    uint64_t offset;
  };

  CsvRows(const FormatRef& format, std::shared_ptr<FilePool> pool, Scratch& scratch)
      : format_(format),
        pool_(pool),
        parser_(format, [&scratch](size_t bytes) { return scratch.take(bytes); }),
        values_(format->columns.size()),
        lines_(std::move(pool)) {}

  // Must be called before the first row of a chunk.
  void begin(Chunk& out, uint32_t row) {
    for (size_t leaf = 0; leaf < values_.size(); ++leaf) {
      if (format_->columns[leaf].kind != CsvColumn::Kind::kNumber) continue;
      std::byte* const first = out.dense(leaf);
      values_[leaf].row = first + row * out.stride(leaf);
    }
  }

  // Writes a record as the next row. Returns why the record failed; empty: it did not.
  std::string next(std::span<const std::byte> record, const Place& place, Chunk& out,
                   uint32_t row) {
    std::string why;
    try {
      if (!parser_.parse(record, header(place), values_)) why = parser_.failure();
    } catch (const Error& error) {  // the header: the file has changed
      why = error.what();
    }
    if (why.empty()) {
      give_text(out, row);
    } else if (auto line = lines_.line_at(place.path, place.compression, place.offset)) {
      why = "line " + std::to_string(*line) + ", " + why;
    }
    skip(out);
    return why;
  }
  // Moves on to the next row. Called instead of next() for a record that already failed.
  void skip(const Chunk& out) {
    for (size_t leaf = 0; leaf < values_.size(); ++leaf) {
      if (values_[leaf].row != nullptr) values_[leaf].row += out.stride(leaf);
    }
  }

 private:
  const CsvHeader& header(const Place& place) {
    if (header_ != nullptr && *path_ == place.path) return *header_;
    auto found = headers_.find(place.path);
    if (found == headers_.end()) {
      CsvHeader header =
          read_csv_header(pool_->get(pool_->add(place.path)), place.compression, *format_);
      found = headers_.emplace(place.path, std::move(header)).first;
    }
    path_ = &found->first;
    header_ = &found->second;
    return *header_;
  }

  void give_text(Chunk& out, uint32_t row) {
    for (size_t leaf = 0; leaf < values_.size(); ++leaf) {
      if (format_->columns[leaf].kind == CsvColumn::Kind::kNumber) continue;
      const std::string_view text = values_[leaf].text;
      const auto length = static_cast<int64_t>(text.size());
      out.view(leaf, row, reinterpret_cast<const std::byte*>(text.data()), {&length, 1});
    }
  }

  const FormatRef format_;
  const std::shared_ptr<FilePool> pool_;
  CsvParser parser_;
  std::vector<CsvParser::Value> values_;
  LineCounter lines_;
  std::unordered_map<std::string, CsvHeader> headers_;
  const std::string* path_ = nullptr;  // the path of header_
  const CsvHeader* header_ = nullptr;
};

class Csv : public FileStage {
 public:
  Csv(std::shared_ptr<const RecordFiles> files, std::string title, FormatRef format, SpecRef spec)
      : FileStage(std::move(files), std::move(title), std::move(spec)),
        format_(std::move(format)) {}

  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const Csv& stage, Context& context)
        : stage_(stage),
          reader_(stage.files(), "csv", false),
          buffers_(context.memory),
          rows_(stage.format_, stage.pool(), context.scratch) {}

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      const RecordFiles& files = *stage_.files();
      reader_.read(positions);
      buffers_.is(reader_.memory_bytes());
      out.keep(reader_.memory());
      rows_.begin(out, row);
      for (uint32_t i = 0; i < positions.size(); ++i) {
        if (reader_.bytes(i).empty()) {  // failed
          rows_.skip(out);
          continue;
        }
        const size_t file = files.file_of(positions[i]);
        const CsvRows::Place place{files.path(file), Compression::kNone,
                                   files.index(file).at(positions[i] - files.begin(file)).offset};
        const std::string why = rows_.next(reader_.bytes(i), place, out, row + i);
        if (!why.empty()) reader_.fail(i, Code::kDataLoss, why);
      }
      stage_.fail(reader_.failures(), positions, out, row);
    }

   private:
    const Csv& stage_;
    RecordReader reader_;
    StreamMemory::Part buffers_;
    CsvRows rows_;
  };

  std::shared_ptr<FilePool> pool() const { return files()->shared_pool(); }

  const FormatRef format_;
};

class CsvStream : public FileStreamStage {
 public:
  CsvStream(std::shared_ptr<const StreamFiles> files, std::string title, FormatRef format,
            SpecRef spec)
      : FileStreamStage(std::move(files), "csv", std::move(title), std::move(spec)),
        format_(std::move(format)) {}

  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public FileStreamReader {
   public:
    Reader(const CsvStream& stage, Context& context)
        : FileStreamReader(stage, csv_framing(stage.format_->delimiter), context),
          files_(*stage.files()),
          rows_(stage.format_, files_.pool, context.scratch) {}

   private:
    void make(uint32_t count, Chunk& out) override {
      rows_.begin(out, 0);
      for (uint32_t i = 0; i < count; ++i) {
        if ((out.alive() >> i & 1) == 0) {
          rows_.skip(out);
          continue;
        }
        const auto& [place, bytes] = records().row(i);
        const std::string why = rows_.next(
            bytes, {files_.paths[place.file], files_.compressions[place.file], place.offset}, out,
            i);
        if (!why.empty()) fail(i, out, why);
      }
    }

    const StreamFiles& files_;
    CsvRows rows_;
  };

  const FormatRef format_;
};

class CsvSource : public FileSource {
 public:
  CsvSource(Paths paths, const CsvOptions& options)
      : FileSource("csv", std::move(paths), {options.compression, options.stream, options.index}),
        format_(std::make_shared<CsvFormat>(options.columns, options.names, options.delimiter)),
        spec_(spec_of(*format_)) {
    const CsvParser checked(format_, {});
  }

 private:
  RecordIndex index(const std::shared_ptr<File>& file, Progress* progress) const override {
    return index_csv(*file, format_->delimiter, front(file, Compression::kNone), progress);
  }
  std::string index_format() const override { return std::string("csv") + format_->delimiter; }
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override {
    return std::make_shared<Csv>(std::move(files), std::move(title), format_, spec_);
  }
  Compression compression_of(File& file) const override { return compression_of_text(file); }
  bool has_header() const override { return true; }
  uint64_t front(const std::shared_ptr<File>& file, Compression compression) const override {
    return read_csv_header(file, compression, *format_).bytes;
  }
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override {
    return std::make_shared<CsvStream>(std::move(files), std::move(title), format_, spec_);
  }
  std::string arguments() const override {
    std::string text = ", " + spec_->to_string();
    for (const CsvColumn& column : format_->columns) {
      if (column.fallback) text += ", " + column.name + "=" + shown(*column.fallback);
    }
    if (format_->delimiter != ',') text += ", delimiter=" + shown({&format_->delimiter, 1});
    if (!format_->names.empty()) text += ", no header";
    return text;
  }

  const FormatRef format_;
  const SpecRef spec_;
};

}  // namespace

Node::Ref nodes::csv(Paths paths, const CsvOptions& options) {
  return file_source(std::make_shared<CsvSource>(std::move(paths), options));
}

}  // namespace penstock
