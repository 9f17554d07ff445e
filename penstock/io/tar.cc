#include "penstock/io/tar.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

constexpr uint64_t kBlock = TarEntry::kBlock;
constexpr uint64_t kMaxExtended = 1 << 20;  // data of one extended header
constexpr uint64_t kMaxHeaders = 4 << 20;   // headers of one entry
constexpr const char* kCutHeader = "the file ends within a header";

// Where the fields of a header are.
struct Stretch {
  size_t begin, bytes;
};
constexpr Stretch kNameField{0, 100}, kSize{124, 12}, kChecksum{148, 8}, kMagic{257, 6},
    kPrefixField{345, 155};
constexpr size_t kType = 156, kSparseMore = 482, kMoreSparse = 504;

using Bytes = std::span<const std::byte>;

Bytes field(Bytes block, Stretch at) { return block.subspan(at.begin, at.bytes); }

std::string_view as_text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Up to the first zero byte.
std::string_view text_in(Bytes bytes) {
  const std::string_view text = as_text(bytes);
  return text.substr(0, text.find('\0'));
}

bool is_zero(Bytes block) {
  return std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Octal digits, or a number in base 256, which has the high bit of its first byte set.
std::optional<uint64_t> number_in(Bytes bytes) {
  const auto first = std::to_integer<unsigned>(bytes[0]);
  if ((first & 0x80) != 0) {
    if ((first & 0x40) != 0) return std::nullopt;  // negative
    uint64_t value = first & 0x3F;
    for (const std::byte byte : bytes.subspan(1)) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | std::to_integer<uint64_t>(byte);
    }
    return value;
  }
  std::string_view digits = text_in(bytes);
  digits.remove_prefix(std::min(digits.find_first_not_of(' '), digits.size()));
  uint64_t value = 0;
  for (size_t i = 0; i < digits.size() && digits[i] != ' '; ++i) {
    if (digits[i] < '0' || digits[i] > '7') return std::nullopt;
    value = value * 8 + static_cast<uint64_t>(digits[i] - '0');
  }
  return value;
}

// The sum of a header's bytes, its own digits counted as spaces. Some old programs added signed
// bytes.
bool header_checksum_matches(Bytes block) {
  const std::optional<uint64_t> said = number_in(field(block, kChecksum));
  if (!said) return false;
  uint64_t sum = 0;
  int64_t as_signed = 0;
  for (const std::byte byte : block) {
    sum += std::to_integer<uint64_t>(byte);
    as_signed += static_cast<int8_t>(byte);
  }
  for (const std::byte byte : field(block, kChecksum)) {
    sum -= std::to_integer<uint64_t>(byte);
    as_signed -= static_cast<int8_t>(byte);
  }
  constexpr int kSpaces = ' ' * static_cast<int>(kChecksum.bytes);
  return *said == sum + kSpaces || static_cast<int64_t>(*said) == as_signed + kSpaces;
}

std::optional<uint64_t> decimal(std::string_view text) {
  if (text.empty() || text.size() > 19) return std::nullopt;
  uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  return value;
}

// The values of a pax header that say where an entry's data lies and what it is called.
struct Extended {
  std::optional<std::string> path;
  std::optional<uint64_t> size;
  bool sparse = false;

  bool says_nothing() const { return !path && !size && !sparse; }

  // Lines of "<bytes of the line> <keyword>=<value>\n". nullptr: they are that.
  const char* take(std::string_view lines) {
    constexpr const char* kMalformed = "a pax header is malformed";
    while (!lines.empty() && lines[0] != '\0') {
      const size_t space = lines.find(' ');
      const auto bytes = decimal(lines.substr(0, space));
      if (space == lines.npos || !bytes || *bytes > lines.size() || *bytes < space + 3) {
        return kMalformed;
      }
      const std::string_view line = lines.substr(space + 1, *bytes - space - 1);
      const size_t equals = line.find('=');
      if (line.back() != '\n' || equals == line.npos) return kMalformed;
      const std::string_view keyword = line.substr(0, equals);
      const std::string_view value = line.substr(equals + 1, line.size() - equals - 2);
      if (keyword == "path") {
        if (value.find('\0') != value.npos) return kMalformed;
        path = value;
      } else if (keyword == "size") {
        size = decimal(value);
        if (!size) return kMalformed;
      } else if (keyword.starts_with("GNU.sparse.")) {
        sparse = true;
      }
      lines.remove_prefix(*bytes);
    }
    return nullptr;
  }
};

