#include "penstock/pipeline/sources/tfrecord.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/io/crc32c.h"
#include "penstock/io/tfrecord_reader.h"
#include "penstock/pipeline/builder.h"

namespace penstock {
namespace {

// Where a file's place on the disk is far, more threads than cores read ahead of one another.
constexpr unsigned kMostIndexing = 16;

class TFRecords : public Indexed {
 public:
  TFRecords(std::shared_ptr<const TFRecordFiles> files, std::string title)
      : files_(std::move(files)),
        title_(std::move(title)),
        spec_(std::make_shared<ElementSpec>(
            std::vector<Leaf>{{"", LeafKind::kBytes, DType::kUint8, {-1}}})) {}

  uint64_t length(uint64_t) const override { return files_->size(); }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return false; }
  std::unique_ptr<IndexedReader> reader(Context&) const override {
    return std::make_unique<Reader>(*this);
  }

 private:
  class Reader : public IndexedReader {
   public:
    explicit Reader(const TFRecords& stage) : stage_(stage), reader_(stage.files_) {}

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      reader_.read(positions);
      out.keep(reader_.memory());
      for (uint32_t i = 0; i < positions.size(); ++i) {
        std::span<const std::byte> payload = reader_.payload(i);
        const auto length = static_cast<int64_t>(payload.size());
        out.view(0, row + i, payload.data(), {&length, 1});
      }
      for (const TFRecordReader::Failure& failure : reader_.failures()) {
        out.fail(static_cast<uint32_t>(row + failure.row),
                 {stage_.title_, positions[failure.row], std::make_exception_ptr(failure.error)});
      }
    }

   private:
    const TFRecords& stage_;
    TFRecordReader reader_;
  };

  std::shared_ptr<const TFRecordFiles> files_;
  std::string title_;
  SpecRef spec_;
};

}  // namespace

TFRecordNode::TFRecordNode(Paths paths, const TFRecordOptions& options) : paths_(std::move(paths)) {
  if (paths_.patterns.empty()) {
    throw Error(Code::kInvalidArgument, "tfrecord", "the list of files is empty");
  }
  const std::string& compression = options.compression;
  if (compression.empty()) return;
  if (compression != "gzip" && compression != "zlib") {
    throw Error(Code::kInvalidArgument, "tfrecord",
                "compression is '" + compression + "'; give 'gzip', 'zlib', or '' for none");
  }
  throw Error(Code::kInvalidArgument, "tfrecord",
              "compression '" + compression +
                  "': a compressed file can only be read as a stream, and streams are not there "
                  "yet; decompress the files");
}

// Nothing is opened for it. Of a long list: its beginning, its length, and a checksum of the rest.
std::string TFRecordNode::title() const {
  constexpr size_t kMost = 3;
  std::string text = "tfrecord(";
  uint32_t crc = 0;
  for (size_t i = 0; i < paths_.patterns.size(); ++i) {
    const std::string& pattern = paths_.patterns[i];
    if (i < kMost) text += (i == 0 ? "" : ", ") + pattern;
    // Together with the zero at its end.
    crc = crc32c(std::as_bytes(std::span(pattern.c_str(), pattern.size() + 1)), crc);
  }
  if (paths_.patterns.size() > kMost) {
    std::array<char, 9> digits;
    std::snprintf(digits.data(), digits.size(), "%08x", crc);
    text += ", and " + std::to_string(paths_.patterns.size() - kMost) + " more: " + digits.data();
  }
  return text + ")";
}

Built TFRecordNode::build(std::vector<Built>, Builder& builder) const {
  std::lock_guard lock(mutex_);
  if (files_ == nullptr || found_in_ != builder.files()) {
    files_ = index_tfrecords(builder.pool(), glob(*builder.files(), paths_),
                             std::min(os::usable_cores() * 2, kMostIndexing));
    found_in_ = builder.files();
  }
  return {std::make_shared<TFRecords>(files_, title())};
}

}  // namespace penstock
