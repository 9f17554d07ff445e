#include "penstock/io/tfrecord.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/compression.h"

namespace penstock {

using namespace tfrecord;

namespace {

using Kind = Framing::Next::Kind;

class TFRecordFraming : public Framing {
 public:
  Next next(const Window& window) override {
    const std::byte* const header = window.bytes.data();
    if (window.max_bytes < kFrame) return {Kind::kNoRecord};
    if (window.bytes.size() < kFrame) return {Kind::kNeedMore, kFrame};
    if (!is_valid_length(header, window.max_bytes)) return {Kind::kNoRecord};
    const auto length = load<uint64_t>(header);
    if (window.bytes.size() - kFrame < length) return {Kind::kNeedMore, kFrame + length};
    if (payload_matches(header, length)) {
      return {Kind::kRecord, kFrame + length, kHeader, length};
    }
    return {.kind = Kind::kCorrupt,
            .bytes = kFrame + length,
            .why = "the checksum of the payload does not match"};
  }

  Skipped resync(const Window& window) override {
    const std::span bytes = window.bytes;
    for (uint64_t at = 0;; ++at) {
      const uint64_t left = bytes.size() - at, most = window.max_bytes - at;
      if (most < kFrame) return {bytes.size(), !window.complete(), 1};
      if (left < kFrame) return {at, true, kFrame};
      const std::byte* const header = bytes.data() + at;
      if (!is_valid_length(header, most)) continue;
      const auto length = load<uint64_t>(header);
      if (left - kFrame < length) return {at, true, kFrame + length};
      if (payload_matches(header, length)) return {at};
    }
  }

 private:
  static bool payload_matches(const std::byte* header, uint64_t length) {
    return checksum_matches({header + kHeader, length}, header + kHeader + length);
  }
};

}  // namespace

std::unique_ptr<Framing> tfrecord_framing() { return std::make_unique<TFRecordFraming>(); }

Compression compression_of_tfrecord(File& file) {
  std::array<std::byte, kHeader> first{};
  const uint64_t bytes = std::min<uint64_t>(file.size(), first.size());
  if (bytes == 0) return Compression::kNone;
  const File::Segment segment{0, first.data(), bytes};
  file.read({&segment, 1});
  if (bytes == kHeader && length_checksum_matches(first.data())) return Compression::kNone;
  const auto begin = std::span(first).first(bytes);
  if (has_gzip_magic(begin) || has_gzip_extension(file.path())) return Compression::kGzip;
  // Rarely, a damaged length field looks like gzip or zlib. A plausible length rules that out.
  const bool short_record = bytes >= 8 && load<uint64_t>(first.data()) >> 32 == 0;
  return has_zlib_magic(begin) && !short_record ? Compression::kZlib : Compression::kNone;
}

namespace {

// Reads bytes of a file through a buffer: large pieces if the requests are close together, small
// ones if they are far apart.
class FileWindow {
 public:
  static constexpr uint64_t kMaxBytes = 64 << 10;

  FileWindow(File& file, uint64_t size)
      : file_(file), size_(size), buffer_(std::make_unique_for_overwrite<std::byte[]>(kMaxBytes)) {}

  uint64_t size() const { return size_; }

  // The bytes at `offset`, valid until the next call. REQUIRED: they are in the file, and at most
  // kMaxBytes.
  const std::byte* at(uint64_t offset, uint64_t bytes) {
    if (offset < begin_ || offset + bytes > end_) fill(offset, bytes);
    return buffer_.get() + (offset - begin_);
  }

 private:
  static constexpr uint64_t kFar = 16 << 10;

  void fill(uint64_t offset, uint64_t bytes) {
    const bool far = offset > end_ && offset - end_ > kFar;
    const uint64_t length = far ? bytes : std::min(kMaxBytes, size_ - offset);
    const File::Segment segment{offset, buffer_.get(), length};
    begin_ = end_ = 0;  // empty if read() throws
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
  // The length of the record at `offset`, if its length field is valid.
  static std::optional<uint64_t> frame_at(FileWindow& window, uint64_t offset) {
    const uint64_t left = window.size() - offset;
    if (left < kFrame) return {};
    const std::byte* header = window.at(offset, kHeader);
    if (!is_valid_length(header, left)) return {};
    return kFrame + load<uint64_t>(header);
  }

  uint64_t next_sound(uint64_t offset) {
    if (payloads_ == nullptr) payloads_ = std::make_unique<FileWindow>(file_, window_.size());
    for (; window_.size() - offset >= kFrame; ++offset) {
      report(offset);
      const std::optional<uint64_t> bytes = frame_at(window_, offset);
      if (bytes && payload_matches(offset + kHeader, *bytes - kFrame)) return offset;
    }
    return window_.size();
  }

  bool payload_matches(uint64_t offset, uint64_t left) {
    uint32_t crc = 0;
    while (left > 0) {
      const uint64_t piece = std::min(left, FileWindow::kMaxBytes);
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
  std::unique_ptr<FileWindow>
      payloads_;  // used while searching, so that window_ keeps its position
  Progress* progress_;
};

}  // namespace

RecordIndex index_tfrecord(File& file, Progress* progress) { return Pass(file, progress).run(); }

namespace {

// nullptr: the frame is valid.
const char* fault_of_frame(std::span<const std::byte> frame) {
  if (frame.size() < kFrame) return "no valid record begins here";
  const uint64_t bytes = frame.size() - kFrame;
  if (!length_checksum_matches(frame.data())) return "the checksum of the length does not match";
  if (load<uint64_t>(frame.data()) != bytes)
    return "the length has changed since the file was indexed";
  if (!checksum_matches(frame.subspan(kHeader, bytes), frame.data() + kHeader + bytes)) {
    return "the checksum of the payload does not match";
  }
  return nullptr;
}

}  // namespace

TFRecordReader::TFRecordReader(std::shared_ptr<const RecordFiles> files)
    : records_(std::move(files), "tfrecord", true) {}

void TFRecordReader::read(std::span<const uint64_t> records) {
  records_.read(records);
  for (size_t row = 0; row < records.size(); ++row) {
    const std::span<const std::byte> frame = records_.bytes(row);
    const char* why = fault_of_frame(frame);
    if (why != nullptr && records_.read_again(row)) why = fault_of_frame(frame);
    if (why == nullptr) [[likely]] {
      payloads_[row] = frame.subspan(kHeader, frame.size() - kFrame);
    } else {
      payloads_[row] = {};
      records_.fail(row, Code::kDataLoss, why);
    }
  }
}

TFRecordWriter::TFRecordWriter(FileSystem& files, const std::string& path, Compression compression)
    : sink_(files, path, compression) {}

void TFRecordWriter::write(std::span<const std::byte> payload) {
  if (sink_.closed()) throw Error(Code::kClosed, "tfrecord", "the file was closed");
  const uint64_t length = payload.size();
  const std::span length_bytes = std::as_bytes(std::span(&length, 1));
  const uint32_t length_crc = masked(crc32c(length_bytes));
  const uint32_t payload_crc = masked(crc32c(payload));
  sink_.append(length_bytes);
  sink_.append(std::as_bytes(std::span(&length_crc, 1)));
  sink_.append(payload);
  sink_.append(std::as_bytes(std::span(&payload_crc, 1)));
  ++records_;
  bytes_ += tfrecord::kFrame + payload.size();
}

void TFRecordWriter::close() { sink_.close(); }

}  // namespace penstock