// Headers without data, whatever their size says: links, devices, folders, pipes.
bool has_data(char type) { return type < '1' || type > '6'; }

uint64_t padded(uint64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

}  // namespace

bool is_tar_header(Bytes block) {
  return block.size() >= kBlock && !is_zero(block.first(kBlock)) &&
         header_checksum_matches(block.first(kBlock));
}

TarFront parse_tar_entry(Bytes front, TarEntry& entry) {
  using Kind = TarFront::Kind;
  const auto damaged = [](const char* why) { return TarFront{Kind::kDamaged, 0, why}; };
  Extended extended;
  std::optional<std::string> long_name;
  for (uint64_t at = 0;;) {
    if (at > kMaxHeaders) return damaged("the headers of an entry are longer than 4 MiB");
    if (front.size() - at < kBlock) return {Kind::kNeedMore, at + kBlock};
    const Bytes block = front.subspan(at, kBlock);
    if (is_zero(block)) {
      if (at == 0) return {Kind::kPadding, kBlock};
      return damaged("an extended header without an entry");
    }
    if (!header_checksum_matches(block)) return damaged("the checksum of a header does not match");
    const std::optional<uint64_t> size = number_in(field(block, kSize));
    if (!size || *size > TarEntry::kMaxSize) return damaged("the size in a header is no number");
    at += kBlock;
    const auto type = static_cast<char>(block[kType]);
    const bool global = type == 'g';
    if (type == 'x' || type == 'X' || type == 'L' || type == 'K' || global) {
      if (*size > kMaxExtended) return damaged("an extended header is longer than 1 MiB");
      if (front.size() - at < padded(*size)) return {Kind::kNeedMore, at + padded(*size)};
      const Bytes data = front.subspan(at, *size);
      if (type == 'L') {
        long_name = text_in(data);
      } else if (type != 'K') {
        Extended own;
        if (const char* why = (global ? own : extended).take(as_text(data))) return damaged(why);
        // A sample must be readable without what lies far before it.
        if (!own.says_nothing()) return damaged("a global pax header sets names or sizes");
      }
      at += padded(*size);
      if (!global) continue;
      if (at != kBlock + padded(*size)) return damaged("a global header within another entry");
      entry.name.clear();
      entry.regular = false;
      entry.header_bytes = at;
      entry.size = 0;
      return {Kind::kEntry};
    }
    bool sparse = extended.sparse;
    if (type == 'S') {
      sparse = true;
      for (bool more = block[kSparseMore] != std::byte{0}; more;) {
        if (at > kMaxHeaders) return damaged("the headers of an entry are longer than 4 MiB");
        if (front.size() - at < kBlock) return {Kind::kNeedMore, at + kBlock};
        more = front[at + kMoreSparse] != std::byte{0};
        at += kBlock;
      }
    }
    if (extended.path) {
      entry.name = *extended.path;
    } else if (long_name) {
      entry.name = *long_name;
    } else {
      const std::string_view prefix = text_in(field(block, kPrefixField));
      // GNU's magic is "ustar " and it has times where the prefix is.
      const bool ustar = as_text(field(block, kMagic)) == std::string_view("ustar\0", kMagic.bytes);
      entry.name.clear();
      if (ustar && !prefix.empty()) entry.name.append(prefix) += '/';
      entry.name.append(text_in(field(block, kNameField)));
    }
    const bool plain = type == '0' || type == '7' || (type == '\0' && !entry.name.ends_with('/'));
    entry.regular = plain && !sparse;
    entry.header_bytes = at;
    entry.size = has_data(type) ? extended.size.value_or(*size) : 0;
    if (entry.size > TarEntry::kMaxSize) return damaged("the size in a header is no number");
    return {Kind::kEntry};
  }
}

