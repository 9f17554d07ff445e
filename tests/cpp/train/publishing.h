#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "penstock/train/model.h"
#include "penstock/train/publisher.h"

namespace penstock::train::testing {

// A name that no other test, or other run of this test, uses.
inline std::string a_name() {
  static std::atomic<int> count{0};
  return "test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

inline Layout two_blocks(int64_t floats = 3000) { return Layout{{"w", {floats}}, {"b", {5}}}; }

// All weights of a version are its number, so a mixture is detected.
inline uint64_t publish(Publisher& publisher, Parameters& parameters, uint64_t version) {
  parameters.set_version(version);
  std::ranges::fill(parameters.slab().values(), static_cast<float>(version % 1000003));
  return publisher.publish(parameters);
}

inline bool is_whole(const Reading& reading) {
  const auto expected = static_cast<float>(reading.version() % 1000003);
  return std::ranges::all_of(reading.values(), [&](float x) { return x == expected; });
}

// Waits until the condition holds; false after a minute.
template <typename Done>
bool eventually(Done done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline ModelOptions at_once(std::optional<Layout> like = std::nullopt) {
  return {.like = std::move(like), .timeout_ns = 0};
}

}  // namespace penstock::train::testing
