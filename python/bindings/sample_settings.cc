#include "sample_settings.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>

namespace nb = nanobind;

namespace penstock::python {

namespace {

Order::Options order_of(const nb::dict& s) {
  Order::Options o;
  o.length = setting<uint64_t>(s, "length");
  o.batch_size = std::max<uint64_t>(setting<uint64_t>(s, "batch_size"), 1);
  o.shuffle = setting<bool>(s, "shuffle");
  o.seed = setting<uint64_t>(s, "seed");
  o.drop_last = setting<bool>(s, "drop_last");
  o.rank = setting<uint32_t>(s, "rank");
  o.world = setting<uint32_t>(s, "world");
  return o;
}

}  // namespace

SampleSettings sample_settings_of(const nb::dict& s) {
  SampleSettings settings;
  settings.order = order_of(s);
  settings.drop_last = settings.order.drop_last;
  settings.samples = setting<bool>(s, "samples");
  settings.retries = setting<uint32_t>(s, "retries");
  settings.falls_back = setting<bool>(s, "falls_back");
  settings.covers = setting<bool>(s, "covers");
  settings.streams = std::max(setting<uint32_t>(s, "streams"), 1u);
  settings.on_error = on_error_of(setting<std::string>(s, "on_error"));
  if (setting<std::string>(s, "source") == "stream") {
    settings.source = SampleSettings::Source::kStream;
  }
  return settings;
}

}  // namespace penstock::python