std::optional<TarName> split_tar_name(std::string_view name) {
  const std::string_view first = name.substr(0, name.find('/'));
  if (first.size() >= 4 && first.starts_with("__") && first.ends_with("__")) return std::nullopt;
  const size_t last = name.rfind('/') + 1;  // npos + 1 is 0
  const size_t dot = name.find('.', last);
  if (dot == name.npos || dot == last || dot + 1 == name.size()) return std::nullopt;
  std::string extension(name.substr(dot + 1));
  for (char& c : extension) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  }
  return TarName{name.substr(0, dot), std::move(extension)};
}

const char* fault_of_tar_name(std::string_view name) {
  if (!is_utf8(std::as_bytes(std::span(name)))) return "its name is not UTF-8";
  if (std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < ' '; })) {
    return "its name has a control character";
  }
  if (name.starts_with('/')) return "it climbs out of its folder: its name is absolute";
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    if (name.substr(begin, end - begin) == "..") return "it climbs out of its folder";
    begin = end + 1;
  }
  return nullptr;
}

namespace {

std::string at_byte(uint64_t byte) { return "at byte " + std::to_string(byte) + ": "; }

std::string shown(const TarEntry& entry) { return "'" + escape_invalid_utf8(entry.name) + "'"; }

}  // namespace

std::string TarSample::parse(Bytes record, uint64_t offset) {
  key_.clear();
  count_ = 0;
  for (uint64_t at = 0; at < record.size();) {
    const Bytes rest = record.subspan(at);
    const TarFront front = parse_tar_entry(rest, entry_);
    if (front.kind == TarFront::Kind::kPadding) {
      at += front.bytes;
      continue;
    }
    if (front.kind != TarFront::Kind::kEntry) {
      return at_byte(offset + at) + (front.why != nullptr ? front.why : kCutHeader);
    }
    if (entry_.least_bytes() > rest.size()) {
      return "entry " + shown(entry_) + " " + at_byte(offset + at) + "the file ends within it";
    }
    if (std::optional<TarName> name; entry_.regular && (name = split_tar_name(entry_.name))) {
      if (count_ == 0) key_ = name->key;
      if (name->key != key_) break;  // it was appended after the archive was indexed
      const std::string why =
          add(std::move(name->extension), rest.subspan(entry_.header_bytes, entry_.size));
      if (!why.empty()) return "entry " + shown(entry_) + " " + at_byte(offset + at) + why;
    }
    at += entry_.bytes();
  }
  return count_ > 0 ? "" : "the file has changed since it was indexed";
}

std::string TarSample::add(std::string extension, Bytes data) {
  if (const char* why = fault_of_tar_name(entry_.name)) return why;
  if (count_ == fields_.size()) fields_.emplace_back();
  Field& field = fields_[count_];
  field.extension = std::move(extension);
  field.data = data;
  const auto same = [&](const Field& other) { return other.extension == field.extension; };
  if (field.extension == "__key__" ||
      std::any_of(fields_.begin(), fields_.begin() + count_, same)) {
    return "sample '" + key_ + "' has two of '" + field.extension + "'";
  }
  ++count_;
  return {};
}

namespace {

// The method, if it is one that Python's tarfile knows and penstock does not; else nullptr.
const char* unsupported_compression(std::span<const std::byte> begin) {
  constexpr std::pair<std::string_view, const char*> kCompressions[] = {
      {"BZh", "bzip2"}, {"\3757zXZ", "xz"}, {"(\265/\375", "zstd"}};
  const std::string_view bytes(reinterpret_cast<const char*>(begin.data()), begin.size());
  for (const auto& [magic, method] : kCompressions) {
    if (bytes.starts_with(magic)) return method;
  }
  return nullptr;
}

}  // namespace

