#include "penstock/io/record_stream.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "penstock/base/cancellation.h"

namespace penstock {

using NextKind = Framing::Next::Kind;

namespace {

// A few bytes of a compressed file may claim, and become, a thousand times as many.
constexpr uint64_t kMaxRecordBytes = uint64_t{1} << 30;
constexpr char kTooLarge[] =
    "a record of more than 1 GiB after decompression: decompress the file first, if that is right";

// Whether a record of so many bytes is not to be decompressed.
bool too_large(uint64_t bytes, const SequentialFile& source) {
  return source.compressed() && bytes > kMaxRecordBytes;
}

}  // namespace

RecordStream::RecordStream(std::shared_ptr<const StreamFiles> files, const char* operation,
                           std::unique_ptr<Framing> framing, std::function<void()> check_cancelled)
    : files_(std::move(files)),
      use_(files_->pool),
      operation_(operation),
      framing_(std::move(framing)),
      check_cancelled_(std::move(check_cancelled)) {}

void RecordStream::seek(const Place& place) {
  count_ = 0;
  failures_.clear();
  close();
  place_ = place;
  auto refuse = [&] {
    close();
    throw Error(Code::kInvalidArgument, operation_,
                "there is no byte " + std::to_string(place.offset) + " in file " +
                    std::to_string(place.file) + " of " + std::to_string(files_->paths.size()));
  };
  if (place.offset == 0) {
    if (place.file > files_->paths.size()) refuse();
    return;
  }
  if (place.file >= files_->paths.size()) refuse();
  const Cancellation cancellation(check_cancelled_);
  source_.emplace(files_->pool->get(files_->pool->add(files_->paths[place.file])),
                  files_->compressions[place.file]);
  file_bytes_ = source_->left();
  if (!drop(place.offset)) refuse();
}

// Skips the first bytes of an opened file. False: the file has fewer.
bool RecordStream::drop(uint64_t bytes) {
  if (!source_->compressed()) {
    source_->skip(bytes);
    return bytes <= file_bytes_;
  }
  // In pieces of the same size as in the first pass, so that decompression stops at the same byte
  // before damage.
  for (uint64_t left = bytes; left > 0;) {
    if (begin_ + taken_ == end_) {
      if (over_) return false;
      fill(1);
    }
    const uint64_t part = std::min(left, end_ - begin_ - taken_);
    (count_ == 0 ? begin_ : taken_) += part;
    left -= part;
  }
  return true;
}

size_t RecordStream::read(size_t max_rows) {
  begin_ += taken_;
  taken_ = count_ = 0;
  failures_.clear();
  while (count_ < max_rows && taken_ < kMaxBytes &&
         (failures_.empty() || !failures_.back().fatal)) {
    if (!source_) {
      if (place_.file == files_->paths.size()) break;
      if (!open()) continue;
    }
    if (counted() && place_.record == files_->counts[place_.file]) {
      end_counted();
      continue;
    }
    const Framing::Window rest = window();
    if (rest.bytes.empty() && over_) {
      if (error_ || counted()) {
        drop_rest_of_file(place_, "the file ends here");
      } else {
        close();
        place_ = {place_.file + 1};
      }
      continue;
    }
    const Framing::Next next =
        rest.bytes.empty() ? Framing::Next{NextKind::kNeedMore, 1} : framing_->next(rest);
    if (next.kind == NextKind::kNeedMore) {
      if (over_) {
        drop_rest_of_file(place_);
      } else if (too_large(next.bytes, *source_)) {
        drop_rest_of_file(place_, kTooLarge);
      } else {
        fill(next.bytes);
      }
    } else if (counted() && place_.record + 1 == files_->counts[place_.file] &&
               (next.bytes < rest.bytes.size() || !over_ || error_)) {
      // The last counted record must also be the last of the file, or the caller would not learn of
      // the excess.
      if (next.bytes == rest.bytes.size() && !over_) {
        fill(next.bytes + 1);
      } else {
        drop_rest_of_file(place_, "the file has more records than its header says");
      }
    } else if (next.kind != NextKind::kNoRecord) {
      take(next);
    } else if (count_ == 0) {
      skip_damaged(next.why);
    } else {
      break;  // resync() drops bytes, which is impossible while rows lie before them
    }
  }
  if (count_ == 0 && !source_) {  // the end: free the memory for other streams
    buffer_.reset();
    size_ = 0;
  }
  for (size_t row = 0; row < count_; ++row) {  // the buffer may have moved meanwhile
    rows_[row].bytes = {buffer_.get() + begin_ + begins_[row], rows_[row].bytes.size()};
  }
  if (source_) used_ = file_bytes_ - source_->left();
  return count_;
}

Error RecordStream::error_of(const Failure& failure) const {
  const Place& place = rows_[failure.row].place;
  const bool inflated = files_->compressions[place.file] != Compression::kNone;
  return {failure.code, operation_,
          files_->paths[place.file] + ", record " + std::to_string(place.record) + " at byte " +
              std::to_string(place.offset) + (inflated ? " of what was inflated (" : " (") +
              std::to_string(failure.bytes) +
              (failure.rest && inflated ? " bytes of the file are left): " : " bytes): ") +
              failure.why};
}

// Opens the next file. False: it failed, which is a row.
bool RecordStream::open() {
  const Cancellation cancellation(check_cancelled_);
  const auto next = files_->paths.begin() + static_cast<ptrdiff_t>(place_.file) + 1;
  files_->pool->will_open({next, next + std::min<ptrdiff_t>(kAhead, files_->paths.end() - next)});
  try {
    source_.emplace(files_->pool->get(files_->pool->add(files_->paths[place_.file])),
                    files_->compressions[place_.file]);
  } catch (const Error& error) {
    fail(place_, 0, true, error.code(), error.what());
    failures_.back().fatal = counted();
    if (!counted()) place_ = {place_.file + 1};
    return false;
  }
  file_bytes_ = source_->left();
  if (!files_->header_bytes.empty()) {
    const uint64_t front = files_->header_bytes[place_.file];
    if (!drop(front)) {
      drop_rest_of_file(place_, "the file ends within its header");
      return false;
    }
    place_.offset = front;
  }
  return true;
}

void RecordStream::close() {
  if (source_) used_ = file_bytes_;
  source_.reset();
  error_.reset();
  over_ = false;
  framing_->begin();
  // The bytes of rows must stay in place.
  if (count_ == 0) {
    begin_ = end_ = taken_ = 0;
  } else {
    end_ = begin_ + taken_;
  }
}

Framing::Window RecordStream::window() const {
  const std::span<const std::byte> bytes{buffer_.get() + begin_ + taken_, end_ - begin_ - taken_};
  if (over_ && !error_) return {bytes, bytes.size()};
  // The bound must depend on the file alone, since the number of bytes read so far varies.
  const uint64_t most = source_->max_bytes() - std::min(source_->max_bytes(), place_.offset);
  return {bytes, source_->compressed() ? std::max(most, bytes.size() + 1) : most};
}

// Reads until `wanted` bytes are in the window, or the file ends.
void RecordStream::fill(uint64_t wanted) {
  while (!over_ && end_ - begin_ - taken_ < wanted) {
    if (check_cancelled_) check_cancelled_();
    const Cancellation cancellation(check_cancelled_);
    std::byte* to = free_space();
    try {
      const size_t got = source_->read({to, kPiece});
      end_ += got;
      over_ = got < kPiece && !source_->compressed();
      if (got == 0) over_ = true;
    } catch (const Error& error) {
      error_ = error;
      over_ = true;
    }
  }
}

// Free space for another piece at the end of the buffer.
std::byte* RecordStream::free_space() {
  if (size_ - end_ >= kPiece) return buffer_.get() + end_;
  const uint64_t used = end_ - begin_;
  if (size_ < used + kPiece || begin_ < used / 2) {
    // Grow by a half of the bytes actually read, not by a length that the file claims.
    const uint64_t wanted = std::max<uint64_t>(4 * kPiece, used + used / 2 + kPiece);
    std::unique_ptr<std::byte[]> larger(new (std::nothrow) std::byte[wanted]);
    if (larger == nullptr) {
      throw Error(Code::kOutOfMemory, operation_,
                  "no memory for a record of more than " + std::to_string(used) + " bytes of " +
                      files_->paths[place_.file]);
    }
    if (used > 0) std::memcpy(larger.get(), buffer_.get() + begin_, used);
    buffer_ = std::move(larger);
    size_ = wanted;
  } else if (used > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, used);
  }
  begin_ = 0;
  end_ = used;
  return buffer_.get() + end_;
}

