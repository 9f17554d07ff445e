#include "penstock/pipeline/sources/file_stream.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/streams/streams.h"

namespace penstock {
namespace {

// Throws once the loader is closed, which stops reads of large records and of long damaged
// stretches.
std::function<void()> alive(const Context& context) {
  return [&context] { context.check_open(); };
}

}  // namespace

FileStreamReader::FileStreamReader(const FileStreamStage& stage, std::unique_ptr<Framing> framing,
                                   const Context& context)
    : stage_(stage),
      records_(stage.files(), stage.operation(), std::move(framing), alive(context)),
      buffer_(context.memory) {}

void FileStreamReader::begin(uint64_t) {
  records_.begin();
  element_ = count_ = 0;
}

uint32_t FileStreamReader::next(uint32_t most, Chunk& out) {
  element_ += std::exchange(count_, 0);
  count_ = static_cast<uint32_t>(records_.read(most));
  buffer_.is(records_.memory_bytes());
  if (count_ == 0) return 0;
  out.reset(stage_.spec(), count_);
  for (const RecordStream::Failure& failure : records_.failures()) {
    Failure lost{stage_.title(), element_ + failure.row,
                 std::make_exception_ptr(records_.error_of(failure))};
    if (failure.fatal) lost.decision = Decision::kRaise;
    out.fail(static_cast<uint32_t>(failure.row), std::move(lost));
  }
  make(count_, out);
  return count_;
}

void FileStreamReader::fail(uint32_t row, Chunk& out, const std::string& why) {
  const RecordStream::Failure failure{row, records_.row(row).bytes.size(), false, Code::kDataLoss,
                                      why};
  out.fail(row,
           {stage_.title(), element_ + row, std::make_exception_ptr(records_.error_of(failure))});
}

void FileStreamReader::set_origin(uint32_t row, Chunk& out) {
  const RecordStream::Place& place = records_.row(row).place;
  if (file_ == nullptr || place.file != number_) {
    number_ = place.file;
    file_ = std::make_shared<const std::string>(records_.files().paths[number_]);
  }
  out.set_origin(row, file_, place.record);
}

State FileStreamReader::save() const {
  const RecordStream::Place& place = records_.place();
  return {{"file", place.file},
          {"offset", place.offset},
          {"record", place.record},
          {"element", element_ + count_}};
}

void FileStreamReader::load(uint64_t, const State& state) {
  const RecordStream::Place place{count_in(state, "file"), count_in(state, "offset"),
                                  count_in(state, "record")};
  const uint64_t element = count_in(state, "element");
  records_.seek(place);
  element_ = element;
  count_ = 0;
}

class FileStream::Reader : public FileStreamReader {
 public:
  Reader(const FileStream& stage, const Context& context)
      : FileStreamReader(stage, stage.framing_(), context), leaf_(stage.spec()->leaves()[0]) {}

 private:
  void make(uint32_t count, Chunk& out) override {
    // Origins are kept for records, which later stages parse. A line needs none.
    const bool origins = leaf_.kind == LeafKind::kBytes;
    for (uint32_t i = 0; i < count; ++i) {
      if (origins) set_origin(i, out);
      const std::span<const std::byte> bytes = records().row(i).bytes;
      if (bytes.empty() && leaf_.fixed()) continue;  // the record failed
      const auto length = static_cast<int64_t>(bytes.size());
      out.view(0, i, bytes.data(), {&length, 1});
    }
  }

  const Leaf& leaf_;  // of the stage's spec
};

FileStream::FileStream(std::shared_ptr<const StreamFiles> files, const char* operation,
                       std::string title, Leaf leaf,
                       std::function<std::unique_ptr<Framing>()> framing)
    : FileStreamStage(std::move(files), operation, std::move(title),
                      std::make_shared<ElementSpec>(std::vector<Leaf>{std::move(leaf)})),
      framing_(std::move(framing)) {}

std::unique_ptr<ElementReader> FileStream::reader(Context& context) const {
  return std::make_unique<Reader>(*this, context);
}

}  // namespace penstock
