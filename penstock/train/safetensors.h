#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/io/file.h"
#include "penstock/memory/dtype.h"
#include "penstock/memory/tensor.h"

// Files of named arrays in the format of https://github.com/huggingface/safetensors: 8 bytes of
// header length, JSON, data. docs/formats.md has the byte layout.
namespace penstock::train {

// An array in a file. All values were checked against the file's length.
struct StoredArray {
  std::string name;
  DType dtype;
  Shape shape;
  uint64_t offset = 0;  // bytes from the file's start
  uint64_t bytes = 0;
};

// An open file whose header was read. One thread.
class SafetensorsReader {
 public:
  // Error kDataLoss, with path and place, for a damaged header: a length above the file's or above
  // 100 MB, invalid JSON, repeated names, unknown dtypes, arrays that overlap, leave gaps, do not
  // end at the file's end, or do not have their shape's size. Error kSystem: cannot be read.
  explicit SafetensorsReader(std::shared_ptr<File> file);

  const std::string& path() const { return file_->path(); }
  const std::vector<StoredArray>& arrays() const { return arrays_; }  // in the file's order
  const StoredArray* find(std::string_view name) const;               // nullptr: no such array
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Reads an array of float32, or of float16 or bfloat16, which are widened. Error
  // kInvalidArgument: another dtype, or `into` has another size; kDataLoss, kSystem.
  void read(const StoredArray& array, std::span<float> into) const;

 private:
  std::shared_ptr<File> file_;
  std::vector<StoredArray> arrays_;
  std::map<std::string, size_t, std::less<>> index_;  // of arrays_, by name
  std::map<std::string, std::string> metadata_;
};

// An array to write.
struct ArrayToStore {
  std::string name;
  Shape shape;
  std::span<const float> values;
};

// Tells whether a file is the one that was written.
struct FileDigest {
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
  bool operator==(const FileDigest&) const = default;
};
// Reads a file for its digest. Errors of File::read().
FileDigest digest_of(File& file);

// Writes a file, which appears, or replaces an existing one, when all of it is on the disk.
// `dtype`: float32, or float16 or bfloat16, to which numbers are rounded. Error kInvalidArgument:
// another dtype, or a finite number that would become infinite; kSystem.
FileDigest write_safetensors(FileSystem& files, const std::string& path,
                             std::span<const ArrayToStore> arrays,
                             const std::map<std::string, std::string>& metadata,
                             DType dtype = DType::kFloat32);

}  // namespace penstock::train