Compression compression_of_tar(File& file) {
  std::array<std::byte, kBlock> first{};
  const uint64_t bytes = std::min<uint64_t>(file.size(), first.size());
  if (bytes == 0) return Compression::kNone;
  const File::Segment segment{0, first.data(), bytes};
  file.read({&segment, 1});
  const auto begin = std::span(first).first(bytes);
  if (is_tar_header(begin)) return Compression::kNone;
  if (const char* method = unsupported_compression(begin)) {
    throw Error(Code::kInvalidArgument, "tar",
                file.path() + " is compressed by " + method +
                    ", which is not read: unpack it, or compress it by gzip");
  }
  return has_gzip_magic(begin) || has_gzip_extension(file.path()) ? Compression::kGzip
                                                                  : Compression::kNone;
}

// ---- from the front

namespace {

class TarFraming : public Framing {
 public:
  void begin() override { restart(); }

  Next next(const Window& window) override {
    while (true) {
      if (at_ >= window.bytes.size()) {
        if (!window.complete()) return {Next::Kind::kNeedMore, at_ + kBlock};
        return key_.empty() ? skip(window.bytes.size()) : record(window.bytes.size());
      }
      const Bytes rest = window.bytes.subspan(at_);
      const TarFront front = parse_tar_entry(rest, entry_);
      switch (front.kind) {
        case TarFront::Kind::kNeedMore:
          if (window.complete() || front.bytes > window.max_bytes - at_)
            return lost(kCutHeader, true);
          return {Next::Kind::kNeedMore, at_ + front.bytes};
        case TarFront::Kind::kDamaged:
          return lost(front.why, false);
        case TarFront::Kind::kPadding:
          at_ += front.bytes;
          if (key_.empty()) return skip(at_);
          continue;
        case TarFront::Kind::kEntry:
          break;
      }
      const auto name = entry_.regular ? split_tar_name(entry_.name) : std::nullopt;
      if (name && !key_.empty() && name->key != key_) return record(at_);
      if (entry_.least_bytes() > window.max_bytes - at_) {
        if (name) restart();  // its other entries are lost with it
        return lost("the file ends within an entry", true);
      }
      if (entry_.least_bytes() > rest.size()) {
        return {Next::Kind::kNeedMore, at_ + entry_.least_bytes()};
      }
      if (name) key_ = name->key;
      at_ += std::min(entry_.bytes(), window.max_bytes - at_);
      if (key_.empty() && at_ <= window.bytes.size()) return skip(at_);
    }
  }

  Skipped resync(const Window& window) override {
    if (to_end_) {
      to_end_ = !window.complete();
      return {window.bytes.size(), to_end_, 1};
    }
    const uint64_t first = std::exchange(to_block_, 0);
    uint64_t at = first;
    for (; window.bytes.size() >= at + kBlock; at += kBlock) {
      if (is_tar_header(window.bytes.subspan(at))) return {at};
    }
    if (window.complete()) return {window.bytes.size()};
    if (at <= window.bytes.size()) return {at, true, kBlock};
    to_block_ = first;
    return {0, true, first + kBlock};
  }

 private:
  void restart() {
    at_ = to_block_ = 0;
    to_end_ = false;
    key_.clear();
  }
  Next record(uint64_t bytes) {
    restart();
    return {Next::Kind::kRecord, bytes, 0, bytes};
  }
  Next skip(uint64_t bytes) {
    restart();
    return {Next::Kind::kSkip, bytes};
  }
  // No entry begins here; after what lies before it, that is said.
  Next lost(const char* why, bool to_end) {
    if (!key_.empty()) return record(at_);
    if (at_ > 0) return skip(at_);
    restart();
    to_end_ = to_end;
    to_block_ = kBlock - 1;  // resync() begins a byte behind this place
    return {.kind = Next::Kind::kNoRecord, .why = why};
  }

  TarEntry entry_;
  uint64_t at_ = 0;  // up to here the window was looked at
  std::string key_;  // of the sample; empty: none has begun
  // For resync(): bytes up to the next block; the rest of the file is lost.
  uint64_t to_block_ = 0;
  bool to_end_ = false;
};

}  // namespace

std::unique_ptr<Framing> tar_framing() { return std::make_unique<TarFraming>(); }

}  // namespace penstock
