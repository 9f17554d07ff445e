#include "penstock/io/tfrecord.h"

#include <utility>

#include "penstock/pipeline/sources/file_source.h"
#include "penstock/pipeline/sources/file_stream.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

Leaf bytes_leaf() { return {"", LeafKind::kBytes, DType::kUint8, {-1}}; }

class TFRecords : public FileStage {
 public:
  TFRecords(std::shared_ptr<const RecordFiles> files, std::string title)
      : FileStage(std::move(files), std::move(title), bytes_leaf()) {}

  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const TFRecords& stage, const Context& context)
        : stage_(stage), reader_(stage.files()), buffers_(context.memory) {}

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      reader_.read(positions);
      buffers_.is(reader_.memory_bytes());
      out.keep(reader_.memory());
      for (uint32_t i = 0; i < positions.size(); ++i) {
        std::span<const std::byte> payload = reader_.payload(i);
        const auto length = static_cast<int64_t>(payload.size());
        out.view(0, row + i, payload.data(), {&length, 1});
      }
      stage_.fail(reader_.failures(), positions, out, row);
    }

   private:
    const TFRecords& stage_;
    TFRecordReader reader_;
    StreamMemory::Part buffers_;
  };
};

class TFRecordSource : public FileSource {
 public:
  TFRecordSource(Paths paths, const TFRecordOptions& options)
      : FileSource("tfrecord", std::move(paths),
                   {options.compression, options.stream, options.index}) {}

 private:
  RecordIndex index(const std::shared_ptr<File>& file, Progress* progress) const override {
    return index_tfrecord(*file, progress);
  }
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override {
    return std::make_shared<TFRecords>(std::move(files), std::move(title));
  }
  Compression compression_of(File& file) const override { return compression_of_tfrecord(file); }
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override {
    return std::make_shared<FileStream>(std::move(files), "tfrecord", std::move(title),
                                        bytes_leaf(), tfrecord_framing);
  }
};

}  // namespace

Node::Ref nodes::tfrecord(Paths paths, const TFRecordOptions& options) {
  return file_source(std::make_shared<TFRecordSource>(std::move(paths), options));
}

}  // namespace penstock
