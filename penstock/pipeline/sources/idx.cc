#include "penstock/io/idx.h"

#include <bit>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/io/fixed_records.h"
#include "penstock/pipeline/sources/record_rows.h"
#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/transformations/transformations.h"

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

class IdxSource : public FileSource {
 public:
  // The caller pairs the rows with those of options.labels.
  IdxSource(Paths paths, const IdxOptions& options)
      : FileSource("idx", std::move(paths), {options.compression, options.stream}) {}

  struct Counted {
    std::string path;
    uint64_t rows = 0;
  };
  // The files of the last build.
  std::vector<Counted> counted() const {
    std::lock_guard lock(mutex_);
    return counted_;
  }

 private:
  RecordIndex index(const std::shared_ptr<File>& file, Progress*) const override {
    const IdxHeader header = look(file, Compression::kNone);
    return RecordIndex::equal(header.bytes, header.row_bytes, header.rows);
  }
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override {
    std::vector<std::string> paths;
    for (size_t i = 0; i < files->files(); ++i) paths.push_back(files->path(i));
    return record_rows(std::move(files), "idx", std::move(title), layout_of(agreed(paths)));
  }
  Compression compression_of(File& file) const override { return compression_of_idx(file); }
  bool has_header() const override { return true; }
  uint64_t front(const std::shared_ptr<File>& file, Compression compression) const override {
    return look(file, compression).bytes;
  }
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override {
    const IdxHeader header = agreed(files->paths);
    auto counted = std::make_shared<StreamFiles>(*files);
    for (const Counted& file : this->counted()) counted->counts.push_back(file.rows);
    return record_rows(std::move(counted), "idx", std::move(title), layout_of(header),
                       [bytes = header.row_bytes] { return fixed_framing(bytes, 0); });
  }

  // Each header as: dtype, rows, bytes per row, header bytes, number of axes, length of each axis.
  std::vector<int64_t> about(const std::vector<std::string>& paths) const override {
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
  void restore_metadata(const std::vector<std::string>& paths,
                        std::span<const int64_t> about) const override {
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

  IdxHeader look(const std::shared_ptr<File>& file, Compression compression) const {
    IdxHeader header = read_idx_header(file, compression);
    std::lock_guard lock(mutex_);
    return headers_[file->path()] = std::move(header);
  }
  // The header that describes the rows of all files. Throws if files differ. REQUIRED:
  // look() was called for each file.
  IdxHeader agreed(const std::vector<std::string>& paths) const {
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

  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, IdxHeader> headers_;  // by path, as last read
  mutable std::vector<Counted> counted_;
};

// Error kInvalidArgument, which names both files: the numbers of labels and rows differ.
void check_pairs(const std::vector<IdxSource::Counted>& images,
                 const std::vector<IdxSource::Counted>& labels) {
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
}

}  // namespace

Node::Ref nodes::idx(Paths paths, const IdxOptions& options) {
  auto images = std::make_shared<IdxSource>(std::move(paths), options);
  if (options.labels.empty()) return file_source(std::move(images));
  auto labels = std::make_shared<IdxSource>(Paths(options.labels), options);
  const Node::Ref pairs = zip({file_source(images), file_source(labels)}, {"image", "label"});
  return make_node({
      .title = "zip(image=" + images->title() + ", label=" + labels->title() + ")",
      .inputs = pairs->inputs,
      .build =
          [=](std::vector<Built> inputs, Builder& builder) {
            check_pairs(images->counted(), labels->counted());
            return pairs->build(std::move(inputs), builder);
          },
  });
}

}  // namespace penstock
