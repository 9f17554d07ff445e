#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpp/io/tfrecords.h"
#include "fuzz/require.h"
#include "penstock/io/record_stream.h"

namespace penstock {

// The records of one file, and nothing for each that was lost.
using Records = std::vector<std::optional<std::string>>;

// The records that RecordStream reads from a file.
inline Records from_the_front(StreamFiles files, const char* operation,
                              std::unique_ptr<Framing> framing, size_t most) {
  RecordStream stream(std::make_shared<StreamFiles>(std::move(files)), operation,
                      std::move(framing));
  stream.begin();
  Records made;
  while (const size_t count = stream.read(most)) {
    REQUIRE(count <= most);
    auto failure = stream.failures().begin();
    for (size_t i = 0; i < count; ++i) {
      const std::span<const std::byte> bytes = stream.row(i).bytes;
      if (failure != stream.failures().end() && failure->row == i) {
        made.emplace_back();
        REQUIRE(bytes.empty() && !std::string(stream.error_of(*failure++).what()).empty());
      } else {
        made.emplace_back(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
      }
    }
  }
  return made;
}

}  // namespace penstock
