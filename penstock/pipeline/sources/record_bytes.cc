#include <memory>
#include <utility>

#include "penstock/io/lines.h"
#include "penstock/io/tfrecord.h"
#include "penstock/pipeline/sources/file_source.h"
#include "penstock/pipeline/sources/sources.h"

// Sources whose elements are the bytes of records of varying length.
namespace penstock {
namespace {

struct LineFormat {
  static constexpr const char* kName = "lines";
  static constexpr LeafKind kKind = LeafKind::kText;
  using Reader = LineReader;
  using Options = LineOptions;
  static constexpr auto index = index_lines;
  static constexpr auto compression = compression_of_text;
  static constexpr auto framing = line_framing;
};

struct TFRecordFormat {
  static constexpr const char* kName = "tfrecord";
  static constexpr LeafKind kKind = LeafKind::kBytes;
  using Reader = TFRecordReader;
  using Options = TFRecordOptions;
  static constexpr auto index = index_tfrecord;
  static constexpr auto compression = compression_of_tfrecord;
  static constexpr auto framing = tfrecord_framing;
};

template <class Format>
Leaf leaf_of() {
  return {"", Format::kKind, DType::kUint8, {-1}};
}

template <class Format>
class RecordBytes : public FileStage {
 public:
  RecordBytes(std::shared_ptr<const RecordFiles> files, std::string title)
      : FileStage(std::move(files), std::move(title), leaf_of<Format>()) {}

  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const RecordBytes& stage, const Context& context)
        : stage_(stage), reader_(stage.files()), buffers_(context.memory) {}

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      reader_.read(positions);
      buffers_.is(reader_.memory_bytes());
      out.keep(reader_.memory());
      for (uint32_t i = 0; i < positions.size(); ++i) {
        const std::span<const std::byte> payload = reader_.payload(i);
        const auto length = static_cast<int64_t>(payload.size());
        out.view(0, row + i, payload.data(), {&length, 1});
      }
      stage_.fail(reader_.failures(), positions, out, row);
    }

   private:
    const RecordBytes& stage_;
    typename Format::Reader reader_;
    StreamMemory::Part buffers_;
  };
};

template <class Format>
class RecordBytesSource : public FileSource {
 public:
  RecordBytesSource(Paths paths, const typename Format::Options& options)
      : FileSource(Format::kName, std::move(paths),
                   {options.compression, options.stream, options.index}) {}

 private:
  RecordIndex index(const std::shared_ptr<File>& file, Progress* progress) const override {
    return Format::index(*file, progress);
  }
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override {
    return std::make_shared<RecordBytes<Format>>(std::move(files), std::move(title));
  }
  Compression compression_of(File& file) const override { return Format::compression(file); }
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override {
    return std::make_shared<FileStream>(std::move(files), Format::kName, std::move(title),
                                        leaf_of<Format>(), Format::framing);
  }
};

}  // namespace

Node::Ref nodes::lines(Paths paths, const LineOptions& options) {
  return file_source(std::make_shared<RecordBytesSource<LineFormat>>(std::move(paths), options));
}

Node::Ref nodes::tfrecord(Paths paths, const TFRecordOptions& options) {
  return file_source(
      std::make_shared<RecordBytesSource<TFRecordFormat>>(std::move(paths), options));
}

}  // namespace penstock
