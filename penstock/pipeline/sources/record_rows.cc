#include "penstock/pipeline/sources/record_rows.h"

#include <numeric>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/memory/copy.h"
#include "penstock/pipeline/sources/file_stream.h"

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

}  // namespace penstock
