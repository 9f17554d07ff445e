#include "penstock/pipeline/sources/idx.h"

#include <bit>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/fixed_records.h"

namespace penstock {
namespace {

RecordLayout layout_of(const IdxHeader& header) {
  const uint64_t number =
      std::endian::native == std::endian::big ? 1 : size_of(header.dtype);  // files are big-endian
  return {std::make_shared<ElementSpec>(
              std::vector<Leaf>{{"", LeafKind::kDense, header.dtype, header.shape}}),
          {{.number = number}}};
}

std::string of_rows(const IdxHeader& header) {
  return std::string(name_of(header.dtype)) + " " + to_string(header.shape);
}

}  // namespace

IdxNode::IdxNode(Paths paths, const IdxOptions& options)
    : FileSource("idx", std::move(paths), {options.compression, options.stream}) {}

std::vector<IdxNode::Counted> IdxNode::counted() const {
  std::lock_guard lock(mutex_);
  return counted_;
}

IdxHeader IdxNode::look(const std::shared_ptr<File>& file, Compression compression) const {
  IdxHeader header = read_idx_header(file, compression);
  std::lock_guard lock(mutex_);
  return headers_[file->path()] = std::move(header);
}

RecordIndex IdxNode::index(const std::shared_ptr<File>& file, Progress*) const {
  const IdxHeader header = look(file, Compression::kNone);
  return RecordIndex::equal(header.bytes, header.row_bytes, header.rows);
}

uint64_t IdxNode::front(const std::shared_ptr<File>& file, Compression compression) const {
  return look(file, compression).bytes;
}

// Their headers, each as: dtype, rows, bytes of a row, of the header, axes, and the length of each.
std::vector<int64_t> IdxNode::about(const std::vector<std::string>& paths) const {
  std::lock_guard lock(mutex_);
  std::vector<int64_t> about;
  for (const std::string& path : paths) {
    const IdxHeader& header = headers_.at(path);
    about.push_back(static_cast<int64_t>(header.dtype));
    for (uint64_t count : {header.rows, header.row_bytes, header.bytes, header.shape.size()}) {
      about.push_back(static_cast<int64_t>(count));
    }
    about.insert(about.end(), header.shape.begin(), header.shape.end());
  }
  return about;
}

void IdxNode::recall(const std::vector<std::string>& paths, std::span<const int64_t> about) const {
  std::lock_guard lock(mutex_);
  for (const std::string& path : paths) {
    IdxHeader header;
    header.dtype = static_cast<DType>(about[0]);
    header.rows = static_cast<uint64_t>(about[1]);
    header.row_bytes = static_cast<uint64_t>(about[2]);
    header.bytes = static_cast<uint64_t>(about[3]);
    const auto shape = about.subspan(5, static_cast<size_t>(about[4]));
    header.shape.assign(shape.begin(), shape.end());
    headers_[path] = std::move(header);
    about = about.subspan(5 + shape.size());
  }
}

// What is common to these files, all of which were looked at.
IdxHeader IdxNode::agreed(const std::vector<std::string>& paths) const {
  std::lock_guard lock(mutex_);
  counted_.clear();
  const IdxHeader& first = headers_.at(paths.front());
  for (const std::string& path : paths) {
    const IdxHeader& header = headers_.at(path);
    if (header.dtype != first.dtype || header.shape != first.shape) {
      throw Error(Code::kInvalidArgument, "idx",
                  path + " has rows of " + of_rows(header) + " by its header (byte 2 on), " +
                      paths.front() + " of " + of_rows(first) +
                      ": only files of one kind are one Dataset");
    }
    counted_.push_back({path, header.rows});
  }
  return first;
}

IndexedRef IdxNode::stage(std::shared_ptr<const RecordFiles> files, std::string title) const {
  std::vector<std::string> paths;
  for (size_t i = 0; i < files->files(); ++i) paths.push_back(files->path(i));
  return record_rows(std::move(files), "idx", std::move(title), layout_of(agreed(paths)));
}

StreamedRef IdxNode::stream(std::shared_ptr<const StreamFiles> files, std::string title) const {
  const IdxHeader header = agreed(files->paths);
  auto counted = std::make_shared<StreamFiles>(*files);
  for (const Counted& file : this->counted()) counted->counts.push_back(file.rows);
  return record_rows(std::move(counted), "idx", std::move(title), layout_of(header),
                     [bytes = header.row_bytes] { return fixed_framing(bytes, 0); });
}

IdxPairsNode::IdxPairsNode(std::shared_ptr<const IdxNode> images,
                           std::shared_ptr<const IdxNode> labels)
    : ZipNode({images, labels}, {"image", "label"}),
      images_(std::move(images)),
      labels_(std::move(labels)) {}

std::string IdxPairsNode::title() const {
  return "zip(image=" + images_->title() + ", label=" + labels_->title() + ")";
}

Built IdxPairsNode::build(std::vector<Built> inputs, Builder& builder) const {
  const std::vector<IdxNode::Counted> images = images_->counted(), labels = labels_->counted();
  if (images.size() != labels.size()) {
    throw Error(Code::kInvalidArgument, "idx",
                std::to_string(images.size()) + " files of images and " +
                    std::to_string(labels.size()) +
                    " of labels: give as many of one as of the other");
  }
  for (size_t i = 0; i < images.size(); ++i) {
    if (images[i].rows == labels[i].rows) continue;
    throw Error(Code::kInvalidArgument, "idx",
                labels[i].path + " has " + std::to_string(labels[i].rows) +
                    " labels (byte 4) for the " + std::to_string(images[i].rows) + " rows of " +
                    images[i].path +
                    " (byte 4): give the labels of these images, in the same order of files");
  }
  return ZipNode::build(std::move(inputs), builder);
}

}  // namespace penstock
