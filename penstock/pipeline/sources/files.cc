#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string_view>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/io/crc32c.h"
#include "penstock/io/file_listing.h"
#include "penstock/io/remote_files.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

using ListingRef = std::shared_ptr<const FileListing>;

// The leaves of an element.
struct WholeFileLeaves {
  size_t bytes = 0, path = 0;
  std::optional<size_t> label;
  SpecRef spec;
};

WholeFileLeaves bytes_path_label(bool labelled) {
  std::vector<Leaf> leaves{{"bytes", LeafKind::kBytes, DType::kUint8, {-1}},
                           {"path", LeafKind::kText, DType::kUint8, {-1}}};
  if (labelled) leaves.push_back({"label", LeafKind::kDense, DType::kInt64, {}});
  return {0, 1, labelled ? std::optional<size_t>(2) : std::nullopt,
          std::make_shared<ElementSpec>(std::move(leaves))};
}

WholeFileLeaves image_label_path() {
  return {0, 2, 1,
          std::make_shared<ElementSpec>(
              std::vector<Leaf>{{"image", LeafKind::kBytes, DType::kUint8, {-1}},
                                {"label", LeafKind::kDense, DType::kInt64, {}},
                                {"path", LeafKind::kText, DType::kUint8, {-1}}})};
}

class WholeFiles : public Indexed {
 public:
  WholeFiles(std::shared_ptr<FileSystem> files, ListingRef listing, WholeFileLeaves leaves,
             std::string title)
      : files_(std::move(files)),
        listing_(std::move(listing)),
        leaves_(std::move(leaves)),
        title_(std::move(title)) {}

  uint64_t length(uint64_t) const override { return listing_->size(); }
  SpecRef spec() const override { return leaves_.spec; }
  bool costly() const override { return true; }  // opening a file takes longer than most stages
  std::string origin(const Context&, const At&, uint64_t position) const override {
    return std::string(listing_->path(position));
  }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context.scratch);
  }

 private:
  static constexpr uint64_t kMaxFileBytes = uint64_t{1} << 31;

  class Reader : public IndexedReader {
   public:
    Reader(const WholeFiles& stage, Scratch& scratch) : stage_(stage), scratch_(scratch) {}

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      const WholeFileLeaves& leaves = stage_.leaves_;
      if (positions.size() > 1) announce(positions);
      std::byte* labels = leaves.label ? out.dense(*leaves.label) : nullptr;
      for (uint64_t position : positions) {
        try {
          read(std::string(stage_.listing_->path(position)), out, row);
        } catch (const Error&) {
          out.fail(row, {stage_.title_, position, std::current_exception()});
        }
        if (leaves.label) {
          const int64_t label = stage_.listing_->label(position);
          std::memcpy(labels + row * out.stride(*leaves.label), &label, sizeof(label));
        }
        ++row;
      }
    }

   private:
    // Servers answer several requests at a time.
    void announce(std::span<const uint64_t> positions) {
      std::vector<std::string> paths;
      for (uint64_t position : positions) {
        const std::string_view path = stage_.listing_->path(position);
        if (is_url(path)) paths.emplace_back(path);
      }
      if (!paths.empty()) stage_.files_->will_open(paths);
    }

    void read(const std::string& path, Chunk& out, uint32_t row) {
      const std::shared_ptr<File> file = stage_.files_->open(path);
      const uint64_t bytes = file->size();
      if (bytes > kMaxFileBytes) {
        throw Error(Code::kInvalidArgument, "read",
                    path + " has " + std::to_string(bytes) + " bytes, more than 2 GiB");
      }
      std::byte* data = scratch_.take(bytes);
      const File::Segment whole{0, data, bytes};
      if (bytes > 0) file->read({&whole, 1});
      give(out, stage_.leaves_.bytes, row, data, bytes);
      const std::string text = escape_invalid_utf8(path);
      std::byte* name = scratch_.take(text.size());
      std::memcpy(name, text.data(), text.size());
      give(out, stage_.leaves_.path, row, name, text.size());
    }

    static void give(Chunk& out, size_t leaf, uint32_t row, const std::byte* data, uint64_t bytes) {
      const auto length = static_cast<int64_t>(bytes);
      out.view(leaf, row, data, {&length, 1});
    }

    const WholeFiles& stage_;
    Scratch& scratch_;
  };

  std::shared_ptr<FileSystem> files_;
  ListingRef listing_;
  WholeFileLeaves leaves_;
  std::string title_;
};

// Files that are listed when the source is built for the first time; every further build has the
// same. A build that gets the files of another build lists none.
class WholeFileSource {
 public:
  using Find = std::function<ListingRef(Builder& builder)>;
  WholeFileSource(Find find, WholeFileLeaves leaves)
      : find_(std::move(find)), leaves_(std::move(leaves)) {}

  Built build(Builder& builder) const {
    std::lock_guard lock(mutex_);
    FoundFilesRef given = builder.next_found();
    if (found_in_ != builder.files()) {
      if (given == nullptr) {
        FoundFiles found;
        found.listed = find_(builder);
        given = std::make_shared<const FoundFiles>(std::move(found));
      }
      found_ = std::move(given);
      found_in_ = builder.files();
    }
    builder.add_found(found_);
    return {
        std::make_shared<WholeFiles>(builder.files(), found_->listed, leaves_, builder.title())};
  }

