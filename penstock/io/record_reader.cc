#include "penstock/io/record_reader.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"

namespace penstock {

bool ScatteredRead::copy(std::span<const Piece> pieces) noexcept {
  if (owner_ != getpid()) {
    close();
    if (!open()) return false;
  }
  if (memory_ == nullptr) return false;
  std::array<iovec, kMaxPieces> from;
  uint64_t bytes = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (uint64_t at = 0; at < pieces[i].bytes; at += 64) {
      __builtin_prefetch(pieces[i].from + at, 0, 2);
    }
    __builtin_prefetch(pieces[i].from + pieces[i].bytes - 1, 0, 2);
    from[i] = {const_cast<std::byte*>(pieces[i].from), pieces[i].bytes};
    bytes += pieces[i].bytes;
  }
  ssize_t copied;
  do {
    copied = pwritev(file_.get(), from.data(), static_cast<int>(pieces.size()), 0);
  } while (copied < 0 && errno == EINTR);
  if (copied != static_cast<ssize_t>(bytes)) return false;
  const std::byte* next = memory_;
  for (const Piece& piece : pieces) {
    std::memcpy(piece.to, next, piece.bytes);
    next += piece.bytes;
  }
  return true;
}

// Opens once: a refusal is final.
bool ScatteredRead::open() noexcept {
  owner_ = getpid();
  try {
    file_ = os::memory_file("penstock-read");
    os::resize_file(file_.get(), kMaxBytes);
  } catch (const Error&) {
    file_.reset();
    return false;
  }
  void* mapped = os::reserve_mapping(file_.get(), kMaxBytes, true);
  if (mapped == nullptr) return false;
  if (os::populate_write(mapped, kMaxBytes, file_.get()) !=
      0) {  // otherwise a lack of memory would be SIGBUS
    os::unmap(mapped, kMaxBytes);
    return false;
  }
  memory_ = static_cast<std::byte*>(mapped);
  return true;
}

void ScatteredRead::close() noexcept {
  if (memory_ != nullptr) os::unmap(memory_, kMaxBytes);
  memory_ = nullptr;
  file_.reset();
}

namespace {

// Fewer runs than this are read one by one: the system reads ahead in each.
constexpr size_t kMinStretches = 4;

// The longest time for records in memory: a system call for each, and copying them.
constexpr uint64_t longest_ns(size_t records, uint64_t bytes) {
  return 20'000 + 2'000 * records + bytes;
}

}  // namespace

RecordReader::RecordReader(std::shared_ptr<const RecordFiles> files, const char* operation,
                           bool checked)
    : files_(std::move(files)),
      use_(files_->shared_pool()),
      operation_(operation),
      checked_(checked) {}

void RecordReader::read(std::span<const uint64_t> records) {
  failures_.clear();
  locate(records);
  const std::span frames = std::span(frames_).first(records.size());
  const Extent extent = extent_of(frames);
  std::byte* to = reserve_buffer(extent.bytes);
  for (Frame& frame : frames) {
    frame.bytes = to;
    if (frame.failed) continue;
    bytes_[frame.row] = {to, frame.place.bytes};
    to += frame.place.bytes;
  }
  if (waited_ && extent.stretches >= kMinStretches) will_need(frames);
  const uint64_t begun = now_ns();
  scattered_ = fetch_scattered(frames, extent);
  for (size_t begin = 0; !scattered_ && begin < frames.size();) {
    size_t end = begin + 1;
    while (end < frames.size() && frames[end].file == frames[begin].file) ++end;
    fetch(frames.subspan(begin, end - begin));
    begin = end;
  }
  waited_ = now_ns() - begun > longest_ns(extent.count, extent.bytes);
}

bool RecordReader::near(const Frame& before, const Frame& frame) {
  return before.file == frame.file &&
         frame.place.offset - before.place.offset - before.place.bytes <= File::kGap;
}

RecordReader::Extent RecordReader::extent_of(std::span<const Frame> frames) {
  Extent extent;
  const Frame* before = nullptr;
  for (const Frame& frame : frames) {
    if (frame.failed) continue;
    extent.stretches += before == nullptr || !near(*before, frame);
    extent.bytes += frame.place.bytes;
    ++extent.count;
    before = &frame;
  }
  return extent;
}

void RecordReader::will_need(std::span<const Frame> frames) {
  std::shared_ptr<File> file;
  size_t file_number = SIZE_MAX;
  for (const Frame& frame : frames) {
    if (frame.failed) continue;
    if (frame.file != file_number) {
      file_number = frame.file;
      try {
        file = files_->pool().get(files_->number(frame.file));
      } catch (const Error&) {
        file = nullptr;  // reading the file will report the error
      }
    }
    if (file != nullptr) file->will_need(frame.place.offset, frame.place.bytes);
  }
}

bool RecordReader::read_again(size_t row) {
  Frame& frame = frames_[frame_of_[row]];
  if (!scattered_ || frame.failed) return false;
  fetch({&frame, 1});
  return !frame.failed;
}

void RecordReader::fail(size_t row, Code code, const std::string& why) {
  fail(frames_[frame_of_[row]], code, why);
}

