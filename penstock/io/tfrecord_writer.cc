#include "penstock/io/tfrecord_writer.h"

#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/compression.h"
#include "penstock/io/tfrecord.h"

namespace penstock {

using namespace tfrecord;

TFRecordWriter::TFRecordWriter(FileSystem& files, const std::string& path, Compression compression)
    : sink_(files.create(path)) {
  if (compression != Compression::kNone) sink_ = compress_to(std::move(sink_), compression);
  buffer_.reserve(kBuffer);
}

void TFRecordWriter::write(std::span<const std::byte> payload) {
  if (sink_ == nullptr) throw Error(Code::kClosed, "tfrecord", "the file was closed");
  const uint64_t length = payload.size();
  const std::span length_bytes = std::as_bytes(std::span(&length, 1));
  const uint32_t length_crc = masked(crc32c(length_bytes));
  const uint32_t payload_crc = masked(crc32c(payload));
  append(length_bytes);
  append(std::as_bytes(std::span(&length_crc, 1)));
  append(payload);
  append(std::as_bytes(std::span(&payload_crc, 1)));
  ++records_;
  bytes_ += kFrame + payload.size();
}

void TFRecordWriter::append(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBuffer) put(buffer_);
  if (bytes.size() > kBuffer) {
    put(bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void TFRecordWriter::put(std::span<const std::byte> bytes) {
  try {
    sink_->write(bytes);
  } catch (...) {
    sink_.reset();  // an unknown part was written: discard the file
    throw;
  }
  if (bytes.data() == buffer_.data()) buffer_.clear();
}

void TFRecordWriter::close() {
  if (sink_ == nullptr) return;
  put(buffer_);
  std::exchange(sink_, nullptr)->commit();
}

}  // namespace penstock
