#include "penstock/online/log_format.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "penstock/base/error.h"
#include "penstock/io/crc32c.h"

namespace penstock::online::log_format {
namespace {

// A power loss can leave a sector of unflushed bytes unwritten, with written ones behind it.
bool has_unwritten_sector(int fd, uint64_t begin, uint64_t end, const std::string& path) {
  constexpr uint64_t kSector = 512;
  for (uint64_t at = (begin + kSector - 1) / kSector * kSector; at + kSector <= end;) {
    const std::string bytes =
        read_at(fd, at, std::min<uint64_t>((end - at) / kSector * kSector, 1 << 20), path);
    if (bytes.empty()) return false;
    for (size_t i = 0; i + kSector <= bytes.size(); i += kSector) {
      const std::string_view sector = std::string_view(bytes).substr(i, kSector);
      if (sector.find_first_not_of('\0') == sector.npos) return true;
    }
    at += bytes.size();
  }
  return false;
}

}  // namespace

uint32_t crc_of(std::string_view bytes, uint32_t before) {
  return crc32c(std::as_bytes(std::span(bytes)), before);
}

void finish_record(std::string& to, size_t at) {
  const auto length = static_cast<uint32_t>(to.size() - at - kPrefix);
  std::memcpy(to.data() + at, &length, 4);
  const uint32_t crc =
      masked(crc_of(std::string_view(to).substr(at + kPrefix), crc_of({to.data() + at, 4})));
  std::memcpy(to.data() + at + 4, &crc, 4);
}

bool record_is_whole(const char* prefix, std::string_view body) {
  return masked(crc_of(body, crc_of({prefix, 4}))) == number_at<uint32_t>(prefix + 4);
}

bool is_sound(std::string_view body, uint64_t length) {
  if (body.empty()) return false;
  if (body[0] == kIds) return (length - 1) % 6 == 0;
  return body[0] == kMessage && body.size() >= kFields &&
         number_at<uint32_t>(body.data() + 4) <= length - kFields;
}

std::string read_at(int fd, uint64_t at, uint64_t count, const std::string& path) {
  std::string bytes(count, '\0');
  for (size_t got = 0; got < count;) {
    const ssize_t some = pread(fd, bytes.data() + got, count - got, static_cast<off_t>(at + got));
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) throw Error::from_errno(errno, "spool", "cannot read " + path);
    if (some == 0) bytes.resize(got), count = got;
    got += static_cast<size_t>(some);
  }
  return bytes;
}

bool whole_message_follows(int fd, uint64_t begin, uint64_t size, const std::string& path) {
  constexpr uint64_t kStep = 1 << 20;
  // Bytes to checksum: a payload may look like many records.
  uint64_t budget = 2 * (size - begin) + (64 << 20);
  for (uint64_t from = begin + 1; from + kPrefix + kFields <= size; from += kStep) {
    const std::string bytes =
        read_at(fd, from, std::min(kStep + kPrefix + kFields, size - from), path);
    for (size_t i = 0; i < kStep && i + kPrefix + kFields <= bytes.size(); ++i) {
      const char* record = bytes.data() + i;
      const uint64_t length = number_at<uint32_t>(record);
      const std::string_view fields(record + kPrefix, kFields);
      if (fields[0] != kMessage || fields[1] != 0) continue;
      if (length < kFields || from + i + kPrefix + length > size) continue;
      if (!is_sound(fields, length)) continue;
      if (length > budget) return false;
      budget -= length;
      const std::string whole = read_at(fd, from + i, kPrefix + length, path);
      if (whole.size() < kPrefix + length) continue;
      if (!record_is_whole(whole.data(), std::string_view(whole).substr(kPrefix))) continue;
      return !has_unwritten_sector(fd, begin, from + i, path);
    }
  }
  return false;
}

}  // namespace penstock::online::log_format
