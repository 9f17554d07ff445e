#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"

namespace penstock {

// Writes samples as a tar archive, as WebDataset does: an entry `key.extension` for each field. The
// file appears under its name when close() is called. Headers are ustar, with a pax header in front
// where a name or size needs it; owners and times are zero, so equal calls give equal bytes. One
// thread.
class TarWriter {
 public:
  struct Field {
    std::string_view extension;
    std::span<const std::byte> data;
  };

  // Error as FileSystem::create().
  TarWriter(FileSystem& files, const std::string& path,
            Compression compression = Compression::kNone);

  // Error kInvalidArgument: no reader would find the sample as it was (no field, an extension that
  // comes twice or is not in lower case, a key with a dot in its last component, the key of the
  // sample before, a name that climbs out of its folder or is not UTF-8): nothing is written of it.
  // kSystem: the writer is then closed and the file discarded; kClosed: close() was called.
  void write(std::string_view key, std::span<const Field> fields);

  // Flushes the file to disk and publishes it. A second call does nothing. Without close(), the
  // destructor discards the file. Error kSystem.
  void close();

  uint64_t samples() const { return samples_; }
  // Bytes written so far, before compression.
  uint64_t bytes() const { return bytes_; }

 private:
  void check(std::string_view key, std::span<const Field> fields) const;
  void entry(const std::string& name, std::span<const std::byte> data);
  void header(std::string_view name, std::string_view prefix, uint64_t size, char type);
  void append(std::span<const std::byte> bytes);
  void pad(uint64_t bytes);

  BufferedSink sink_;
  std::string last_key_;
  uint64_t samples_ = 0, bytes_ = 0;
};

}  // namespace penstock
