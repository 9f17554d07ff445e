#include "penstock/online/message_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "penstock/base/clock.h"
#include "penstock/io/crc32c.h"
#include "penstock/io/file.h"
#include "penstock/online/log_format.h"

namespace penstock::online {
namespace {

constexpr std::string_view kSuffix = ".log";
constexpr uint64_t kWriteAt = uint64_t{1} << 20;  // bytes that wait for no flush to be written

uint64_t wall_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

// A time of now_ns() from one of the system's clock, which other processes have stored.
uint64_t steady_ns(uint64_t wall) {
  const uint64_t now = now_ns(), today = wall_ns();
  const uint64_t age = today > wall ? today - wall : 0;
  return now > age ? now - age : 0;
}

std::string path_of(const std::string& folder, uint64_t first) {
  std::string digits = std::to_string(first);
  return folder + "/" + std::string(20 - digits.size(), '0') + digits + std::string(kSuffix);
}

[[noreturn]] void system_error(const std::string& text) {
  throw Error::from_errno(errno, "spool", text);
}

// The next push_back() does not throw.
template <class T>
void reserve_one(std::vector<T>& in) {
  if (in.size() == in.capacity()) in.reserve(std::max<size_t>(64, 2 * in.size()));
}

}  // namespace

MessageLog::MessageLog(LogOptions options, Tokens spooled)
    : options_(std::move(options)), hand_over_(std::move(spooled)) {
  open();
  writer_->thread = std::thread([this] { run(); });
  try {
    watch_forks();
  } catch (...) {
    close();
    throw;
  }
}

MessageLog::~MessageLog() {
  ignore_forks();
  close();
  if (inherited_.load()) (void)writer_.release();
}

void MessageLog::after_fork_in_child() noexcept {
  inherited_.store(true);
  mutex_.unlock();
}

void MessageLog::check_process() const {
  if (!inherited_.load()) return;
  throw Error(Code::kInvalidArgument, "spool",
              options_.folder + " is used by the process that this one was forked from");
}

void MessageLog::close() {
  if (inherited_.load() || !writer_->thread.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  writer_->changed.notify_all();
  writer_->thread.join();
  {
    std::lock_guard lock(mutex_);
    writer_->fd.reset();
  }
  lock_.reset();  // not under mutex_, which before_fork() takes
}

void MessageLog::open() {
  std::error_code failed;
  std::filesystem::create_directories(options_.folder, failed);
  if (failed) {
    throw Error::from_errno(failed.value(), "spool", "cannot make the folder " + options_.folder);
  }
  lock_.emplace(options_.folder, "spool", "give each run its own folder");
  for (const auto& entry : std::filesystem::directory_iterator(options_.folder)) {
    const std::string name = entry.path().filename().string();
    if (name.size() != 20 + kSuffix.size() || !name.ends_with(kSuffix)) continue;
    Segment segment;
    const auto [end, bad] = std::from_chars(name.data(), name.data() + 20, segment.first);
    if (bad != std::errc() || end != name.data() + 20) continue;
    segment.path = options_.folder + "/" + name;
    segments_.push_back(std::move(segment));
  }
  std::ranges::sort(segments_, {}, &Segment::first);
  for (size_t i = 0; i < segments_.size(); ++i) {
    Segment& segment = segments_[i];
    if (i > 0 && segments_[i - 1].end != segment.first) {
      throw Error(Code::kDataLoss, "spool",
                  segment.path + " begins at message " + std::to_string(segment.first) +
                      ", but the file before it ends at " + std::to_string(segments_[i - 1].end));
    }
    scan(segment, i + 1 == segments_.size());
  }
  // A file whose header is not whole has no message.
  if (!segments_.empty() && segments_.back().bytes < log_format::kHeader) {
    unlink(segments_.back().path.c_str());
    segments_.pop_back();
  }
  opened_ids_ = writer_->ids;
  if (!segments_.empty()) {
    appended_ = written_ = spooled_ = synced_ = sync_until_ = segments_.back().end;
    writer_->fd = os::Fd(::open(segments_.back().path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!writer_->fd) system_error("cannot open " + segments_.back().path);
    if (ftruncate(writer_->fd.get(), static_cast<off_t>(segments_.back().bytes)) != 0) {
      system_error("cannot cut off the torn end of " + segments_.back().path);
    }
    if (fdatasync(writer_->fd.get()) != 0) system_error("cannot flush " + segments_.back().path);
  }
}

// Sets end and bytes to those of the whole messages. `last`: what follows them is cut off by the
// caller; in other files it is damage.
void MessageLog::scan(Segment& segment, bool last) {
  const os::Fd fd(::open(segment.path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat stat;
  if (!fd || fstat(fd.get(), &stat) != 0) system_error("cannot open " + segment.path);
  const auto size = static_cast<uint64_t>(stat.st_size);
  std::string buffer;
  uint64_t at = 0;  // of the buffer's begin, in the file
  const auto read_to = [&](uint64_t begin, uint64_t bytes) -> const char* {
    if (begin + bytes > size) return nullptr;
    if (begin < at || begin + bytes > at + buffer.size()) {
      buffer = log_format::read_at(fd.get(), begin,
                                   std::min(std::max<uint64_t>(bytes, 1 << 20), size - begin),
                                   segment.path);
      at = begin;
      if (buffer.size() < bytes) return nullptr;
    }
    return buffer.data() + (begin - at);
  };
  segment.end = segment.first;
  const char* header = read_to(0, log_format::kHeader);
  const bool whole =
      header != nullptr && std::string_view(header, 8) == log_format::kMagic &&
      log_format::number_at<uint64_t>(header + 8) == segment.first &&
      masked(log_format::crc_of({header, 16})) == log_format::number_at<uint32_t>(header + 16);
  uint64_t next = whole ? log_format::kHeader : 0;
  while (whole && next < size) {
    const char* prefix = read_to(next, log_format::kPrefix);
    if (prefix == nullptr) break;
    const uint64_t length = log_format::number_at<uint32_t>(prefix);
    if (length > log_format::kMaxRecord) break;
    const char* record = read_to(next, log_format::kPrefix + length);
    if (record == nullptr) break;
    const std::string_view body(record + log_format::kPrefix, length);
    if (!log_format::record_is_whole(record, body) || !log_format::is_sound(body, length)) break;
    if (body[0] == log_format::kMessage) {
      ++segment.end;
      writer_->ids.note({log_format::number_at<uint16_t>(body.data() + 2),
                         log_format::crc_of(body.substr(log_format::kFields))});
    } else {
      for (size_t i = 1; i < body.size(); i += 6) {
        writer_->ids.note({log_format::number_at<uint16_t>(body.data() + i),
                           log_format::number_at<uint32_t>(body.data() + i + 2)});
      }
    }
    next += log_format::kPrefix + length;
  }
  segment.bytes = next;
  if (next == size) return;
  if (!last || log_format::whole_message_follows(fd.get(), next, size, segment.path)) {
    throw Error(Code::kDataLoss, "spool",
                segment.path + ", byte " + std::to_string(next) + ": message " +
                    std::to_string(segment.end) +
                    " is damaged, and others follow: restore the file; or, to go on without them, "
                    "cut it there (truncate -s " +
                    std::to_string(next) + ") and remove later .log files");
  }
  torn_bytes_ = size - next;
}

uint64_t MessageLog::begin() const {
  std::lock_guard lock(mutex_);
  return segments_.empty() ? appended_ : segments_.front().first;
}

uint64_t MessageLog::end() const {
  std::lock_guard lock(mutex_);
  return appended_;
}

uint64_t MessageLog::spooled() const {
  std::lock_guard lock(mutex_);
  return spooled_;
}

bool MessageLog::busy() const {
  std::lock_guard lock(mutex_);
  return error_ || pending_.size() > options_.max_pending;
}

void MessageLog::check() const {
  check_process();
  std::lock_guard lock(mutex_);
  if (error_) throw Error(*error_);
}

void MessageLog::skip_to(uint64_t offset) {
  std::lock_guard lock(mutex_);
  if (offset == appended_) return;
  for (const Segment& segment : segments_) unlink(segment.path.c_str());
  segments_.clear();
  writer_->fd.reset();
  appended_ = written_ = spooled_ = synced_ = sync_until_ = offset;
}

uint64_t MessageLog::append(const Message& message, uint32_t crc) {
  check_process();
  std::lock_guard lock(mutex_);
  if (error_) throw Error(*error_);
  if (message.topic.size() + message.payload.size() + log_format::kFields >
      log_format::kMaxRecord) {
    throw Error(Code::kInvalidArgument, "spool", "a message is larger than 1 GiB");
  }
  const size_t at = pending_.size();
  // From here on nothing throws: part of a message may not stay in pending_.
  pending_.reserve(at + log_format::kPrefix + log_format::kFields + message.topic.size() +
                   message.payload.size());
  reserve_one(pending_tokens_);
  reserve_one(pending_ids_);
  pending_.append(log_format::kPrefix, '\0');
  pending_.push_back(log_format::kMessage);
  pending_.push_back(0);
  log_format::put_number(pending_, message.packet_id);
  log_format::put_number(pending_, static_cast<uint32_t>(message.topic.size()));
  const uint64_t now = now_ns();
  log_format::put_number(pending_,
                         wall_ns() - (now > message.received_ns ? now - message.received_ns : 0));
  pending_.append(message.topic);
  pending_.append(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
  log_format::finish_record(pending_, at);
  if (message.packet_id != 0) pending_ids_.push_back({message.packet_id, crc});
  if (message.token != 0) pending_tokens_.push_back(message.token);
  if (at == 0 || (at < kWriteAt && pending_.size() >= kWriteAt)) writer_->changed.notify_all();
  return appended_++;
}

void MessageLog::acknowledge(uint64_t token) {
  check_process();
  std::lock_guard lock(mutex_);
  if (token == 0 || error_) return;
  pending_tokens_.push_back(token);
  writer_->changed.notify_all();
}

void MessageLog::sync() {
  check_process();
  std::unique_lock lock(mutex_);
  const uint64_t wanted = appended_;
  sync_until_ = std::max(sync_until_, wanted);
  writer_->changed.notify_all();
  writer_->progress.wait(lock, [&] { return error_ || synced_ >= wanted; });
  if (error_) throw Error(*error_);
}

void MessageLog::trim(uint64_t offset) {
  std::vector<std::string> removed;
  {
    std::lock_guard lock(mutex_);
    while (segments_.size() > 1 && segments_.front().end <= offset) {
      removed.push_back(std::move(segments_.front().path));
      segments_.pop_front();
    }
  }
  for (const std::string& path : removed) unlink(path.c_str());
}

void MessageLog::flush() {
  if (fdatasync(writer_->fd.get()) != 0) system_error("cannot flush a file of " + options_.folder);
}

// The thread's. The identifiers in the file's first record outlive the files before it.
void MessageLog::begin_segment(uint64_t first) {
  std::string bytes(log_format::kMagic);
  log_format::put_number(bytes, first);
  log_format::put_number(bytes, masked(log_format::crc_of(bytes)));
  const size_t at = bytes.size();
  bytes.append(log_format::kPrefix, '\0');
  bytes.push_back(log_format::kIds);
  for (const auto& [id, crc] : writer_->ids.in_order()) {
    log_format::put_number(bytes, id);
    log_format::put_number(bytes, crc);
  }
  log_format::finish_record(bytes, at);
  const std::string path = path_of(options_.folder, first);
  os::Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) system_error("cannot make " + path);
  writer_->fd = std::move(fd);
  {
    std::lock_guard lock(mutex_);
    segments_.push_back({.first = first, .end = first, .bytes = 0, .path = path});
  }
  write_out(std::as_bytes(std::span(bytes)));
  if (options_.fsync_ns >= 0) sync_posix_folder(options_.folder, "spool");
}

// Appends to the last segment, or leaves it as it was.
void MessageLog::write_out(std::span<const std::byte> bytes) {
  std::unique_lock lock(mutex_);
  const uint64_t before = segments_.back().bytes;
  const std::string path = segments_.back().path;
  lock.unlock();
  uint64_t done = 0;
  while (done < bytes.size()) {
    const ssize_t some = pwrite(writer_->fd.get(), bytes.data() + done, bytes.size() - done,
                                static_cast<off_t>(before + done));
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) {
      const int why = some < 0 ? errno : ENOSPC;
      (void)!ftruncate(writer_->fd.get(), static_cast<off_t>(before));
      errno = why;
      system_error("cannot write to " + path +
                   "; nothing was acknowledged that is not in it. Make space and start again");
    }
    done += static_cast<uint64_t>(some);
  }
  lock.lock();
  segments_.back().bytes = before + bytes.size();
}

void MessageLog::run() {
  os::block_all_signals();
  const os::FileSizeSignalBlocker no_signal;
  std::vector<uint64_t> tokens, safe;  // of messages that were not flushed, and that were
  std::string bytes;
  std::vector<RecentIds::Id> ids;  // of `bytes`
  uint64_t due_ns = 0;             // of the next flush; 0: nothing waits for one
  bool unsynced = false;
  std::unique_lock lock(mutex_);
  try {
    for (;;) {
      if (due_ns == 0) {
        writer_->changed.wait(lock, [&] {
          return stop_ || !pending_.empty() || !pending_tokens_.empty() || sync_until_ > synced_;
        });
        due_ns = now_ns() + static_cast<uint64_t>(std::max<int64_t>(options_.fsync_ns, 0));
      }
      // What arrives meanwhile is written and flushed together.
      if (const uint64_t now = now_ns(); now < due_ns) {
        writer_->changed.wait_for(lock, std::chrono::nanoseconds(due_ns - now), [&] {
          return stop_ || sync_until_ > synced_ || pending_.size() >= kWriteAt;
        });
      }
      const bool stopping = stop_;
      bytes.clear();
      std::swap(bytes, pending_);
      ids.clear();
      std::swap(ids, pending_ids_);
      tokens.insert(tokens.end(), pending_tokens_.begin(), pending_tokens_.end());
      pending_tokens_.clear();
      const uint64_t first = written_, end = appended_;
      const bool wanted = stopping || sync_until_ > synced_;
      const bool roll = segments_.empty() || segments_.back().bytes >= options_.segment_bytes;
      lock.unlock();
      if (!bytes.empty()) {
        if (roll) {
          if (unsynced && options_.fsync_ns >= 0) flush();
          begin_segment(first);
        }
        write_out(std::as_bytes(std::span(bytes)));
        for (const RecentIds::Id& id : ids) writer_->ids.note(id);
        unsynced = true;
        std::lock_guard again(mutex_);
        segments_.back().end = end;
        written_ = end;
      }
      const bool due = now_ns() >= due_ns;
      if (unsynced && (wanted || (due && options_.fsync_ns >= 0))) {
        flush();
        unsynced = false;
      }
      uint64_t spooled;
      {
        std::lock_guard again(mutex_);
        if (!unsynced || options_.fsync_ns < 0) {
          due_ns = 0;
          spooled_ = end;
          std::swap(safe, tokens);
        }
        spooled = spooled_;
      }
      if (hand_over_) hand_over_(safe, spooled);
      safe.clear();
      lock.lock();
      if (!unsynced) synced_ = end;  // sync() returns when the tokens were handed over
      writer_->progress.notify_all();
      if (stopping && pending_.empty() && pending_tokens_.empty()) {
        error_.emplace(Code::kClosed, "spool", options_.folder + " was closed");
        return;
      }
    }
  } catch (const Error& error) {
    if (!lock.owns_lock()) lock.lock();
    error_.emplace(error);
  } catch (const std::exception& error) {  // for example no memory
    if (!lock.owns_lock()) lock.lock();
    error_.emplace(Code::kSystem, "spool", error.what());
  }
  pending_ = {};
  pending_ids_ = {};
  pending_tokens_ = {};
  writer_->progress.notify_all();
  const uint64_t spooled = spooled_;
  lock.unlock();
  if (hand_over_) hand_over_({}, spooled);  // a wait for space finds the error
}

MessageLog::Reader::Reader(const MessageLog& log, uint64_t from, uint64_t to)
    : log_(log), next_(from), to_(to) {}

bool MessageLog::Reader::fill(uint64_t bytes) {
  if (buffer_.size() - at_ >= bytes) return true;
  buffer_.erase(0, at_);
  at_ = 0;
  const std::string more = log_format::read_at(
      fd_.get(), file_at_, std::max<uint64_t>(bytes, 1 << 18) - buffer_.size(), path_);
  file_at_ += more.size();
  buffer_ += more;
  return buffer_.size() >= bytes;
}

StoredMessage MessageLog::Reader::next() {
  for (;;) {
    if (!fd_ || segment_ >= segment_end_) {
      std::lock_guard lock(log_.mutex_);
      const auto found = std::ranges::find_if(log_.segments_, [&](const Segment& each) {
        return each.first <= next_ && next_ < each.end;
      });
      if (found == log_.segments_.end()) {
        throw Error(Code::kDataLoss, "spool",
                    log_.options_.folder + " has no message " + std::to_string(next_));
      }
      fd_ = os::Fd(::open(found->path.c_str(), O_RDONLY | O_CLOEXEC));
      if (!fd_) system_error("cannot open " + found->path);
      path_ = found->path;
      segment_ = found->first;
      segment_end_ = found->end;
      buffer_.clear();
      at_ = 0;
      file_at_ = log_format::kHeader;
    }
    const auto damaged = [&]() -> Error {
      return Error(Code::kDataLoss, "spool",
                   path_ + ": message " + std::to_string(segment_) + " is damaged");
    };
    if (!fill(log_format::kPrefix)) throw damaged();
    const uint64_t length = log_format::number_at<uint32_t>(buffer_.data() + at_);
    if (length > log_format::kMaxRecord || !fill(log_format::kPrefix + length)) throw damaged();
    const char* record = buffer_.data() + at_;
    const std::string_view body(record + log_format::kPrefix, length);
    if (!log_format::record_is_whole(record, body) || !log_format::is_sound(body, length))
      throw damaged();
    at_ += log_format::kPrefix + length;
    if (body[0] == log_format::kIds) continue;
    if (segment_++ < next_) continue;
    StoredMessage message;
    message.packet_id = log_format::number_at<uint16_t>(body.data() + 2);
    message.topic_bytes = log_format::number_at<uint32_t>(body.data() + 4);
    message.received_ns = steady_ns(log_format::number_at<uint64_t>(body.data() + 8));
    message.bytes = body.substr(log_format::kFields);
    message.offset = next_++;
    return message;
  }
}

}  // namespace penstock::online
