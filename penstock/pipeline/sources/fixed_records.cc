#include "penstock/pipeline/sources/fixed_records.h"

#include <limits>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/fixed_records.h"
#include "penstock/pipeline/sources/record_rows.h"

namespace penstock {
namespace {

RecordLayout layout_of(uint64_t bytes) {
  return {std::make_shared<ElementSpec>(std::vector<Leaf>{
              {"", LeafKind::kDense, DType::kUint8, {static_cast<int64_t>(bytes)}}}),
          {RecordLayout::Part{}}};
}

}  // namespace

FixedRecordsNode::FixedRecordsNode(Paths paths, const FixedRecordOptions& options)
    : FileSource("fixed_records", std::move(paths), {options.compression, options.stream}),
      options_(options) {
  if (options.record_bytes == 0 || options.record_bytes > std::numeric_limits<int32_t>::max()) {
    throw Error(
        Code::kInvalidArgument, "fixed_records",
        "record_bytes is " + std::to_string(options.record_bytes) + "; give 1 to 2147483647");
  }
}

RecordIndex FixedRecordsNode::index(const std::shared_ptr<File>& file, Progress*) const {
  return index_fixed_records(*file, options_.record_bytes, options_.header_bytes,
                             options_.footer_bytes);
}

IndexedRef FixedRecordsNode::stage(std::shared_ptr<const RecordFiles> files,
                                   std::string title) const {
  return record_rows(std::move(files), "fixed_records", std::move(title),
                     layout_of(options_.record_bytes));
}

Compression FixedRecordsNode::compression_of(File& file) const {
  return compression_of_fixed(file);
}

uint64_t FixedRecordsNode::front(const std::shared_ptr<File>& file, Compression compression) const {
  check_header_and_footer(file, compression, options_.header_bytes, options_.footer_bytes);
  return options_.header_bytes;
}

StreamedRef FixedRecordsNode::stream(std::shared_ptr<const StreamFiles> files,
                                     std::string title) const {
  return record_rows(std::move(files), "fixed_records", std::move(title),
                     layout_of(options_.record_bytes),
                     [bytes = options_.record_bytes, footer = options_.footer_bytes] {
                       return fixed_framing(bytes, footer);
                     });
}

std::string FixedRecordsNode::arguments() const {
  std::string text = ", record_bytes=" + std::to_string(options_.record_bytes);
  if (options_.header_bytes != 0) text += ", header=" + std::to_string(options_.header_bytes);
  if (options_.footer_bytes != 0) text += ", footer=" + std::to_string(options_.footer_bytes);
  return text;
}

}  // namespace penstock
