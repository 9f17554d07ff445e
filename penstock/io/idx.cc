#include "penstock/io/idx.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/io/compression.h"

namespace penstock {
namespace {

constexpr uint64_t kMagicBytes = 4, kLengthBytes = 4;  // bytes
constexpr unsigned kMaxAxes = 32;  // the limit of arrays, and so of a batch of rows

Error damaged(const File& file, const std::string& text) {
  return {Code::kDataLoss, "idx", file.path() + text};
}

std::optional<DType> dtype_of_code(unsigned code) {
  switch (code) {
    case 0x08:
      return DType::kUint8;
    case 0x09:
      return DType::kInt8;
    case 0x0B:
      return DType::kInt16;
    case 0x0C:
      return DType::kInt32;
    case 0x0D:
      return DType::kFloat32;
    case 0x0E:
      return DType::kFloat64;
    default:
      return std::nullopt;
  }
}

// Reads until `to` is full or the file ends.
size_t read_all(SequentialFile& source, std::span<std::byte> to) {
  size_t all = 0;
  while (all < to.size()) {
    const size_t got = source.read(to.subspan(all));
    if (got == 0) break;
    all += got;
  }
  return all;
}

unsigned number_at(std::span<const std::byte> bytes, size_t i) {
  return std::to_integer<unsigned>(bytes[i]);
}

uint32_t big_endian(std::span<const std::byte> bytes, size_t i) {
  return number_at(bytes, i) << 24 | number_at(bytes, i + 1) << 16 | number_at(bytes, i + 2) << 8 |
         number_at(bytes, i + 3);
}

std::string hex(unsigned byte) {
  std::array<char, 5> text;
  std::snprintf(text.data(), text.size(), "0x%02x", byte);
  return text.data();
}

// Checks the first four bytes.
void check_magic(const File& file, std::span<const std::byte> bytes) {
  if (number_at(bytes, 0) != 0 || number_at(bytes, 1) != 0) {
    throw damaged(file, " begins with " + hex(number_at(bytes, 0)) + " " +
                            hex(number_at(bytes, 1)) +
                            " at byte 0, where an IDX file has two zeros: give an IDX file, plain "
                            "or compressed by gzip or zlib, and no archive of several");
  }
  if (!dtype_of_code(number_at(bytes, 2))) {
    throw damaged(file, " has " + hex(number_at(bytes, 2)) +
                            " at byte 2, which is no IDX dtype (0x08, 0x09, 0x0b to 0x0e): it is "
                            "no IDX file, or damaged; fetch it again");
  }
  const unsigned axes = number_at(bytes, 3);
  if (axes == 0 || axes > kMaxAxes) {
    throw damaged(file, " has " + std::to_string(axes) + " axes by byte 3; arrays of 1 to " +
                            std::to_string(kMaxAxes) + " axes can be fed");
  }
}

// Sets every field but the dtype.
void measure(const File& file, std::span<const std::byte> lengths, IdxHeader& header) {
  header.rows = big_endian(lengths, 0);
  header.row_bytes = size_of(header.dtype);
  header.bytes = kMagicBytes + lengths.size();
  for (size_t i = kLengthBytes; i < lengths.size(); i += kLengthBytes) {
    const uint64_t length = big_endian(lengths, i);
    const std::string where = " says at byte " + std::to_string(kMagicBytes + i) + " that axis " +
                              std::to_string(i / kLengthBytes);
    if (length == 0) throw damaged(file, where + " has length 0: no row has any bytes");
    if (__builtin_mul_overflow(header.row_bytes, length, &header.row_bytes)) {
      throw damaged(file, where + " has length " + std::to_string(length) +
                              ": such rows fit into no memory; the header is damaged");
    }
    header.shape.push_back(static_cast<int64_t>(length));
  }
}

// Compares the header with the file's size.
void check_length(const File& file, const SequentialFile& source, const IdxHeader& header) {
  std::string says = ": by its header it has " + std::to_string(header.rows) + " rows of " +
                     std::string(name_of(header.dtype)) + " " + to_string(header.shape);
  uint64_t wanted = 0;
  if (__builtin_mul_overflow(header.rows, header.row_bytes, &wanted) ||
      __builtin_add_overflow(wanted, header.bytes, &wanted)) {
    throw damaged(file, says + ", more than any file can have: the header (byte 4 on) is damaged");
  }
  says += ", " + std::to_string(wanted) + " bytes; ";
  const uint64_t there = source.max_bytes();
  if (source.compressed()) {
    if (wanted > there) {
      throw damaged(file, says + "no more than " + std::to_string(there) +
                              " can be inflated from it: it was cut short, or its header (byte 4 "
                              "on) is damaged; fetch it again");
    }
  } else if (there < wanted) {
    throw damaged(file, says + "it ends at byte " + std::to_string(there) +
                            ": it was cut short; fetch it again");
  } else if (there > wanted) {
    throw damaged(file, says + std::to_string(there - wanted) + " more come at byte " +
                            std::to_string(wanted) +
                            ": something was put behind it, or its header is damaged");
  }
}

}  // namespace

IdxHeader read_idx_header(const std::shared_ptr<File>& file, Compression compression) {
  SequentialFile source(file, compression);
  std::array<std::byte, kMagicBytes> magic;
  const uint64_t first = read_all(source, magic);
  if (first < kMagicBytes) {
    throw damaged(*file, " ends at byte " + std::to_string(first) +
                             ", within the 4 that an IDX file begins with: it was cut short; "
                             "fetch it again");
  }
  check_magic(*file, magic);
  IdxHeader header;
  header.dtype = *dtype_of_code(number_at(magic, 2));
  std::vector<std::byte> lengths(number_at(magic, 3) * kLengthBytes);
  const uint64_t got = read_all(source, lengths);
  if (got < lengths.size()) {
    throw damaged(*file, " ends at byte " + std::to_string(kMagicBytes + got) +
                             ", within the lengths of its " + std::to_string(number_at(magic, 3)) +
                             " axes: it was cut short; fetch it again");
  }
  measure(*file, lengths, header);
  check_length(*file, source, header);
  return header;
}

Compression compression_of_idx(File& file) {
  std::array<std::byte, 4> first;
  const size_t bytes = std::min<uint64_t>(file.size(), first.size());
  if (bytes == 0) return Compression::kNone;
  const File::Segment segment{0, first.data(), bytes};
  file.read({&segment, 1});
  if (has_gzip_magic(std::span(first).first(bytes))) return Compression::kGzip;
  return has_zlib_magic(std::span(first).first(bytes)) ? Compression::kZlib : Compression::kNone;
}

}  // namespace penstock
