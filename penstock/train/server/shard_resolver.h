#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace penstock::train {

// Where a shard is.
struct ShardLocation {
  std::string address;
  uint64_t epoch = 0;  // see claim_epoch(); a shard with a lower one at this address is refused
};

// Finds the shards of a server: each client asks it before every attempt to connect. A server whose
// shards stay at their addresses has FixedLocations.
class ShardResolver {
 public:
  virtual ~ShardResolver() = default;

  virtual size_t shards() const = 0;
  // Where a shard is now. Errors kClosed, kNotFound, kTimeout, kSystem: it is not known now; the
  // client asks again until its own time is over. Other exceptions end the client's call. Threads:
  // any.
  virtual ShardLocation locate(size_t shard, double timeout_s) = 0;
};

// Addresses that do not change, in any order.
class FixedLocations final : public ShardResolver {
 public:
  explicit FixedLocations(std::vector<std::string> addresses) : addresses_(std::move(addresses)) {}

  size_t shards() const override { return addresses_.size(); }
  ShardLocation locate(size_t shard, double) override { return {addresses_[shard], 0}; }

 private:
  const std::vector<std::string> addresses_;
};

}  // namespace penstock::train