 private:
  const Find find_;
  const WholeFileLeaves leaves_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<FileSystem> found_in_;  // whose files these are
  mutable FoundFilesRef found_;
};

Node::Ref whole_files(std::string title, WholeFileSource::Find find, WholeFileLeaves leaves) {
  auto source = std::make_shared<const WholeFileSource>(std::move(find), std::move(leaves));
  return make_node({
      .title = std::move(title),
      .build = [source = std::move(source)](std::vector<Built>,
                                            Builder& builder) { return source->build(builder); },
  });
}

std::string last_name(const std::string& given) {
  const std::string path(without_query(given));
  const size_t end = path.find_last_not_of('/') + 1;
  return path.substr(0, end).substr(path.substr(0, end).find_last_of('/') + 1);
}

// Of a long list: its beginning, its length, and a checksum of all.
std::string listed_names(const std::vector<std::string>& names) {
  constexpr size_t kMax = 3;
  std::string text;
  uint32_t crc = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i < kMax) text += (i == 0 ? "" : ", ") + names[i];
    // Together with the zero at its end.
    crc = crc32c(std::as_bytes(std::span(names[i].c_str(), names[i].size() + 1)), crc);
  }
  if (names.size() > kMax) {
    std::array<char, 9> digits;
    std::snprintf(digits.data(), digits.size(), "%08x", crc);
    text += ", and " + std::to_string(names.size() - kMax) + " more: " + digits.data();
  }
  return escape_invalid_utf8(text);
}

std::string title_of(const std::string& root, const ImageFolderOptions& options) {
  std::string text = "image_folder(" + escape_invalid_utf8(last_name(root));
  if (!options.classes.empty()) text += ", classes=[" + listed_names(options.classes) + "]";
  if (!options.include.empty()) text += ", " + escape_invalid_utf8(options.include);
  if (options.validation_split) {
    std::array<char, 32> split;
    std::snprintf(split.data(), split.size(), "%.9g", *options.validation_split);
    text +=
        ", " + options.subset + " of " + split.data() + ", seed=" + std::to_string(options.seed);
  }
  return text + (options.follow_links ? ", follow_links)" : ")");
}

// Whether an option `index` asks to keep the listing.
bool is_beside(const char* operation, const std::string& index) {
  if (index.empty() || index == "beside") return !index.empty();
  throw Error(Code::kInvalidArgument, operation,
              "index '" + index + "': give 'beside', or leave it out");
}

}  // namespace

Node::Ref nodes::files(Paths paths, std::optional<std::vector<int64_t>> labels,
                       const std::string& index) {
  const bool keep = is_beside("files", index);
  if (paths.patterns.empty()) {
    throw Error(Code::kInvalidArgument, "files", "the list of files is empty");
  }
  std::vector<std::string> names;
  for (const std::string& path : paths.patterns) names.push_back(last_name(path));
  std::string title = "files(" + listed_names(names);
  if (labels) {
    std::array<char, 9> digits;
    std::snprintf(digits.data(), digits.size(), "%08x",
                  crc32c(std::as_bytes(std::span(*labels)), 0));
    title += ", " + std::to_string(labels->size()) + " labels: " + digits.data();
  }
  const WholeFileLeaves leaves = bytes_path_label(labels.has_value());
  auto find = [paths = std::move(paths), labels = std::move(labels), keep](Builder& builder) {
    const std::vector<std::string> found = glob(*builder.files(), paths, keep);
    if (labels && labels->size() != found.size()) {
      throw Error(Code::kInvalidArgument, "files",
                  std::to_string(labels->size()) + " labels for " + std::to_string(found.size()) +
                      " files; give one for each");
    }
    FileListing::Builder listing;
    for (size_t i = 0; i < found.size(); ++i) {
      if (labels) {
        listing.add(found[i], (*labels)[i]);
      } else {
        listing.add(found[i]);
      }
    }
    return listing.finish();
  };
  return whole_files(title + ")", std::move(find), leaves);
}

Node::Ref nodes::image_folder(std::string root, const ImageFolderOptions& options) {
  auto refuse = [](const std::string& why) {
    return Error(Code::kInvalidArgument, "image_folder", why);
  };
  if (options.validation_split) {
    if (!(*options.validation_split > 0 && *options.validation_split < 1)) {
      throw refuse("validation_split is not between 0 and 1");
    }
    if (options.subset != "training" && options.subset != "validation") {
      throw refuse("subset is '" + escape_invalid_utf8(options.subset) +
                   "'; with validation_split give 'training' or 'validation'");
    }
  } else if (!options.subset.empty()) {
    throw refuse("a subset needs validation_split, the part that is for validation");
  }
  std::set<std::string_view> names;
  for (const std::string& name : options.classes) {
    if (names.insert(name).second) continue;
    throw refuse("class '" + escape_invalid_utf8(name) + "' comes twice in classes");
  }
  std::string title = title_of(root, options);
  while (root.size() > 1 && root.back() == '/') root.pop_back();
  ImageFolderQuery query{options.classes,
                         options.validation_split,
                         options.subset == "validation",
                         options.seed,
                         options.include,
                         options.follow_links,
                         is_beside("image_folder", options.index)};
  auto find = [root = std::move(root), query = std::move(query)](Builder& builder) {
    return list_image_folder(*builder.files(), root, query, builder.progress());
  };
  return whole_files(std::move(title), std::move(find), image_label_path());
}

}  // namespace penstock
