#include "penstock/io/lines.h"

#include <utility>

#include "penstock/pipeline/sources/file_source.h"
#include "penstock/pipeline/sources/file_stream.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

Leaf text_leaf() { return {"", LeafKind::kText, DType::kUint8, {-1}}; }

class Lines : public FileStage {
 public:
  Lines(std::shared_ptr<const RecordFiles> files, std::string title)
      : FileStage(std::move(files), std::move(title), text_leaf()) {}

  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const Lines& stage, const Context& context)
        : stage_(stage), reader_(stage.files()), buffers_(context.memory) {}

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      reader_.read(positions);
      buffers_.is(reader_.memory_bytes());
      out.keep(reader_.memory());
      for (uint32_t i = 0; i < positions.size(); ++i) {
        std::span<const std::byte> line = reader_.line(i);
        const auto length = static_cast<int64_t>(line.size());
        out.view(0, row + i, line.data(), {&length, 1});
      }
      stage_.fail(reader_.failures(), positions, out, row);
    }

   private:
    const Lines& stage_;
    LineReader reader_;
    StreamMemory::Part buffers_;
  };
};

class LineSource : public FileSource {
 public:
  LineSource(Paths paths, const LineOptions& options)
      : FileSource("lines", std::move(paths),
                   {options.compression, options.stream, options.index}) {}

 private:
  RecordIndex index(const std::shared_ptr<File>& file, Progress* progress) const override {
    return index_lines(*file, progress);
  }
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override {
    return std::make_shared<Lines>(std::move(files), std::move(title));
  }
  Compression compression_of(File& file) const override { return compression_of_text(file); }
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override {
    return std::make_shared<FileStream>(std::move(files), "lines", std::move(title), text_leaf(),
                                        line_framing);
  }
};

}  // namespace

Node::Ref nodes::lines(Paths paths, const LineOptions& options) {
  return file_source(std::make_shared<LineSource>(std::move(paths), options));
}

}  // namespace penstock
