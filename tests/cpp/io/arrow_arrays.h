#pragma once

// Arrow data made by hand, which counts the calls of its release functions.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "penstock/io/arrow_abi.h"

namespace penstock::testing {

// One array and its schema, as data. Everything may be changed before export.
struct ArrowColumnData {
  std::string format, name;
  std::vector<std::string> buffers = {};  // an empty one is a null pointer
  int64_t length = 0;
  int64_t offset = 0, nulls = 0;
  std::vector<ArrowColumnData> children = {}, dictionary = {};
};

template <class T>
std::string raw_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
ArrowColumnData numbers_column(std::string format, std::string name, const std::vector<T>& values) {
  return {std::move(format),
          std::move(name),
          {"", raw_bytes(values)},
          static_cast<int64_t>(values.size())};
}

inline ArrowColumnData strings_column(std::string name, const std::vector<int32_t>& offsets,
                                      std::string values, std::string format = "u") {
  return {std::move(format),
          std::move(name),
          {"", raw_bytes(offsets), std::move(values)},
          static_cast<int64_t>(offsets.size()) - 1};
}

inline ArrowColumnData struct_of(std::vector<ArrowColumnData> children) {
  const int64_t length = children.empty() ? 0 : children[0].length;
  return {"+s", "", {""}, length, 0, 0, std::move(children)};
}

// Exports data. `arrays` and `schemas` count the structs that are alive. REQUIRED: outlives them.
class ArrowMaker {
 public:
  int arrays = 0, schemas = 0, streams = 0;

  ArrowSchema schema(const ArrowColumnData& data) {
    auto* own = new Schema{*this, data.format, data.name};
    for (const ArrowColumnData& child : data.children) own->children.push_back(schema(child));
    for (const ArrowColumnData& values : data.dictionary) {
      own->children.push_back(schema(values));
    }
    for (ArrowSchema& child : own->children) own->pointers.push_back(&child);
    ArrowSchema made{};
    made.format = own->format.c_str();
    made.name = own->name.c_str();
    made.n_children = static_cast<int64_t>(data.children.size());
    made.children = own->pointers.data();
    made.dictionary = data.dictionary.empty() ? nullptr : own->pointers.back();
    made.private_data = own;
    made.release = [](ArrowSchema* schema) {
      std::unique_ptr<Schema> of(static_cast<Schema*>(schema->private_data));
      for (ArrowSchema& child : of->children) {
        if (child.release != nullptr) child.release(&child);
      }
      --of->maker.schemas;
      schema->release = nullptr;
    };
    ++schemas;
    return made;
  }

  ArrowArray array(const ArrowColumnData& data) {
    auto* own = new Array{*this, data.buffers};
    for (const ArrowColumnData& child : data.children) own->children.push_back(array(child));
    for (const ArrowColumnData& values : data.dictionary) own->children.push_back(array(values));
    for (ArrowArray& child : own->children) own->pointers.push_back(&child);
    for (const std::string& buffer : own->buffers) {
      own->addresses.push_back(buffer.empty() ? nullptr : buffer.data());
    }
    ArrowArray made{};
    made.length = data.length;
    made.offset = data.offset;
    made.null_count = data.nulls;
    made.n_buffers = static_cast<int64_t>(data.buffers.size());
    made.buffers = own->addresses.data();
    made.n_children = static_cast<int64_t>(data.children.size());
    made.children = own->pointers.data();
    made.dictionary = data.dictionary.empty() ? nullptr : own->pointers.back();
    made.private_data = own;
    made.release = [](ArrowArray* array) {
      std::unique_ptr<Array> of(static_cast<Array*>(array->private_data));
      for (ArrowArray& child : of->children) {
        if (child.release != nullptr) child.release(&child);
      }
      --of->maker.arrays;
      array->release = nullptr;
    };
    ++arrays;
    return made;
  }

  // A stream of chunks of one schema, which fails with EIO after `good` of them.
  ArrowArrayStream stream(std::vector<ArrowColumnData> chunks, size_t good = SIZE_MAX) {
    ArrowArrayStream made{};
    made.private_data = new Stream{*this, std::move(chunks), good};
    made.get_schema = [](ArrowArrayStream* stream, ArrowSchema* out) {
      auto* own = static_cast<Stream*>(stream->private_data);
      *out = own->maker.schema(own->chunks.at(0));
      return 0;
    };
    made.get_next = [](ArrowArrayStream* stream, ArrowArray* out) {
      auto* own = static_cast<Stream*>(stream->private_data);
      if (own->next >= own->good) return 5;
      *out = ArrowArray{};
      if (own->next < own->chunks.size()) *out = own->maker.array(own->chunks[own->next++]);
      return 0;
    };
    made.get_last_error = [](ArrowArrayStream*) -> const char* { return "the disk is gone"; };
    made.release = [](ArrowArrayStream* stream) {
      std::unique_ptr<Stream> of(static_cast<Stream*>(stream->private_data));
      --of->maker.streams;
      stream->release = nullptr;
    };
    ++streams;
    return made;
  }

 private:
  struct Schema {
    ArrowMaker& maker;
    std::string format, name;
    std::deque<ArrowSchema> children = {};
    std::vector<ArrowSchema*> pointers = {};
  };
  struct Array {
    ArrowMaker& maker;
    std::vector<std::string> buffers;
    std::deque<ArrowArray> children = {};
    std::vector<ArrowArray*> pointers = {};
    std::vector<const void*> addresses = {};
  };
  struct Stream {
    ArrowMaker& maker;
    std::vector<ArrowColumnData> chunks;
    size_t good;
    size_t next = 0;
  };
};

}  // namespace penstock::testing
