#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace penstock::train {

// Memory for the gradients that a shard's connections receive. A connection takes a buffer for each
// push and gives it back after its answer, so idle workers cost no memory. Threads: any.
class GradientPool {
  using Floats = std::vector<float>;

 public:
  // At least `floats` floats with any values, given back by the destructor. REQUIRED: the pool
  // outlives it. Error std::bad_alloc.
  class Buffer {
   public:
    Buffer(GradientPool& pool, size_t floats);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    std::span<float> floats() const { return *floats_; }

   private:
    GradientPool& pool_;
    std::unique_ptr<Floats> floats_;
  };

  // `limit`: the number of buffers in use from which on a new one waits for another's end, at most
  // `patience_s` seconds: a connection that stalls in the middle of a gradient stops no other. 0:
  // it never waits, for modes in which one push waits for another.
  GradientPool(size_t limit, double patience_s) : limit_(limit), patience_s_(patience_s) {}
  GradientPool(const GradientPool&) = delete;
  GradientPool& operator=(const GradientPool&) = delete;

  size_t in_use() const;
  size_t idle_floats() const;  // in buffers that are kept for later

 private:
  // The most buffers that are kept. They are warm: their pages exist.
  static constexpr size_t kIdle = 4;

  std::unique_ptr<Floats> take(size_t floats);
  void give_back(std::unique_ptr<Floats> floats) noexcept;

  const size_t limit_;
  const double patience_s_;
  mutable std::mutex mutex_;
  std::condition_variable given_back_;
  size_t in_use_ = 0;
  std::vector<std::unique_ptr<Floats>> idle_;
};

}  // namespace penstock::train
