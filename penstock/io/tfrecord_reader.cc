#include "penstock/io/tfrecord_reader.h"

#include <utility>

#include "penstock/io/tfrecord_frame.h"

namespace penstock {

using namespace tfrecord;

namespace {

// nullptr: nothing.
const char* wrong_with(std::span<const std::byte> frame) {
  if (frame.size() < kFrame) return "no record can be read here";
  const uint64_t bytes = frame.size() - kFrame;
  if (!length_agrees(frame.data())) return "the length does not agree with its checksum";
  if (load<uint64_t>(frame.data()) != bytes) return "another length than when the file was indexed";
  if (!agree(frame.subspan(kHeader, bytes), frame.data() + kHeader + bytes)) {
    return "the payload does not agree with its checksum";
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
    const char* why = wrong_with(frame);
    if (why != nullptr && records_.read_again(row)) why = wrong_with(frame);
    if (why == nullptr) [[likely]] {
      payloads_[row] = frame.subspan(kHeader, frame.size() - kFrame);
    } else {
      payloads_[row] = {};
      records_.fail(row, Code::kDataLoss, why);
    }
  }
}

}  // namespace penstock
