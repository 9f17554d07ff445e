#include "penstock/pipeline/sources/fixed_records.h"

#include <cstring>
#include <limits>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/fixed_records.h"

namespace penstock {
namespace {

class FixedRecords : public FileStage {
 public:
  FixedRecords(std::shared_ptr<const RecordFiles> files, std::string title, uint64_t bytes)
      : FileStage(std::move(files), std::move(title),
                  {"", LeafKind::kDense, DType::kUint8, {static_cast<int64_t>(bytes)}}) {}

  std::unique_ptr<IndexedReader> reader(Context&) const override {
    return std::make_unique<Reader>(*this);
  }

 private:
  class Reader : public IndexedReader {
   public:
    explicit Reader(const FixedRecords& stage)
        : stage_(stage), reader_(stage.files(), "fixed_records", false) {}

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      reader_.read(positions);
      std::byte* to = out.dense(0) + row * out.stride(0);
      for (uint32_t i = 0; i < positions.size(); ++i, to += out.stride(0)) {
        std::span<const std::byte> record = reader_.bytes(i);
        if (!record.empty()) std::memcpy(to, record.data(), record.size());
      }
      stage_.fail(reader_.failures(), positions, out, row);
    }

   private:
    const FixedRecords& stage_;
    RecordReader reader_;
  };
};

}  // namespace

FixedRecordsNode::FixedRecordsNode(Paths paths, const FixedRecordOptions& options)
    : FileSource("fixed_records", std::move(paths), options.compression), options_(options) {
  if (options.record_bytes == 0 || options.record_bytes > std::numeric_limits<int32_t>::max()) {
    throw Error(
        Code::kInvalidArgument, "fixed_records",
        "record_bytes is " + std::to_string(options.record_bytes) + "; give 1 to 2147483647");
  }
}

RecordIndex FixedRecordsNode::index(File& file) const {
  return index_fixed_records(file, options_.record_bytes, options_.header_bytes,
                             options_.footer_bytes);
}

IndexedRef FixedRecordsNode::stage(std::shared_ptr<const RecordFiles> files,
                                   std::string title) const {
  return std::make_shared<FixedRecords>(std::move(files), std::move(title), options_.record_bytes);
}

std::string FixedRecordsNode::arguments() const {
  std::string text = ", record_bytes=" + std::to_string(options_.record_bytes);
  if (options_.header_bytes != 0) text += ", header=" + std::to_string(options_.header_bytes);
  if (options_.footer_bytes != 0) text += ", footer=" + std::to_string(options_.footer_bytes);
  return text;
}

}  // namespace penstock
