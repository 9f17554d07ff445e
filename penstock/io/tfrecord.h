#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "penstock/io/compression.h"
#include "penstock/io/crc32c.h"
#include "penstock/io/file.h"
#include "penstock/io/framing.h"
#include "penstock/io/record_index.h"
#include "penstock/io/record_reader.h"

namespace penstock {

namespace tfrecord {

// One record of a TFRecord file, all numbers little-endian: u64 n, u32 masked CRC-32C of these 8
// bytes, n bytes of payload, u32 masked CRC-32C of the payload.
inline constexpr uint64_t kHeader = 12, kFooter = 4, kFrame = kHeader + kFooter;

static_assert(std::endian::native == std::endian::little);

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// True if `crc` points to the masked checksum of `bytes`.
inline bool checksum_matches(std::span<const std::byte> bytes, const std::byte* crc) {
  return masked(crc32c(bytes)) == load<uint32_t>(crc);
}

inline bool length_checksum_matches(const std::byte* header) {
  return masked(crc32c_of_8(header)) == load<uint32_t>(header + 8);
}

// True if a record with a valid length field begins at `header`, `left` bytes before the end of the
// file. REQUIRED: left >= kFrame.
inline bool is_valid_length(const std::byte* header, uint64_t left) {
  return load<uint64_t>(header) <= left - kFrame && length_checksum_matches(header);
}

}  // namespace tfrecord

// TFRecord for reading a file from the front. Verifies both checksums of every record, and loses
// the same bytes as index_tfrecord() and TFRecordReader.
std::unique_ptr<Framing> tfrecord_framing();

// How a TFRecord file is compressed, by its first bytes. A file whose first record is valid is not
// compressed; other files with the extension of gzip are gzip files. Error kSystem. Any thread.
Compression compression_of_tfrecord(File& file);

// Indexes a TFRecord file in one pass over its length fields; payload checksums are verified when
// the payloads are read. If a length field is wrong (its checksum, or beyond the end of the file),
// the pass continues at the next position where a length, its checksum and the payload's checksum
// all match. The bytes before it, or the rest of the file, are one damaged place. So the places
// cover the whole file, and an empty file has none. Uses 64 KiB of memory besides the index.
//
// Error kDataLoss if the file becomes shorter meanwhile, kSystem, kClosed. Any thread.
RecordIndex index_tfrecord(File& file, Progress* progress = nullptr);

using TFRecordFiles = RecordFiles;  // indexed by index_tfrecord()

// Reads records of TFRecord files by their numbers, a chunk at a time, and verifies both checksums
// of each. A fault (damage, a file that vanished or became shorter, a disk error) fails only the
// record concerned. One thread.
class TFRecordReader {
 public:
  static constexpr size_t kChunk = RecordReader::kChunk;
  using Failure = RecordReader::Failure;

  explicit TFRecordReader(std::shared_ptr<const TFRecordFiles> files);

  // Like RecordReader's; payloads stay valid as long as its views.
  void read(std::span<const uint64_t> records);
  std::shared_ptr<void> memory() const { return records_.memory(); }
  uint64_t memory_bytes() const { return records_.memory_bytes(); }
  std::span<const Failure> failures() const { return records_.failures(); }

  // The payload of the row-th record of the last read(). Empty for a row that failed.
  std::span<const std::byte> payload(size_t row) const { return payloads_[row]; }

 private:
  RecordReader records_;
  std::array<std::span<const std::byte>, kChunk> payloads_;
};

// Writes a TFRecord file, which appears under its name when close() is called. One thread.
class TFRecordWriter {
 public:
  // Error as FileSystem::create().
  TFRecordWriter(FileSystem& files, const std::string& path,
                 Compression compression = Compression::kNone);

  // Error kSystem: the writer is then closed and the file discarded; kClosed: close() was called.
  void write(std::span<const std::byte> payload);

  // Flushes the file to disk and publishes it. A second call does nothing. Without close(), the
  // destructor discards the file. Error kSystem.
  void close();

  uint64_t records() const { return records_; }
  // Bytes written so far, before compression.
  uint64_t bytes() const { return bytes_; }

 private:
  BufferedSink sink_;
  uint64_t records_ = 0, bytes_ = 0;
};

}  // namespace penstock
