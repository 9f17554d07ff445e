#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "penstock/io/crc32c.h"
#include "penstock/pipeline/cache/snapshot_format.h"

namespace penstock::testing {

inline std::optional<std::span<std::byte>> part_of(std::string& file, uint64_t from,
                                                   uint64_t bytes) {
  if (from > file.size() || bytes > file.size() - from) return std::nullopt;
  return std::as_writable_bytes(std::span(file)).subspan(from, bytes);
}

// Returns where its spec is.
inline uint64_t mend_snapshot_record(std::string& file, uint64_t at) {
  SnapshotRecordHeader head;
  const auto place = part_of(file, at, sizeof(head));
  if (!place) return 0;
  std::memcpy(&head, place->data(), sizeof(head));
  const auto contents = part_of(file, at + sizeof(head), head.bytes);
  if (!contents) return 0;
  head.crc = head.checksum(*contents);
  std::memcpy(place->data(), &head, sizeof(head));
  return head.spec;
}

// Corrects the checksums of a snapshot, so that the checks after them are tested, too.
inline void mend_snapshot(std::string& file) {
  SnapshotFooter end;
  if (file.size() < kSnapshotHeaderBytes + kSnapshotFooterBytes) return;
  const auto front = snapshot_header();
  std::memcpy(file.data(), front.data(), front.size());
  const auto place = *part_of(file, file.size() - kSnapshotFooterBytes, kSnapshotFooterBytes);
  std::memcpy(&end, place.data(), sizeof(end));
  if (const auto text = part_of(file, end.text, end.text_bytes)) end.text_crc = crc32c(*text);
  const uint64_t most = file.size() / sizeof(uint64_t);
  if (end.elements > most) end.elements %= most;
  if (const auto words = part_of(file, end.index, end.elements * sizeof(uint64_t))) {
    end.index_crc = crc32c(*words);
    for (size_t i = 0; i < words->size(); i += sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, words->data() + i, sizeof(word));
      mend_snapshot_record(file, mend_snapshot_record(file, SnapshotPlace(word).offset()));
    }
  }
  mend_snapshot_record(file, end.spec);
  const auto bytes = end.bytes();
  std::memcpy(place.data(), bytes.data(), bytes.size());
}

}  // namespace penstock::testing
