#include "penstock/pipeline/sources/record_rows.h"

#include <limits>
#include <numeric>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/fixed_records.h"
#include "penstock/memory/copy.h"
#include "penstock/pipeline/sources/file_source.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {

namespace {

class RecordRows : public FileStage {
 public:
  RecordRows(std::shared_ptr<const RecordFiles> files, const char* operation, std::string title,
             RecordLayout layout)
      : FileStage(std::move(files), std::move(title), layout.spec),
        operation_(operation),
        layout_(std::move(layout)) {}

  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const RecordRows& stage, const Context& context)
        : stage_(stage),
          reader_(stage.files(), stage.operation_, false),
          buffers_(context.memory) {}

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      reader_.read(positions);
      buffers_.is(reader_.memory_bytes());
      for (uint32_t i = 0; i < positions.size(); ++i) {
        if (reader_.bytes(i).empty()) continue;
        const std::string why = stage_.layout_.wrong(reader_.bytes(i));
        if (!why.empty()) reader_.fail(i, Code::kDataLoss, why);
      }
      for (size_t leaf = 0; leaf < stage_.layout_.parts.size(); ++leaf) {
        const RecordLayout::Part& part = stage_.layout_.parts[leaf];
        std::byte* to = out.dense(leaf) + row * out.stride(leaf);
        for (uint32_t i = 0; i < positions.size(); ++i, to += out.stride(leaf)) {
          const std::span<const std::byte> record = reader_.bytes(i);
          if (record.empty()) continue;  // the record failed
          copy_byteswapped(to, record.data() + part.begin, out.row_bytes(leaf), part.number);
        }
      }
      stage_.fail(reader_.failures(), positions, out, row);
    }

   private:
    const RecordRows& stage_;
    RecordReader reader_;
    StreamMemory::Part buffers_;
  };

  const char* const operation_;
  const RecordLayout layout_;
};

class RecordRowStream : public FileStreamStage {
 public:
  RecordRowStream(std::shared_ptr<const StreamFiles> files, const char* operation,
                  std::string title, RecordLayout layout,
                  std::function<std::unique_ptr<Framing>()> framing)
      : FileStreamStage(std::move(files), operation, std::move(title), layout.spec),
        layout_(std::move(layout)),
        framing_(std::move(framing)) {}

  std::optional<uint64_t> length() const override {
    const auto& counts = files()->counts;
    if (counts.empty()) return std::nullopt;
    return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public FileStreamReader {
   public:
    Reader(const RecordRowStream& stage, const Context& context)
        : FileStreamReader(stage, stage.framing_(), context), stage_(stage) {}

   private:
    void make(uint32_t count, Chunk& out) override {
      for (uint32_t i = 0; i < count; ++i) {
        if ((out.alive() >> i & 1) == 0) continue;
        const std::string why = stage_.layout_.wrong(records().row(i).bytes);
        if (!why.empty()) fail(i, out, why);
      }
      for (size_t leaf = 0; leaf < stage_.layout_.parts.size(); ++leaf) {
        const RecordLayout::Part& part = stage_.layout_.parts[leaf];
        for (uint32_t i = 0; i < count; ++i) {
          if ((out.alive() >> i & 1) == 0) continue;
          const std::byte* from = records().row(i).bytes.data() + part.begin;
          if (part.number == 1) {
            out.view(leaf, i, from);
          } else {
            copy_byteswapped(out.dense(leaf) + i * out.stride(leaf), from, out.row_bytes(leaf),
                             part.number);
          }
        }
      }
    }

    const RecordRowStream& stage_;
  };

  const RecordLayout layout_;
  const std::function<std::unique_ptr<Framing>()> framing_;
};

}  // namespace

std::string RecordLayout::wrong(std::span<const std::byte> record) const {
  for (size_t leaf = 0; leaf < parts.size(); ++leaf) {
    const auto& [begin, number, below] = parts[leaf];
    if (below == 0) continue;
    const auto label = std::to_integer<unsigned>(record[begin]);
    if (label < below) continue;
    return "'" + spec->leaves()[leaf].name + "', its byte " + std::to_string(begin) + ", is " +
           std::to_string(label) + " and not below " + std::to_string(below) +
           ": the file is of another format (an archive, another of its kind) or damaged";
  }
  return {};
}

IndexedRef record_rows(std::shared_ptr<const RecordFiles> files, const char* operation,
                       std::string title, RecordLayout layout) {
  return std::make_shared<RecordRows>(std::move(files), operation, std::move(title),
                                      std::move(layout));
}

StreamedRef record_rows(std::shared_ptr<const StreamFiles> files, const char* operation,
                        std::string title, RecordLayout layout,
                        std::function<std::unique_ptr<Framing>()> framing) {
  return std::make_shared<RecordRowStream>(std::move(files), operation, std::move(title),
                                           std::move(layout), std::move(framing));
}

