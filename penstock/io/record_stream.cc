#include "penstock/io/record_stream.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace penstock {

using Kind = Framing::Cut::Kind;

RecordStream::RecordStream(std::shared_ptr<const StreamFiles> files, const char* operation,
                           std::unique_ptr<Framing> framing, std::function<void()> alive)
    : files_(std::move(files)),
      use_(files_->pool),
      operation_(operation),
      framing_(std::move(framing)),
      alive_(std::move(alive)) {}

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
  source_.emplace(files_->pool->get(files_->pool->add(files_->paths[place.file])),
                  files_->compressions[place.file]);
  file_bytes_ = source_->left();
  if (!drop(place.offset)) refuse();
}

// The first bytes of a file that was opened are not wanted. False: it does not have as many.
bool RecordStream::drop(uint64_t bytes) {
  if (!source_->compressed()) {
    source_->skip(bytes);
    return bytes <= file_bytes_;
  }
  // In the same pieces as when they were first read, so that as much comes out in front of damage.
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

size_t RecordStream::read(size_t most) {
  begin_ += taken_;
  taken_ = count_ = 0;
  failures_.clear();
  while (count_ < most && taken_ < kMostBytes && (failures_.empty() || !failures_.back().fatal)) {
    if (!source_) {
      if (place_.file == files_->paths.size()) break;
      if (!open()) continue;
    }
    if (counted() && place_.record == files_->counts[place_.file]) {
      end_counted();
      continue;
    }
    const Framing::Front rest = front();
    if (rest.bytes.empty() && over_) {
      if (error_ || counted()) {
        lose_rest(place_, "the file ends here");
      } else {
        close();
        place_ = {place_.file + 1};
      }
      continue;
    }
    const Framing::Cut cut =
        rest.bytes.empty() ? Framing::Cut{Kind::kMore, 1} : framing_->cut(rest);
    if (cut.kind == Kind::kMore) {
      if (over_) {
        lose_rest(place_);
      } else {
        fill(cut.bytes);
      }
    } else if (counted() && place_.record + 1 == files_->counts[place_.file] &&
               (cut.bytes < rest.bytes.size() || !over_ || error_)) {
      // The last one is good only if nothing is behind it: so whoever takes just so many is told.
      if (cut.bytes == rest.bytes.size() && !over_) {
        fill(cut.bytes + 1);
      } else {
        lose_rest(place_, "the file goes on behind this one");
      }
    } else if (cut.kind != Kind::kLost) {
      take(cut);
    } else if (count_ == 0) {
      lose_stretch();
    } else {
      break;  // what it goes over cannot be dropped while there are rows in front of it
    }
  }
  if (count_ == 0 && !source_) {  // it is over, and others may be read beside it
    buffer_.reset();
    size_ = 0;
  }
  for (size_t row = 0; row < count_; ++row) {  // which may have moved meanwhile
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

// The next file. False: it cannot be, which is a row.
bool RecordStream::open() {
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
  if (!files_->fronts.empty()) {
    const uint64_t front = files_->fronts[place_.file];
    if (!drop(front)) {
      lose_rest(place_, "it ends within its header");
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
  // What rows are made of stays where it is.
  if (count_ == 0) {
    begin_ = end_ = taken_ = 0;
  } else {
    end_ = begin_ + taken_;
  }
}

Framing::Front RecordStream::front() const {
  const std::span<const std::byte> bytes{buffer_.get() + begin_ + taken_, end_ - begin_ - taken_};
  if (over_ && !error_) return {bytes, bytes.size()};
  // By what the file may have at most, and not by what was read of it so far, which differs.
  const uint64_t most = source_->most() - std::min(source_->most(), place_.offset);
  return {bytes, source_->compressed() ? std::max(most, bytes.size() + 1) : most};
}

// Until there are `wanted` bytes in front, or no more.
void RecordStream::fill(uint64_t wanted) {
  while (!over_ && end_ - begin_ - taken_ < wanted) {
    if (alive_) alive_();
    std::byte* to = room();
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

// For a piece behind what is there.
std::byte* RecordStream::room() {
  if (size_ - end_ >= kPiece) return buffer_.get() + end_;
  const uint64_t used = end_ - begin_;
  if (size_ < used + kPiece || begin_ < used / 2) {
    // By a half, and never by what a file says: only as much as it turned out to have.
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

// A record, sound or not.
void RecordStream::take(const Framing::Cut& cut) {
  if (cut.kind == Kind::kNothing) {
    (count_ == 0 ? begin_ : taken_) += cut.bytes;
    place_.offset += cut.bytes;
    return;
  }
  if (cut.kind == Kind::kBad) {
    fail(place_, cut.bytes, false, Code::kDataLoss, cut.why);
  } else {
    rows_[count_] = {place_, front().bytes.subspan(cut.begin, cut.size)};
    begins_[count_++] = taken_ + cut.begin;
  }
  taken_ += cut.bytes;
  place_.offset += cut.bytes;
  ++place_.record;
}

// All that is in front of the next record is one row that failed.
void RecordStream::lose_stretch() {
  const Place from = place_;
  auto drop = [this](uint64_t bytes) {
    begin_ += bytes;
    place_.offset += bytes;
  };
  drop(1);  // whatever begins here, a record is not
  while (true) {
    const Framing::Gap gap = framing_->resume(front());
    drop(gap.bytes);
    if (!gap.more) break;
    if (over_) return lose_rest(from);
    fill(gap.wanted);
  }
  fail(from, place_.offset - from.offset, false, Code::kDataLoss, "no record can be read here");
  ++place_.record;
}

// What the file still has, from a place on, cannot be had, by error_, or else because of `why`.
void RecordStream::lose_rest(const Place& from, const char* why) {
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

// Behind the last record, which was good: or there is to be none.
void RecordStream::end_counted() {
  if (begin_ + taken_ == end_) fill(1);
  if (begin_ + taken_ != end_ || error_) return lose_rest(place_, "the file goes on here");
  close();
  place_ = {place_.file + 1};
}

void RecordStream::fail(const Place& place, uint64_t bytes, bool rest, Code code, std::string why) {
  failures_.push_back({count_, bytes, rest, code, std::move(why)});
  begins_[count_] = 0;
  rows_[count_++] = {place, {}};
}

}  // namespace penstock
