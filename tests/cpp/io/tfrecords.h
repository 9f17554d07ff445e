#pragma once

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "memory_files.h"
#include "penstock/io/compression.h"
#include "penstock/io/tfrecord.h"

namespace penstock {

// These bytes as a compressed file.
inline std::string compressed(const std::string& bytes, Compression compression) {
  MemoryFiles files;
  std::unique_ptr<Sink> sink = compress_to(files.create("file"), compression);
  sink->write(std::as_bytes(std::span(bytes)));
  sink->commit();
  return files["file"];
}

// Shared by the tests of TFRecord: files of records, and reading all of their records.
struct TFRecords {
  std::shared_ptr<MemoryFiles> files = std::make_shared<MemoryFiles>();
  std::shared_ptr<FilePool> pool = std::make_shared<FilePool>(files);

  static std::vector<std::string> payloads(size_t count, size_t salt = 0) {
    std::vector<std::string> made;
    for (size_t i = 0; i < count; ++i) {
      std::string payload((i * 11 + salt) % 41, '\0');
      for (size_t b = 0; b < payload.size(); ++b) payload[b] = static_cast<char>(i * 7 + b + salt);
      made.push_back(payload);
    }
    return made;
  }

  std::string& write(const std::string& path, const std::vector<std::string>& payloads) {
    TFRecordWriter writer(*files, path);
    for (const std::string& payload : payloads) writer.write(std::as_bytes(std::span(payload)));
    writer.close();
    return (*files)[path];
  }

  RecordIndex index(const std::string& path) { return index_tfrecord(*files->open(path)); }

  std::shared_ptr<const RecordFiles> open(const std::vector<std::string>& paths) {
    std::vector<RecordIndex> indices;
    for (const std::string& path : paths) indices.push_back(index(path));
    return std::make_shared<RecordFiles>(pool, paths, std::move(indices));
  }
};

struct Gained {
  std::vector<std::string> payloads;  // of sound records, in order
  uint64_t lost_records = 0, lost_bytes = 0;
  std::vector<std::string> errors;
};

inline Gained read_all(std::shared_ptr<const RecordFiles> files) {
  TFRecordReader reader(files);
  Gained gained;
  for (uint64_t begin = 0; begin < files->size(); begin += TFRecordReader::kChunk) {
    std::vector<uint64_t> records(
        std::min<uint64_t>(TFRecordReader::kChunk, files->size() - begin));
    std::iota(records.begin(), records.end(), begin);
    reader.read(records);
    std::vector<bool> failed(records.size());
    for (const TFRecordReader::Failure& failure : reader.failures()) {
      failed[failure.row] = true;
      ++gained.lost_records;
      gained.lost_bytes += failure.bytes;
      gained.errors.push_back(failure.error.what());
    }
    for (size_t row = 0; row < records.size(); ++row) {
      if (failed[row]) continue;
      auto payload = reader.payload(row);
      gained.payloads.emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
    }
  }
  return gained;
}

}  // namespace penstock
