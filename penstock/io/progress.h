#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "penstock/base/error.h"

namespace penstock {

// How far a pass over a file is, for whoever watches it. Any thread.
struct Progress {
  std::atomic<uint64_t> bytes{0};
  std::atomic<bool> stop{false};  // set: the pass ends with Error kClosed

  // The pass is there, in this file. Error kClosed: it was stopped.
  void reached(uint64_t offset, const std::string& path) {
    bytes.store(offset, std::memory_order_relaxed);
    if (!stop.load(std::memory_order_relaxed)) return;
    throw Error(Code::kClosed, "index", "stopped while " + path + " was looked through");
  }
};

}  // namespace penstock
