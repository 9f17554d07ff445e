#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// Makes the bytes of tf.Examples, one after the other: what TFRecordWriter is given. Equal calls
// give equal bytes: features lie in the order of the calls, numbers are packed. A name that comes
// twice is written twice, and whoever reads it takes the last. One thread.
class ExampleWriter {
 public:
  // The next feature of the message. May throw std::bad_alloc.
  void bytes(std::string_view name, std::span<const std::byte> value);  // a list of one string
  void bytes_list(std::string_view name, std::span<const std::span<const std::byte>> values);
  void float32(std::string_view name, std::span<const float> values);
  void int64(std::string_view name, std::span<const int64_t> values);

  // The message; none of its bytes if it has no features. The next one begins. The view holds until
  // the next call. Error kInvalidArgument: it has more than the 2^31 - 1 bytes that protobuf reads.
  std::span<const std::byte> finish();

 private:
  template <class Values>
  void put(std::string_view name, Values values);

  std::vector<std::byte> buffer_;  // room for what comes before the entries, then entries
  bool finished_ = true;
};

// The same of tf.SequenceExamples: context features, and lists of steps, each of which is a feature
// without a name.
class SequenceExampleWriter {
 public:
  ExampleWriter& context() { return context_; }  // its finish() is not called

  // The next list begins; it may stay empty.
  void list(std::string_view name);
  // The list's next step. Error kInvalidArgument if none was begun.
  void bytes(std::span<const std::byte> value);
  void bytes_list(std::span<const std::span<const std::byte>> values);
  void float32(std::span<const float> values);
  void int64(std::span<const int64_t> values);

  // As ExampleWriter's.
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