// Adds a record, valid or not, as a row.
void RecordStream::take(const Framing::Next& next) {
  if (next.kind == NextKind::kSkip) {
    (count_ == 0 ? begin_ : taken_) += next.bytes;
    place_.offset += next.bytes;
    return;
  }
  if (next.kind == NextKind::kCorrupt) {
    fail(place_, next.bytes, false, Code::kDataLoss, next.why);
  } else {
    rows_[count_] = {place_, window().bytes.subspan(next.begin, next.size)};
    begins_[count_++] = taken_ + next.begin;
  }
  taken_ += next.bytes;
  place_.offset += next.bytes;
  ++place_.record;
}

// Makes everything before the next record one row that failed.
void RecordStream::skip_damaged(const char* why) {
  const Place from = place_;
  auto drop = [this](uint64_t bytes) {
    begin_ += bytes;
    place_.offset += bytes;
  };
  drop(1);  // no record begins at this byte
  while (true) {
    const Framing::Skipped gap = framing_->resync(window());
    drop(gap.bytes);
    if (!gap.more) break;
    if (over_) return drop_rest_of_file(from);
    if (too_large(gap.wanted, *source_)) return drop_rest_of_file(from, kTooLarge);
    fill(gap.wanted);
  }
  fail(from, place_.offset - from.offset, false, Code::kDataLoss,
       why != nullptr ? why : "no valid record begins here");
  ++place_.record;
}

// Drops the rest of the file from a place on, because of error_, or else of `why`.
void RecordStream::drop_rest_of_file(const Place& from, const char* why) {
  const uint64_t bytes =
      source_->compressed() ? source_->left() : file_bytes_ - std::min(file_bytes_, from.offset);
  fail(from, bytes, true, error_ ? error_->code() : Code::kDataLoss, error_ ? error_->what() : why);
  if (counted()) {
    Failure& failure = failures_.back();
    failure.fatal = true;
    failure.why += "; by its header it has " + std::to_string(files_->counts[place_.file]) +
                   " records: fetch it again";
    return;
  }
  close();
  place_ = {place_.file + 1};
}

// Called after the last counted record: checks that the file ends there.
void RecordStream::end_counted() {
  if (begin_ + taken_ == end_) fill(1);
  if (begin_ + taken_ != end_ || error_)
    return drop_rest_of_file(place_, "the file has more records than its header says");
  close();
  place_ = {place_.file + 1};
}

void RecordStream::fail(const Place& place, uint64_t bytes, bool rest, Code code, std::string why) {
  failures_.push_back({count_, bytes, rest, code, std::move(why)});
  begins_[count_] = 0;
  rows_[count_++] = {place, {}};
}

}  // namespace penstock
