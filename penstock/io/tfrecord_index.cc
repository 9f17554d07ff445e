#include "penstock/io/tfrecord_index.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "penstock/base/error.h"
#include "penstock/io/tfrecord_frame.h"

namespace penstock {
namespace {

using namespace tfrecord;

// Bytes of a file from a place on, read in pieces: as large as may be where the places follow close
// on one another, as small as may be where much is left out between them.
class FileWindow {
 public:
  static constexpr uint64_t kMost = 64 << 10;

  FileWindow(File& file, uint64_t size)
      : file_(file), size_(size), buffer_(std::make_unique_for_overwrite<std::byte[]>(kMost)) {}

  uint64_t size() const { return size_; }

  // `bytes` bytes at `offset`, good until the next call. REQUIRED: they are in the file, and no
  // more than kMost.
  const std::byte* at(uint64_t offset, uint64_t bytes) {
    if (offset < begin_ || offset + bytes > end_) fill(offset, bytes);
    return buffer_.get() + (offset - begin_);
  }

 private:
  static constexpr uint64_t kFar = 16 << 10;

  void fill(uint64_t offset, uint64_t bytes) {
    const bool far = offset > end_ && offset - end_ > kFar;
    const uint64_t length = far ? bytes : std::min(kMost, size_ - offset);
    const File::Segment segment{offset, buffer_.get(), length};
    begin_ = end_ = 0;  // nothing, if this throws
    file_.read({&segment, 1});
    begin_ = offset;
    end_ = offset + length;
  }

  File& file_;
  const uint64_t size_;
  const std::unique_ptr<std::byte[]> buffer_;
  uint64_t begin_ = 0, end_ = 0;
};

class Pass {
 public:
  Pass(File& file, Progress* progress)
      : file_(file), window_(file, file.size()), progress_(progress) {}

  RecordIndex run() {
    RecordIndex::Builder index;
    const uint64_t size = window_.size();
    for (uint64_t offset = 0; offset < size;) {
      report(offset);
      const std::optional<uint64_t> bytes = frame_at(window_, offset);
      index.add(offset, !bytes);
      offset = bytes ? offset + *bytes : next_sound(offset + 1);
    }
    if (progress_ != nullptr) progress_->bytes.store(size, std::memory_order_relaxed);
    return index.finish(size);
  }

 private:
  // The length of the record that begins here, if its length field is sound.
  static std::optional<uint64_t> frame_at(FileWindow& window, uint64_t offset) {
    const uint64_t left = window.size() - offset;
    if (left < kFrame) return {};
    const std::byte* header = window.at(offset, kHeader);
    if (!sound_length(header, left)) return {};
    return kFrame + load<uint64_t>(header);
  }

  uint64_t next_sound(uint64_t offset) {
    if (payloads_ == nullptr) payloads_ = std::make_unique<FileWindow>(file_, window_.size());
    for (; window_.size() - offset >= kFrame; ++offset) {
      report(offset);
      const std::optional<uint64_t> bytes = frame_at(window_, offset);
      if (bytes && payload_agrees(offset + kHeader, *bytes - kFrame)) return offset;
    }
    return window_.size();
  }

  bool payload_agrees(uint64_t offset, uint64_t left) {
    uint32_t crc = 0;
    while (left > 0) {
      const uint64_t piece = std::min(left, FileWindow::kMost);
      crc = crc32c({payloads_->at(offset, piece), piece}, crc);
      offset += piece;
      left -= piece;
      report(offset);
    }
    return masked(crc) == load<uint32_t>(payloads_->at(offset, kFooter));
  }

  void report(uint64_t offset) {
    if (progress_ != nullptr) progress_->reached(offset, file_.path());
  }

  File& file_;
  FileWindow window_;
  std::unique_ptr<FileWindow> payloads_;  // while searching, so that window_ stays where it is
  Progress* progress_;
};

}  // namespace

RecordIndex index_tfrecord(File& file, Progress* progress) { return Pass(file, progress).run(); }

}  // namespace penstock
