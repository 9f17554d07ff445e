#include "penstock/io/tfrecord_writer.h"

#include "penstock/base/error.h"
#include "penstock/io/compression.h"
#include "penstock/io/tfrecord.h"

namespace penstock {

using namespace tfrecord;

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
  bytes_ += kFrame + payload.size();
}

void TFRecordWriter::close() { sink_.close(); }

}  // namespace penstock
