#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>

#include "penstock/pipeline/api/loader.h"
#include "penstock/pipeline/scheduler/order.h"

namespace penstock::python {

template <class T>
T setting(const nanobind::dict& settings, const char* name) {
  return nanobind::cast<T>(settings[name]);
}

// The settings of a Loader over a data set or generator of Python's, for its workers.
struct SampleSettings {
  enum class Source { kMap, kStream } source = Source::kMap;
  bool samples = false;  // items are samples, a batch has several; else an item is a whole batch
  Order::Options order;  // of an indexed source
  OnError on_error = OnError::kRaise;
  uint32_t retries = 0;
  bool rekey_globals = false;  // NumPy's and Python's generators, per index
  bool drop_last = false;      // of a stream's last, short batch
  uint32_t streams = 1;
  bool falls_back =
      false;             // unlike samples are raised: another way to make the batch is tried next
  bool covers = true;    // the epoch has every index of the dataset, also with a sampler
  uint64_t version = 0;  // the dataset's current one
};

// Of the settings that loader/settings.py makes.
SampleSettings sample_settings_of(const nanobind::dict& settings);

// REQUIRED: "raise", "skip" or "replace"; the Python code checks this.
inline OnError on_error_of(std::string_view policy) {
  if (policy == "skip") return OnError::kSkip;
  return policy == "replace" ? OnError::kReplace : OnError::kRaise;
}

}  // namespace penstock::python
