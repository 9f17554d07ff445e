#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/fixed_records.h"
#include "penstock/pipeline/sources/record_rows.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

enum class CifarKind { kCifar10, kCifar100 };

constexpr uint64_t kImage = 3 * 32 * 32;

uint64_t labels_of(CifarKind kind) { return kind == CifarKind::kCifar10 ? 1 : 2; }
uint64_t record_bytes(CifarKind kind) { return labels_of(kind) + kImage; }

Leaf label(const char* name) { return {name, LeafKind::kDense, DType::kUint8, {}}; }

RecordLayout layout_of(CifarKind kind) {
  std::vector<Leaf> leaves{{"image", LeafKind::kDense, DType::kUint8, {3, 32, 32}}, label("label")};
  std::vector<RecordLayout::Part> parts{{.begin = labels_of(kind)}};
  if (kind == CifarKind::kCifar10) {
    parts.push_back({.begin = 0, .below = 10});
  } else {
    leaves.push_back(label("coarse_label"));
    parts.push_back({.begin = 1, .below = 100});
    parts.push_back({.begin = 0, .below = 20});
  }
  return {std::make_shared<ElementSpec>(std::move(leaves)), std::move(parts)};
}

class CifarSource : public FileSource {
 public:
  CifarSource(CifarKind kind, Paths paths, const CifarOptions& options)
      : FileSource(kind == CifarKind::kCifar10 ? "cifar10" : "cifar100", std::move(paths),
                   {options.compression, options.stream}),
        kind_(kind) {}

 private:
  // A stream finds an incomplete record at the end of its file; an uncompressed file is checked
  // here.
  RecordIndex index(const std::shared_ptr<File>& file, Progress*) const override {
    const uint64_t size = file->size(), record = record_bytes(kind_), left = size % record;
    if (left != 0) {
      throw Error(Code::kDataLoss, operation(),
                  file->path() + " has " + std::to_string(size) +
                      " bytes, no whole number of records of " + std::to_string(record) + ": " +
                      std::to_string(left) + " are left over at byte " +
                      std::to_string(size - left) +
                      "; it was cut short, or is no file of the binary version");
    }
    return RecordIndex::equal(0, record, size / record);
  }
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override {
    return record_rows(std::move(files), operation(), std::move(title), layout_of(kind_));
  }
  // No valid label is the first byte of a gzip file, but a label may be the first byte of a zlib
  // file.
  Compression compression_of(File& file) const override { return compression_of_fixed(file); }
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override {
    return record_rows(std::move(files), operation(), std::move(title), layout_of(kind_),
                       [bytes = record_bytes(kind_)] { return fixed_framing(bytes, 0); });
  }

  const CifarKind kind_;
};

}  // namespace

Node::Ref nodes::cifar10(Paths paths, const CifarOptions& options) {
  return file_source(std::make_shared<CifarSource>(CifarKind::kCifar10, std::move(paths), options));
}

Node::Ref nodes::cifar100(Paths paths, const CifarOptions& options) {
  return file_source(
      std::make_shared<CifarSource>(CifarKind::kCifar100, std::move(paths), options));
}

}  // namespace penstock
