#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/io/crc32c.h"
#include "penstock/memory/copy.h"
#include "penstock/pipeline/sources/file_source.h"
#include "penstock/pipeline/sources/record_rows.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

class FileRows : public FileSource {
 public:
  FileRows(const char* operation, std::string path, FileRowsOptions options)
      : FileSource(operation, std::move(path), {}), options_(std::move(options)) {
    const Shape& shape = options_.shape;
    uint64_t bytes = size_of(options_.dtype);
    const bool fits = std::all_of(shape.begin(), shape.end(), [&](int64_t n) {
      return n > 0 && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(n), &bytes);
    });
    uint64_t end = 0;
    if (!fits || __builtin_mul_overflow(bytes, options_.rows, &end) ||
        __builtin_add_overflow(end, options_.offset, &end) || end > options_.file_bytes ||
        options_.header > options_.offset) {
      throw Error(Code::kInvalidArgument, operation, "such rows do not fit into the file");
    }
    row_bytes_ = bytes;
  }

 private:
  // Error kDataLoss: it is not the file that the options are of.
  RecordIndex index(const std::shared_ptr<File>& file, Progress*) const override {
    const uint64_t size = file->size();
    if (size != options_.file_bytes) {
      refuse(*file, "has " + std::to_string(size) + " bytes, and had " +
                        std::to_string(options_.file_bytes));
    }
    std::vector<std::byte> header(options_.offset - options_.header);
    const File::Segment segment{options_.header, header.data(), header.size()};
    file->read({&segment, 1});
    if (crc32c(header) != options_.header_crc) {
      refuse(*file, "has another header at byte " + std::to_string(options_.header));
    }
    return RecordIndex::equal(options_.offset, row_bytes_, options_.rows);
  }
  [[noreturn]] void refuse(const File& file, const std::string& why) const {
    throw Error(Code::kDataLoss, operation(),
                file.path() + " " + why + " when this Dataset was made: make it again");
  }
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override {
    const uint64_t number = options_.reversed ? number_bytes(options_.dtype) : 1;
    return record_rows(std::move(files), operation(), std::move(title),
                       {std::make_shared<ElementSpec>(std::vector<Leaf>{
                            {"", LeafKind::kDense, options_.dtype, options_.shape}}),
                        {{.number = number}}});
  }
  std::string arguments() const override {
    return options_.name.empty() ? std::string() : ", " + escape_invalid_utf8(options_.name);
  }

  const FileRowsOptions options_;
  uint64_t row_bytes_ = 0;
};

}  // namespace

Node::Ref nodes::file_rows(const char* operation, std::string path, FileRowsOptions options) {
  return file_source(std::make_shared<FileRows>(operation, std::move(path), std::move(options)));
}

}  // namespace penstock