// Sorts the frames by their position in the files. A record's number and its row are packed in one
// word: sorting 64 of them costs less than one system call.
void RecordReader::locate(std::span<const uint64_t> records) {
  static_assert(kChunk == 64);
  bool ascending = true;
  for (size_t row = 0; row < records.size(); ++row) {
    order_[row] = records[row] << 6 | row;
    ascending = ascending && (row == 0 || records[row - 1] <= records[row]);
  }
  if (!ascending) std::sort(order_.begin(), order_.begin() + records.size());
  if (!records.empty() && order_[records.size() - 1] >> 6 >= files_->size()) {
    throw Error(Code::kInternal, operation_,
                "record " + std::to_string(order_[records.size() - 1] >> 6) + " of " +
                    std::to_string(files_->size()));
  }
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
    frame_of_[frame.row] = static_cast<uint8_t>(i);
    frame.file = file;
    frame.record = record - files_->begin(file);
    frame.failed = false;
    files_->index(file).prefetch(frame.record);
  }
  for (size_t i = 0; i < records.size(); ++i) {
    Frame& frame = frames_[i];
    frame.place = files_->index(frame.file).at(frame.record);
    if (frame.place.damaged) fail(frame, Code::kDataLoss, "no valid record begins here");
  }
}

uint64_t RecordReader::memory_bytes() const {
  uint64_t all = 0;
  for (const Buffer& buffer : buffers_) all += buffer.size;
  return all;
}

// A buffer of at least this size that no caller holds.
std::byte* RecordReader::reserve_buffer(uint64_t bytes) {
  for (buffer_ = 0; buffer_ < buffers_.size(); ++buffer_) {
    if (buffers_[buffer_].bytes.use_count() <= 1) break;
  }
  if (buffer_ == buffers_.size()) buffers_.emplace_back();
  // Orders the reads of previous holders, perhaps on other threads, before our writes.
  std::atomic_thread_fence(std::memory_order_acquire);
  Buffer& buffer = buffers_[buffer_];
  if (bytes <= buffer.size) return buffer.bytes.get();
  buffer = {};                                // before the larger one is allocated
  const uint64_t wanted = bytes + bytes / 4;  // spare: chunks differ a little
  std::unique_ptr<std::byte[]> made(new (std::nothrow) std::byte[wanted]);
  if (made == nullptr) {
    throw Error(Code::kOutOfMemory, operation_,
                "no memory for " + std::to_string(wanted) + " bytes of records");
  }
  buffer = {std::move(made), wanted};
  return buffer.bytes.get();
}

// Reads small records that lie far apart with one system call. False: the records are not of this
// kind, or the call failed; no row has failed yet.
bool RecordReader::fetch_scattered(std::span<Frame> frames, const Extent& extent) {
  constexpr uint64_t kLarge = 8 << 10;
  const auto [count, stretches, bytes] = extent;
  if (stretches < kMinStretches || stretches * 2 < count) return false;
  if (bytes > ScatteredRead::kMaxBytes || bytes > count * kLarge) return false;
  bool done = false;
  try {
    done = copy_scattered(frames);
  } catch (const Error&) {
  }
  scattered_over_.clear();
  return done;
}

bool RecordReader::copy_scattered(std::span<const Frame> frames) {
  File::Mapping mapping;
  const Frame* last = nullptr;
  size_t piece = 0;
  for (const Frame& frame : frames) {
    if (frame.failed) continue;
    if (last == nullptr || last->file != frame.file) {
      // Every worker holds all files of its chunk at the same time, which may exceed the limit.
      std::shared_ptr<File> file = files_->pool().try_get(files_->number(frame.file));
      if (file == nullptr) return false;
      mapping = file->mapping();
      scattered_over_.push_back({std::move(file), 0});
      last = &frame;
    }
    const auto [offset, size, damaged] = frame.place;
    if (offset + size > mapping.bytes) return false;
    scattered_over_.back().end = offset + size;
    pieces_[piece++] = {mapping.data + offset, frame.bytes, size};
  }
  if (!scattered_read_.copy({pieces_.data(), piece})) return false;
  if (checked_) return true;
  // The last page of a mapping is zero beyond the end of the file.
  return std::all_of(scattered_over_.begin(), scattered_over_.end(),
                     [](const Reach& reach) { return reach.end <= reach.file->size(); });
}

// REQUIRED: frames of one file.
void RecordReader::fetch(std::span<Frame> frames) {
  std::shared_ptr<File> file;
  try {
    file = files_->pool().get(files_->number(frames.front().file));
  } catch (const Error& error) {
    for (Frame& frame : frames) fail(frame, error.code(), error.what());
    return;
  }
  fetch_from(*file, frames);
}

void RecordReader::fetch_from(File& file, std::span<Frame> frames) {
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
    for (Frame& frame : frames) fetch_from(file, {&frame, 1});  // find the one that fails
  }
}

void RecordReader::fail(Frame& frame, Code code, const std::string& why) {
  if (frame.failed) return;
  frame.failed = true;
  bytes_[frame.row] = {};
  failures_.push_back({frame.row, frame.place.bytes,
                       Error(code, operation_,
                             files_->path(frame.file) + ", record " + std::to_string(frame.record) +
                                 " at byte " + std::to_string(frame.place.offset) + " (" +
                                 std::to_string(frame.place.bytes) + " bytes): " + why)});
}

}  // namespace penstock
