#include "penstock/io/tfrecord_reader.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#include "penstock/io/tfrecord_frame.h"

namespace penstock {

using namespace tfrecord;

TFRecordReader::TFRecordReader(std::shared_ptr<const TFRecordFiles> files)
    : files_(std::move(files)) {}

void TFRecordReader::read(std::span<const uint64_t> records) {
  failures_.clear();
  const std::span frames = std::span(frames_).first(locate(records));
  uint64_t bytes = 0;
  for (const Frame& frame : frames) bytes += frame.failed ? 0 : frame.place.bytes;
  std::byte* to = make_room(bytes);
  for (Frame& frame : frames) {
    frame.bytes = to;
    if (!frame.failed) to += frame.place.bytes;
  }
  const bool scattered = fetch_scattered(frames);
  for (size_t begin = 0; !scattered && begin < frames.size();) {
    size_t end = begin + 1;
    while (end < frames.size() && frames[end].file == frames[begin].file) ++end;
    fetch(frames.subspan(begin, end - begin));
    begin = end;
  }
  for (Frame& frame : frames) {
    if (frame.failed) continue;
    const char* why = wrong_with(frame);
    if (why != nullptr && scattered) {
      // Beyond the end of a file that became shorter its last page is zeroes: read() says so.
      fetch({&frame, 1});
      if (frame.failed) continue;
      why = wrong_with(frame);
    }
    if (why != nullptr) {
      fail(frame, Code::kDataLoss, why);
    } else {
      payloads_[frame.row] = {frame.bytes + kHeader, frame.place.bytes - kFrame};
    }
  }
}

// Frames in the order in which they lie in the files. A record's number and its row in one word: to
// sort 64 of them costs less than one system call.
size_t TFRecordReader::locate(std::span<const uint64_t> records) {
  static_assert(kChunk == 64);
  bool ascending = true;
  for (size_t row = 0; row < records.size(); ++row) {
    order_[row] = records[row] << 6 | row;
    ascending = ascending && (row == 0 || records[row - 1] <= records[row]);
  }
  if (!ascending) std::sort(order_.begin(), order_.begin() + records.size());
  size_t file = 0;
  uint64_t end = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    const uint64_t record = order_[i] >> 6;
    if (record >= end) {
      file = files_->file_of(record);
      end = files_->end(file);
    }
    Frame& frame = frames_[i];
    frame.row = order_[i] & 63;
    frame.file = file;
    frame.record = record - files_->begin(file);
    frame.failed = false;
    files_->index(file).prefetch(frame.record);
  }
  for (size_t i = 0; i < records.size(); ++i) {
    Frame& frame = frames_[i];
    frame.place = files_->index(frame.file).at(frame.record);
    if (frame.place.damaged || frame.place.bytes < kFrame) {
      fail(frame, Code::kDataLoss, "no record can be read here");
    }
  }
  return records.size();
}

// A buffer that nobody holds, of at least this size.
std::byte* TFRecordReader::make_room(uint64_t bytes) {
  for (buffer_ = 0; buffer_ < buffers_.size(); ++buffer_) {
    if (buffers_[buffer_].bytes.use_count() <= 1) break;
  }
  if (buffer_ == buffers_.size()) buffers_.emplace_back();
  // What its holders read of it, perhaps on other threads, they read before they let go of it.
  std::atomic_thread_fence(std::memory_order_acquire);
  Buffer& buffer = buffers_[buffer_];
  if (bytes <= buffer.size) return buffer.bytes.get();
  buffer = {};                                // before the larger one is taken
  const uint64_t wanted = bytes + bytes / 4;  // chunks differ a little
  std::unique_ptr<std::byte[]> made(new (std::nothrow) std::byte[wanted]);
  if (made == nullptr) {
    throw Error(Code::kOutOfMemory, "tfrecord",
                "no memory for " + std::to_string(wanted) + " bytes of records");
  }
  buffer = {std::move(made), wanted};
  return buffer.bytes.get();
}

// Small records that lie far from one another, all by one system call. False: they are others, or
// it did not work, and nothing is said yet.
bool TFRecordReader::fetch_scattered(std::span<Frame> frames) {
  constexpr size_t kFew = 4;
  constexpr uint64_t kLarge = 8 << 10;
  size_t count = 0, stretches = 0;
  uint64_t bytes = 0;
  const Frame* before = nullptr;
  for (const Frame& frame : frames) {
    if (frame.failed) continue;
    const bool near = before != nullptr && before->file == frame.file &&
                      frame.place.offset - before->place.offset - before->place.bytes <= File::kGap;
    stretches += !near;
    bytes += frame.place.bytes;
    ++count;
    before = &frame;
  }
  if (stretches < kFew || stretches * 2 < count) return false;
  if (bytes > ScatteredRead::kMostBytes || bytes > count * kLarge) return false;
  scattered_over_.clear();
  File::Mapping mapping;
  const Frame* last = nullptr;
  size_t piece = 0;
  for (const Frame& frame : frames) {
    if (frame.failed) continue;
    if (last == nullptr || last->file != frame.file) {
      try {
        scattered_over_.push_back(files_->pool().get(files_->number(frame.file)));
      } catch (const Error&) {
        return false;
      }
      mapping = scattered_over_.back()->mapping();
      last = &frame;
    }
    const auto [offset, size, damaged] = frame.place;
    if (offset + size > mapping.bytes) return false;
    pieces_[piece++] = {mapping.data + offset, frame.bytes, size};
  }
  const bool done = scattered_.copy({pieces_.data(), piece});
  scattered_over_.clear();
  return done;
}

// REQUIRED: frames of one file.
void TFRecordReader::fetch(std::span<Frame> frames) {
  std::shared_ptr<File> file;
  try {
    file = files_->pool().get(files_->number(frames.front().file));
  } catch (const Error& error) {
    for (Frame& frame : frames) fail(frame, error.code(), error.what());
    return;
  }
  fetch_from(*file, frames);
}

void TFRecordReader::fetch_from(File& file, std::span<Frame> frames) {
  size_t count = 0;
  for (const Frame& frame : frames) {
    if (!frame.failed) segments_[count++] = {frame.place.offset, frame.bytes, frame.place.bytes};
  }
  try {
    if (count > 0) file.read({segments_.data(), count});
  } catch (const Error& error) {
    if (frames.size() == 1) {
      fail(frames.front(), error.code(), error.what());
      return;
    }
    for (Frame& frame : frames) fetch_from(file, {&frame, 1});  // which of them is it?
  }
}

// nullptr: nothing.
const char* TFRecordReader::wrong_with(const Frame& frame) {
  const uint64_t bytes = frame.place.bytes - kFrame;
  if (!length_agrees(frame.bytes)) return "the length does not agree with its checksum";
  if (load<uint64_t>(frame.bytes) != bytes) {
    return "another length than when the file was indexed";
  }
  const std::span payload{frame.bytes + kHeader, bytes};
  if (!agree(payload, frame.bytes + kHeader + bytes)) {
    return "the payload does not agree with its checksum";
  }
  return nullptr;
}

void TFRecordReader::fail(Frame& frame, Code code, const std::string& why) {
  if (frame.failed) return;
  frame.failed = true;
  payloads_[frame.row] = {};
  failures_.push_back({frame.row, frame.place.bytes,
                       Error(code, "tfrecord",
                             files_->path(frame.file) + ", record " + std::to_string(frame.record) +
                                 " at byte " + std::to_string(frame.place.offset) + " (" +
                                 std::to_string(frame.place.bytes) + " bytes): " + why)});
}

}  // namespace penstock
