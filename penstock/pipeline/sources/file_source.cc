#include "penstock/pipeline/sources/file_source.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/base/text.h"
#include "penstock/io/crc32c.h"
#include "penstock/io/record_index.h"
#include "penstock/io/remote_files.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/streams/streams.h"

namespace penstock {

// On slow storage more threads than cores read faster.
static constexpr unsigned kMaxIndexing = 16;

// From the second run on, a pattern for a folder also matches the indices kept in it.
static Paths without_indices(Paths paths) {
  std::erase_if(paths.patterns,
                [](const std::string& path) { return path.ends_with(kIndexSuffix); });
  return paths;
}

FileSource::FileSource(const char* operation, Paths paths, const Reading& reading)
    : operation_(operation),
      paths_(without_indices(std::move(paths))),
      compression_(reading.compression.empty()
                       ? std::nullopt
                       : std::optional(compression_from_name(reading.compression, operation))),
      stream_(reading.stream),
      beside_(reading.index == "beside") {
  if (paths_.patterns.empty()) {
    throw Error(Code::kInvalidArgument, operation, "the list of files is empty");
  }
  if (!beside_ && !reading.index.empty()) {
    throw Error(Code::kInvalidArgument, operation,
                "index '" + reading.index + "': give 'beside', or leave it out");
  }
  if (beside_ && stream_) {
    throw Error(Code::kInvalidArgument, operation,
                "a stream has no index to be kept: leave out one of both");
  }
}

// Opens no file. Folders are left out, so that a state restores after the files have moved. A long
// list is shortened to its first paths, its length, and a checksum of all paths.
std::string FileSource::title() const {
  constexpr size_t kMax = 3;
  std::string text = std::string(operation_) + "(";
  uint32_t crc = 0;
  for (size_t i = 0; i < paths_.patterns.size(); ++i) {
    const std::string path(without_query(paths_.patterns[i]));
    const std::string pattern = path.substr(path.find_last_of('/') + 1);
    if (i < kMax) text += (i == 0 ? "" : ", ") + pattern;
    // Includes the terminating zero, which separates the paths.
    crc = crc32c(std::as_bytes(std::span(pattern.c_str(), pattern.size() + 1)), crc);
  }
  if (paths_.patterns.size() > kMax) {
    std::array<char, 9> digits;
    std::snprintf(digits.data(), digits.size(), "%08x", crc);
    text += ", and " + std::to_string(paths_.patterns.size() - kMax) + " more: " + digits.data();
  }
  return escape_invalid_utf8(text) + arguments() + (stream_ ? ", stream)" : ")");
}

// The source caches its files as long as the Dataset lives. Plans and readers hold the files
// through this pointer: when the last of them goes, the unused open files are closed.
static std::shared_ptr<const RecordFiles> of_plan(std::shared_ptr<const RecordFiles> files) {
  const RecordFiles* const all = files.get();
  return {all, [files = std::move(files)](const RecordFiles*) { files->pool().close_unused(); }};
}

static std::shared_ptr<const StreamFiles> of_plan(std::shared_ptr<const StreamFiles> files) {
  const StreamFiles* const all = files.get();
  return {all, [files = std::move(files)](const StreamFiles*) { files->pool->close_unused(); }};
}

static std::vector<std::string> paths_of(const FoundFiles& found) {
  if (found.streamed != nullptr) return found.streamed->paths;
  std::vector<std::string> paths;
  for (size_t i = 0; i < found.indexed->files(); ++i) paths.push_back(found.indexed->path(i));
  return paths;
}

Built FileSource::build(Builder& builder) const {
  std::lock_guard lock(mutex_);
  FoundFilesRef given = builder.next_found();
  if (found_in_ != builder.files()) {
    if (given != nullptr) restore_metadata(paths_of(*given), given->about);
    found_ = given != nullptr ? std::move(given) : find(builder);
    found_in_ = builder.files();
  }
  builder.add_found(found_);
  if (found_->streamed != nullptr) return Built::of(stream(of_plan(found_->streamed), title()));
  return {stage(of_plan(found_->indexed), title())};
}

FoundFilesRef FileSource::find(Builder& builder) const {
  const std::shared_ptr<FilePool>& pool = builder.pool();
  const std::vector<std::string> paths = glob(*builder.files(), paths_);
  // Threads that wait for servers use no core.
  const unsigned threads = std::ranges::any_of(paths, is_url)
                               ? kMaxIndexing
                               : std::min(os::usable_cores() * 2, kMaxIndexing);
  std::vector<Compression> compressions(paths.size(), compression_.value_or(Compression::kNone));
  if (!compression_) {
    for_each_file(*pool, paths, threads, [&](size_t i, const std::shared_ptr<File>& file) {
      compressions[i] = compression_of(*file);
    });
  }
  const bool compressed = std::any_of(compressions.begin(), compressions.end(),
                                      [](Compression c) { return c != Compression::kNone; });
  FoundFiles found;
  if (stream_ || compressed) {
    std::vector<uint64_t> fronts(has_header() ? paths.size() : 0);
    if (has_header()) {
      for_each_file(*pool, paths, threads, [&](size_t i, const std::shared_ptr<File>& file) {
        fronts[i] = front(file, compressions[i]);
      });
    }
    found.streamed =
        std::make_shared<StreamFiles>(pool, paths, std::move(compressions), std::move(fronts));
  } else {
    found.indexed = index_files(pool, paths, threads, [&](const std::shared_ptr<File>& file) {
      return index_of(builder, file);
    });
  }
  found.about = about(paths);
  return std::make_shared<const FoundFiles>(std::move(found));
}

RecordIndex FileSource::index_of(Builder& builder, const std::shared_ptr<File>& file) const {
  auto make = [&] { return index(file, builder.progress()); };
  if (!beside_) return make();
  // Always check the bytes before the records, even where a kept index exists.
  const uint64_t begin = has_header() ? front(file, Compression::kNone) : 0;
  return load_or_build_index(*builder.files(), *file, index_format(), begin, make);
}

StreamedRef FileSource::stream(std::shared_ptr<const StreamFiles>, std::string title) const {
  throw Error(Code::kInternal, title, "cannot be read as a stream");
}

Node::Ref file_source(std::shared_ptr<const FileSource> source) {
  std::string title = source->title();
  return make_node({
      .title = std::move(title),
      .build = [source = std::move(source)](std::vector<Built>,
                                            Builder& builder) { return source->build(builder); },
  });
}

FileStage::FileStage(std::shared_ptr<const RecordFiles> files, std::string title, SpecRef spec)
    : files_(std::move(files)), title_(std::move(title)), spec_(std::move(spec)) {}

std::string FileStage::origin(const Context&, const At&, uint64_t position) const {
  const size_t file = files_->file_of(position);
  return files_->path(file) + ", record " + std::to_string(position - files_->begin(file));
}

void FileStage::fail(std::span<const RecordReader::Failure> failures,
                     std::span<const uint64_t> positions, Chunk& out, uint32_t row) const {
  for (const RecordReader::Failure& failure : failures) {
    out.fail(static_cast<uint32_t>(row + failure.row),
             {title_, positions[failure.row], std::make_exception_ptr(failure.error)});
  }
}

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
