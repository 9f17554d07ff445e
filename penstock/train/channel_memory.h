#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "penstock/base/os.h"
#include "penstock/train/channel_layout.h"

namespace penstock::train {

// One ring's bytes, mapped twice in a row. Unmaps them. Move-only.
class RingMapping {
 public:
  RingMapping(std::byte* data, uint64_t capacity) : data_(data), capacity_(capacity) {}
  RingMapping(RingMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), capacity_(other.capacity_) {}
  RingMapping& operator=(RingMapping&&) = delete;
  ~RingMapping();

  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  uint64_t capacity_;
};

// One mapping of the memory that a channel's two ends share (channel_layout.h). Threads: any.
class ChannelMemory {
  struct Token {};  // only make() and open() can construct

 public:
  // The learner's. `capacity` is rounded up to whole pages. Errors: kInvalidArgument (capacity),
  // kOutOfMemory, kSystem (descriptors).
  static std::shared_ptr<ChannelMemory> make(uint64_t capacity, WhenFull when_full);
  // A producer's, of a descriptor that it got. Error kInvalidArgument if it is no such memory;
  // kOutOfMemory (address space).
  static std::shared_ptr<ChannelMemory> open(os::Fd fd);

  ChannelMemory(Token, os::Fd fd, void* base);
  ~ChannelMemory();
  ChannelMemory(const ChannelMemory&) = delete;
  ChannelMemory& operator=(const ChannelMemory&) = delete;

  int fd() const { return fd_.get(); }
  ChannelHeader& header() const;
  RingWords& words(uint32_t row) const;
  uint64_t capacity() const { return capacity_; }  // not read from shared memory again
  WhenFull when_full() const { return when_full_; }
  uint64_t offset_of(uint32_t row) const { return kDataAt + row * capacity_; }

  // Error kOutOfMemory: no address space.
  RingMapping map_ring(uint32_t row) const;
  // The learner's: there is a ring from now on, empty; and again nothing of it, but for what a
  // mapping shows. Errors of the first: kOutOfMemory (a limit on files' sizes).
  void open_row(uint32_t row);
  void clear_row(uint32_t row);

  void wake_takers() const;  // if any sleep
  void wake_producer(uint32_t row) const;
  void wake_all_takers() const;

 private:
  const os::Fd fd_;
  std::byte* const base_;
  const uint64_t capacity_;
  const WhenFull when_full_;
  uint32_t rows_ = 0;  // that the file has room for
};

}  // namespace penstock::train
