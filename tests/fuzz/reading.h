#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpp/io/tfrecords.h"
#include "fuzz/require.h"
#include "penstock/io/record_stream.h"

namespace penstock {

// What RecordStream makes of one file.
struct FromTheFront {
  std::vector<std::string> records;
  uint64_t lost = 0, lost_bytes = 0;
  bool operator==(const FromTheFront&) const = default;
};

inline FromTheFront from_the_front(StreamFiles files, const char* operation,
                                   std::unique_ptr<Framing> framing, size_t most) {
  RecordStream stream(std::make_shared<StreamFiles>(std::move(files)), operation,
                      std::move(framing));
  stream.begin();
  FromTheFront made;
  while (const size_t count = stream.read(most)) {
    REQUIRE(count <= most);
    auto failure = stream.failures().begin();
    for (size_t i = 0; i < count; ++i) {
      const std::span<const std::byte> bytes = stream.row(i).bytes;
      if (failure != stream.failures().end() && failure->row == i) {
        ++made.lost;
        made.lost_bytes += failure->bytes;
        REQUIRE(bytes.empty() && !std::string(stream.error_of(*failure++).what()).empty());
      } else {
        made.records.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
    }
  }
  return made;
}

}  // namespace penstock
