// Any bytes as the file of a message log, unchanged and with corrected checksums: an error, or
// messages, a log that takes the next one, and the same messages after it was opened again.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/io/crc32c.h"
#include "penstock/online/log_format.h"
#include "penstock/online/message_log.h"

using namespace penstock;
using namespace penstock::online;

namespace {

// The folder of the log, in memory if the system has such a place.
std::string spool_folder() {
  std::error_code ignored;
  const bool memory = std::filesystem::is_directory("/dev/shm", ignored);
  std::string made =
      (memory ? std::string("/dev/shm") : std::filesystem::temp_directory_path().string()) +
      "/spool-fuzz-XXXXXX";
  REQUIRE(mkdtemp(made.data()) != nullptr);
  return made;
}

struct SpoolOfProcess {
  std::string path = spool_folder();
  ~SpoolOfProcess() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

// Corrects the header and the checksum of each record whose length is possible.
void mend_log(std::string& file) {
  if (file.size() < log_format::kHeader) return;
  std::memcpy(file.data(), log_format::kMagic.data(), 8);
  std::memset(file.data() + 8, 0, 8);
  const uint32_t header = masked(log_format::crc_of({file.data(), 16}));
  std::memcpy(file.data() + 16, &header, 4);
  for (uint64_t at = log_format::kHeader; at + log_format::kPrefix <= file.size();) {
    char* record = file.data() + at;
    const uint64_t length = log_format::number_at<uint32_t>(record);
    if (length > file.size() - at - log_format::kPrefix) return;
    const std::string_view body(record + log_format::kPrefix, length);
    const uint32_t crc = masked(log_format::crc_of(body, log_format::crc_of({record, 4})));
    std::memcpy(record + 4, &crc, 4);
    at += log_format::kPrefix + length;
  }
}

std::vector<std::string> messages_of(const MessageLog& log) {
  std::vector<std::string> all;
  MessageLog::Reader reader(log, log.begin(), log.end());
  while (!reader.done()) {
    const StoredMessage message = reader.next();
    REQUIRE(message.offset == log.begin() + all.size());
    REQUIRE(message.topic_bytes <= message.bytes.size());
    all.push_back(message.bytes);
  }
  REQUIRE(all.size() == log.end() - log.begin());
  return all;
}

void try_out(const std::string& file) {
  static const SpoolOfProcess folder;
  const std::string path = folder.path + "/" + std::string(20, '0') + ".log";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << file;
  const LogOptions options{.folder = folder.path, .fsync_ns = -1};
  const auto ignore = [](std::span<const uint64_t>, uint64_t) {};
  std::vector<std::string> expected;
  try {
    MessageLog log(options, ignore);
    REQUIRE(log.torn_bytes() <= file.size());
    expected = messages_of(log);
    REQUIRE(expected.size() * (log_format::kPrefix + log_format::kFields) <= file.size());
    const std::string_view payload = "payload";
    log.append({"topic", std::as_bytes(std::span(payload)), 0, 0, 0, false}, 0);
    log.sync();
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kDataLoss);
    return;
  }
  expected.emplace_back("topicpayload");
  const MessageLog log(options, ignore);
  REQUIRE(log.torn_bytes() == 0 && messages_of(log) == expected);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string file(reinterpret_cast<const char*>(data), size);
  try_out(file);
  mend_log(file);
  try_out(file);
  return 0;
}
