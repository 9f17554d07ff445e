#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// Serialises tf.Examples, one after the other, for TFRecordWriter. Equal calls give equal bytes:
// features are in the order of the calls, numbers are packed. A repeated name is written twice;
// readers use the last one. One thread.
class ExampleWriter {
 public:
  // Adds a feature to the message. May throw std::bad_alloc.
  void bytes(std::string_view name, std::span<const std::byte> value);  // a list of one string
  void bytes_list(std::string_view name, std::span<const std::span<const std::byte>> values);
  void float32(std::string_view name, std::span<const float> values);
  void int64(std::string_view name, std::span<const int64_t> values);

  // Ends the message and returns its bytes (none if it has no features), valid until the next call.
  // Error kInvalidArgument: more than 2^31 - 1 bytes, protobuf's limit.
  std::span<const std::byte> finish();

 private:
  template <class Values>
  void put(std::string_view name, Values values);

  std::vector<std::byte> buffer_;  // space for the message's prefix, then entries
  bool finished_ = true;
};

// Serialises tf.SequenceExamples: context features, and lists of steps, each of which is a feature
// without a name.
class SequenceExampleWriter {
 public:
  ExampleWriter& context() { return context_; }  // do not call its finish()

  // Begins a list, which may stay empty.
  void list(std::string_view name);
  // Adds a step to the list. Error kInvalidArgument if no list was begun.
  void bytes(std::span<const std::byte> value);
  void bytes_list(std::span<const std::span<const std::byte>> values);
  void float32(std::span<const float> values);
  void int64(std::span<const int64_t> values);

  // Like ExampleWriter::finish().
  std::span<const std::byte> finish();

 private:
  template <class Values>
  void put(Values values);
  void end_list();

  ExampleWriter context_;
  bool open_ = false;  // a list
  std::string name_;   // of the open list
  std::vector<std::byte> steps_, lists_, message_;
};

}  // namespace penstock
