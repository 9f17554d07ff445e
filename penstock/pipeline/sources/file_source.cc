#include "penstock/pipeline/sources/file_source.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/io/crc32c.h"
#include "penstock/pipeline/builder.h"

namespace penstock {

// Where the disk is far, more threads than cores read side by side.
static constexpr unsigned kMostIndexing = 16;

FileSource::FileSource(const char* operation, Paths paths, const std::string& compression)
    : operation_(operation), paths_(std::move(paths)) {
  if (paths_.patterns.empty()) {
    throw Error(Code::kInvalidArgument, operation, "the list of files is empty");
  }
  if (compression.empty()) return;
  if (compression != "gzip" && compression != "zlib") {
    throw Error(Code::kInvalidArgument, operation,
                "compression is '" + compression + "'; give 'gzip', 'zlib', or '' for none");
  }
  throw Error(Code::kInvalidArgument, operation,
              "compression '" + compression +
                  "': a compressed file can only be read as a stream, and streams are not there "
                  "yet; decompress the files");
}

// Nothing is opened for it, and no folders are in it: a state restores where the files lie
// elsewhere. Of a long list: its beginning, its length, and a checksum of all.
std::string FileSource::title() const {
  constexpr size_t kMost = 3;
  std::string text = std::string(operation_) + "(";
  uint32_t crc = 0;
  for (size_t i = 0; i < paths_.patterns.size(); ++i) {
    const std::string& path = paths_.patterns[i];
    const std::string pattern = path.substr(path.find_last_of('/') + 1);
    if (i < kMost) text += (i == 0 ? "" : ", ") + pattern;
    // Together with the zero at its end.
    crc = crc32c(std::as_bytes(std::span(pattern.c_str(), pattern.size() + 1)), crc);
  }
  if (paths_.patterns.size() > kMost) {
    std::array<char, 9> digits;
    std::snprintf(digits.data(), digits.size(), "%08x", crc);
    text += ", and " + std::to_string(paths_.patterns.size() - kMost) + " more: " + digits.data();
  }
  return text + arguments() + ")";
}

Built FileSource::build(std::vector<Built>, Builder& builder) const {
  std::lock_guard lock(mutex_);
  if (files_ == nullptr || found_in_ != builder.files()) {
    files_ = index_files(builder.pool(), glob(*builder.files(), paths_),
                         std::min(os::usable_cores() * 2, kMostIndexing),
                         [this](File& file) { return index(file); });
    found_in_ = builder.files();
  }
  return {stage(files_, title())};
}

FileStage::FileStage(std::shared_ptr<const RecordFiles> files, std::string title, Leaf leaf)
    : files_(std::move(files)),
      title_(std::move(title)),
      spec_(std::make_shared<ElementSpec>(std::vector<Leaf>{std::move(leaf)})) {}

void FileStage::fail(std::span<const RecordReader::Failure> failures,
                     std::span<const uint64_t> positions, Chunk& out, uint32_t row) const {
  for (const RecordReader::Failure& failure : failures) {
    out.fail(static_cast<uint32_t>(row + failure.row),
             {title_, positions[failure.row], std::make_exception_ptr(failure.error)});
  }
}

}  // namespace penstock
