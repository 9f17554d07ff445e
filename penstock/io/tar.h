#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"
#include "penstock/io/framing.h"

namespace penstock {

// tar archives whose entries are samples, grouped as WebDataset does: consecutive files with one
// key. docs/formats.md has the bytes and the rules. A record is a sample: the bytes from the first
// header of its first entry to that of the next sample.

// An entry of an archive: its headers (extended ones first), then its data, filled up to whole
// blocks.
struct TarEntry {
  static constexpr uint64_t kBlock = 512;
  static constexpr uint64_t kMaxSize = uint64_t{1} << 62;

  std::string name;
  bool regular = false;       // a file that lies there in one piece
  uint64_t header_bytes = 0;  // of all its headers
  uint64_t size = 0;          // of its data

  uint64_t least_bytes() const { return header_bytes + size; }  // without padding
  uint64_t bytes() const { return header_bytes + (size + kBlock - 1) / kBlock * kBlock; }
};

// What lies at the front of a stretch of an archive.
struct TarFront {
  enum class Kind : uint8_t {
    kEntry,
    kPadding,   // a block of zeroes
    kNeedMore,  // the headers are `bytes` long at least
    kDamaged,   // no entry begins here, because of `why`
  };
  Kind kind;
  uint64_t bytes = 0;
  const char* why = nullptr;
};

// True if a header with a valid checksum is at the front.
bool is_tar_header(std::span<const std::byte> front);

// Parses the headers of the entry at the front: ustar, GNU (long names, sizes in base 256) and pax.
// Verifies the checksum of each. Sets `entry` for kEntry. Any thread.
TarFront parse_tar_entry(std::span<const std::byte> front, TarEntry& entry);

// The parts of an entry's name.
struct TarName {
  std::string_view key;   // up to the first dot of the last component, folders included: a view
  std::string extension;  // the rest, in lower case
};
// nullopt: no file of a sample has this name (no dot, or one at the beginning or end of its last
// component; `__name__`, or in a folder of such a name).
std::optional<TarName> split_tar_name(std::string_view name);

// Why a file of a sample may not have this name: it climbs out of its folder, is absolute or not
// UTF-8, or has control characters. nullptr: it may.
const char* fault_of_tar_name(std::string_view name);

// The entries of one sample. One thread.
class TarSample {
 public:
  struct Field {
    std::string extension;  // in lower case
    std::span<const std::byte> data;
  };

  // Takes a record apart, which begins at `offset` of its archive, up to an entry of another key.
  // Empty: it is sound. Else why it
  // is lost: an entry whose name climbs out of its folder or is not UTF-8, one that is there twice,
  // no entry at all, damage. Views are valid as long as `record`.
  std::string parse(std::span<const std::byte> record, uint64_t offset);

  const std::string& key() const { return key_; }
  std::span<const Field> fields() const { return std::span(fields_).first(count_); }

 private:
  std::string add(std::string extension, std::span<const std::byte> data);  // of entry_

  TarEntry entry_;
  std::string key_;
  std::vector<Field> fields_;  // more than count_: their memory is used again
  size_t count_ = 0;
};

// Samples for reading an archive from the front. Damage is a record of its own, and what is left of
// the samples around it are records.
std::unique_ptr<Framing> tar_framing();

// gzip by the first bytes or the name; an archive that begins with a valid header is not
// compressed. Error kSystem, kInvalidArgument: by bzip2, xz or zstd. Any thread.
Compression compression_of_tar(File& file);

}  // namespace penstock
