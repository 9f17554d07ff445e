#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

// The bytes of a MessageLog's files; README.md has their layout.
namespace penstock::online::log_format {

inline constexpr std::string_view kMagic = "PNSTKLOG";
inline constexpr uint64_t kHeader = 8 + 8 + 4;  // magic, first offset, checksum
inline constexpr uint64_t kPrefix = 4 + 4;      // a record's length and checksum
// Of a message's body, before the topic: kind, zero, packet id, topic's length, time.
inline constexpr uint64_t kFields = 1 + 1 + 2 + 4 + 8;
inline constexpr uint64_t kMaxRecord = uint64_t{1} << 30;
inline constexpr char kMessage = 1, kIds = 2;  // kinds of bodies

template <class T>
void put_number(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);  // little-endian
}

template <class T>
T number_at(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

uint32_t crc_of(std::string_view bytes, uint32_t before = 0);

// Completes a record that begins at byte `at`: kPrefix bytes for the prefix, then the body.
void finish_record(std::string& to, size_t at);
// Whether the body has the checksum of its prefix.
bool record_is_whole(const char* prefix, std::string_view body);
// Whether a body of this length, which begins with `body`, has a form that a log writes.
bool is_sound(std::string_view body, uint64_t length);

// Bytes [at, at + count) of a file, or up to its end. Error kSystem; `path`: for its text.
std::string read_at(int fd, uint64_t at, uint64_t count, const std::string& path);
// Whether the bytes at `begin`, where no whole record is, are damage: flushed messages follow. A
// crash leaves a torn end instead, with no whole message behind it but across unwritten sectors.
bool whole_message_follows(int fd, uint64_t begin, uint64_t size, const std::string& path);

}  // namespace penstock::online::log_format