namespace {

RecordLayout layout_of(uint64_t bytes) {
  return {std::make_shared<ElementSpec>(std::vector<Leaf>{
              {"", LeafKind::kDense, DType::kUint8, {static_cast<int64_t>(bytes)}}}),
          {RecordLayout::Part{}}};
}

class FixedRecordSource : public FileSource {
 public:
  FixedRecordSource(Paths paths, const FixedRecordOptions& options)
      : FileSource("fixed_records", std::move(paths), {options.compression, options.stream}),
        options_(options) {
    if (options.record_bytes == 0 || options.record_bytes > std::numeric_limits<int32_t>::max()) {
      throw Error(
          Code::kInvalidArgument, "fixed_records",
          "record_bytes is " + std::to_string(options.record_bytes) + "; give 1 to 2147483647");
    }
  }

 private:
  RecordIndex index(const std::shared_ptr<File>& file, Progress*) const override {
    return index_fixed_records(*file, options_.record_bytes, options_.header_bytes,
                               options_.footer_bytes);
  }
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override {
    return record_rows(std::move(files), "fixed_records", std::move(title),
                       layout_of(options_.record_bytes));
  }
  Compression compression_of(File& file) const override { return compression_of_fixed(file); }
  bool has_header() const override { return options_.header_bytes > 0; }
  uint64_t front(const std::shared_ptr<File>& file, Compression compression) const override {
    check_header_and_footer(file, compression, options_.header_bytes, options_.footer_bytes);
    return options_.header_bytes;
  }
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override {
    return record_rows(std::move(files), "fixed_records", std::move(title),
                       layout_of(options_.record_bytes),
                       [bytes = options_.record_bytes, footer = options_.footer_bytes] {
                         return fixed_framing(bytes, footer);
                       });
  }
  std::string arguments() const override {
    std::string text = ", record_bytes=" + std::to_string(options_.record_bytes);
    if (options_.header_bytes != 0) text += ", header=" + std::to_string(options_.header_bytes);
    if (options_.footer_bytes != 0) text += ", footer=" + std::to_string(options_.footer_bytes);
    return text;
  }

  const FixedRecordOptions options_;
};

}  // namespace

Node::Ref nodes::fixed_records(Paths paths, const FixedRecordOptions& options) {
  return file_source(std::make_shared<FixedRecordSource>(std::move(paths), options));
}

namespace {

enum class CifarKind { kCifar10, kCifar100 };

constexpr uint64_t kImage = 3 * 32 * 32;

uint64_t labels_of(CifarKind kind) { return kind == CifarKind::kCifar10 ? 1 : 2; }
uint64_t record_bytes(CifarKind kind) { return labels_of(kind) + kImage; }

Leaf label(const char* name) { return {name, LeafKind::kDense, DType::kUint8, {}}; }

RecordLayout layout_of(CifarKind kind) {
  std::vector<Leaf> leaves{{"image", LeafKind::kDense, DType::kUint8, {3, 32, 32}}, label("label")};
  std::vector<RecordLayout::Part> parts{{.begin = labels_of(kind)}};
  if (kind == CifarKind::kCifar10) {
    parts.push_back({.begin = 0, .below = 10});
  } else {
    leaves.push_back(label("coarse_label"));
    parts.push_back({.begin = 1, .below = 100});
    parts.push_back({.begin = 0, .below = 20});
  }
  return {std::make_shared<ElementSpec>(std::move(leaves)), std::move(parts)};
}

class CifarSource : public FileSource {
 public:
  CifarSource(CifarKind kind, Paths paths, const CifarOptions& options)
      : FileSource(kind == CifarKind::kCifar10 ? "cifar10" : "cifar100", std::move(paths),
                   {options.compression, options.stream}),
        kind_(kind) {}

 private:
  // A stream finds an incomplete record at the end of its file; an uncompressed file is checked
  // here.
  RecordIndex index(const std::shared_ptr<File>& file, Progress*) const override {
    const uint64_t size = file->size(), record = record_bytes(kind_), left = size % record;
    if (left != 0) {
      throw Error(Code::kDataLoss, operation(),
                  file->path() + " has " + std::to_string(size) +
                      " bytes, no whole number of records of " + std::to_string(record) + ": " +
                      std::to_string(left) + " are left over at byte " +
                      std::to_string(size - left) +
                      "; it was cut short, or is no file of the binary version");
    }
    return RecordIndex::equal(0, record, size / record);
  }
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override {
    return record_rows(std::move(files), operation(), std::move(title), layout_of(kind_));
  }
  // No valid label is the first byte of a gzip file, but a label may be the first byte of a zlib
  // file.
  Compression compression_of(File& file) const override { return compression_of_fixed(file); }
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override {
    return record_rows(std::move(files), operation(), std::move(title), layout_of(kind_),
                       [bytes = record_bytes(kind_)] { return fixed_framing(bytes, 0); });
  }

  const CifarKind kind_;
};

}  // namespace

Node::Ref nodes::cifar10(Paths paths, const CifarOptions& options) {
  return file_source(std::make_shared<CifarSource>(CifarKind::kCifar10, std::move(paths), options));
}

Node::Ref nodes::cifar100(Paths paths, const CifarOptions& options) {
  return file_source(
      std::make_shared<CifarSource>(CifarKind::kCifar100, std::move(paths), options));
}

}  // namespace penstock
