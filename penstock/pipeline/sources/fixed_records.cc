#include "penstock/io/fixed_records.h"

#include <limits>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/sources/record_rows.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
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

}  // namespace penstock
