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

// Files of named arrays in the form of https://github.com/huggingface/safetensors: 8 bytes of
// header length, JSON, data. docs/formats.md has the bytes.
namespace penstock::train {

// An array in a file. Everything was checked against the file's length.
struct StoredArray {
  std::string name;
  DType dtype;
  Shape shape;
  uint64_t offset = 0;  // bytes from the file's start
  uint64_t bytes = 0;
};

// An open file, its header read. One thread.
class SafetensorsReader {
 public:
  // Error kDataLoss, with path and place, for whatever is wrong with the header: its length against
  // the file's and 100 MB, its JSON, names that are there twice, dtypes that are not known, arrays
  // that overlap, leave gaps, do not end where the file does, or are not as long as their shape
  // says. kSystem if it cannot be read.
  explicit SafetensorsReader(std::shared_ptr<File> file);

  const std::string& path() const { return file_->path(); }
  const std::vector<StoredArray>& arrays() const { return arrays_; }  // as they lie in the file
  const StoredArray* find(std::string_view name) const;               // nullptr: there is none
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // An array's numbers, which are float32, or float16 or bfloat16 and widened.
  // Error kInvalidArgument for another dtype or `into` of another size; kDataLoss, kSystem.
  void read(const StoredArray& array, std::span<float> into) const;

 private:
  std::shared_ptr<File> file_;
  std::vector<StoredArray> arrays_;
  std::map<std::string, size_t, std::less<>> index_;  // of arrays_, by name
  std::map<std::string, std::string> metadata_;
};

// An array that is to be written.
struct ArrayToStore {
  std::string name;
  Shape shape;
  std::span<const float> values;
};

// Writes a file that appears under its name, or replaces the one that was there, when all of it is
// on the disk; until then nothing is seen of it. `dtype`: float32, or float16 or bfloat16, to which
// numbers are rounded. Error kInvalidArgument for another dtype, or a finite number that would
// become infinite; kSystem.
void write_safetensors(FileSystem& files, const std::string& path,
                       std::span<const ArrayToStore> arrays,
                       const std::map<std::string, std::string>& metadata,
                       DType dtype = DType::kFloat32);

}  // namespace penstock::train
