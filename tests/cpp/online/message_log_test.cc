#include "penstock/online/message_log.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/cpp/memory/child.h"
#include "tests/cpp/online/spool_folder.h"

namespace {

std::atomic<int> flush_count{0};
std::atomic<bool> flush_fails{false};

}  // namespace

// The log's flushes are counted, and fail on command as those of a broken disk.
extern "C" int fdatasync(int fd) {
  flush_count.fetch_add(1);
  if (flush_fails.load()) {
    errno = EIO;
    return -1;
  }
  static const auto real = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fdatasync"));
  return real(fd);
}

namespace penstock::online {
namespace {

using penstock::testing::Acknowledged;
using penstock::testing::file_bytes;
using penstock::testing::flip;
using penstock::testing::FullDisk;
using penstock::testing::Gate;
using penstock::testing::holds_in_child;
using penstock::testing::kill_child;
using penstock::testing::message_of;
using penstock::testing::set_file;
using penstock::testing::start_child;
using penstock::testing::status_of;
using penstock::testing::thrown_by;
using namespace std::chrono_literals;

constexpr int64_t kHour = int64_t{3600} * 1'000'000'000;

class MessageLogs : public penstock::testing::SpoolFolder {
 protected:
  ~MessageLogs() override { flush_fails = false; }

  std::unique_ptr<MessageLog> open(LogOptions options) {
    return std::make_unique<MessageLog>(
        std::move(options),
        [this](std::span<const uint64_t> tokens, uint64_t) { acknowledged_.add(tokens); });
  }
  std::unique_ptr<MessageLog> open() { return open(options()); }

  // Message n: its payload is "payload <n>", its token n + 1, its packet identifier n % 7 + 1.
  static uint64_t append(MessageLog& log, uint64_t n) {
    const std::string payload = "payload " + std::to_string(n);
    const Message message = message_of("topic", payload, n + 1, n % 7 + 1);
    return log.append(message, RecentIds::checksum(message.topic, message.payload));
  }
  static void append(MessageLog& log, uint64_t begin, uint64_t end) {
    for (uint64_t n = begin; n < end; ++n) EXPECT_EQ(append(log, n), n);
  }
  static void expect(const MessageLog& log, uint64_t begin, uint64_t end) {
    EXPECT_EQ(log.end(), end);
    MessageLog::Reader reader(log, begin, end);
    for (uint64_t n = begin; n < end; ++n) {
      ASSERT_FALSE(reader.done());
      const StoredMessage message = reader.next();
      ASSERT_EQ(message.offset, n);
      ASSERT_EQ(message.topic(), "topic");
      ASSERT_EQ(message.payload(), "payload " + std::to_string(n));
      ASSERT_EQ(message.packet_id, n % 7 + 1);
    }
    EXPECT_TRUE(reader.done());
  }
  // A log of one file with messages [0, n), closed.
  std::string made(uint64_t n) {
    const auto log = open();
    append(*log, 0, n);
    log->close();
    return file_bytes(file(0));
  }
  // Where each message begins in a file's bytes, and their end.
  static std::vector<uint64_t> places(const std::string& bytes) {
    std::vector<uint64_t> all;
    for (size_t at = 20; at < bytes.size();) {
      uint32_t length;
      std::memcpy(&length, bytes.data() + at, 4);
      if (bytes[at + 8] == 1) all.push_back(at);
      at += 8 + length;
    }
    all.push_back(bytes.size());
    return all;
  }

  Acknowledged acknowledged_;
};

TEST_F(MessageLogs, messages_are_read_in_their_order_from_any_offset_in_this_and_the_next_process) {
  auto log = open();
  append(*log, 0, 100);
  log->sync();
  EXPECT_EQ(log->spooled(), 100);
  for (const uint64_t from : {0, 1, 57, 99, 100}) expect(*log, from, 100);
  log = nullptr;
  log = open();
  EXPECT_EQ(log->begin(), 0);
  EXPECT_EQ(log->torn_bytes(), 0);
  expect(*log, 0, 100);
  append(*log, 100, 110);
  log->sync();
  expect(*log, 95, 110);
}

TEST_F(MessageLogs, a_time_of_receipt_is_kept) {
  auto log = open();
  Message message = message_of("t", "p");
  message.received_ns = now_ns() - 5'000'000'000;
  log->append(message, 0);
  log = nullptr;
  log = open();
  const uint64_t received = MessageLog::Reader(*log, 0, 1).next().received_ns;
  const auto difference = static_cast<int64_t>(received - message.received_ns);
  EXPECT_LT(std::abs(difference), 1'000'000'000) << "the two clocks are read one after the other";
}

TEST_F(MessageLogs, tokens_are_handed_over_after_the_flush_and_not_before) {
  auto with_policy = options();
  with_policy.fsync_ns = kHour;
  MessageLog log(with_policy, [&](std::span<const uint64_t> tokens, uint64_t) {
    std::this_thread::sleep_for(20ms);
    acknowledged_.add(tokens);
  });
  append(log, 0, 10);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(acknowledged_.count(), 0);
  EXPECT_EQ(log.spooled(), 0);
  const int before = flush_count;
  log.sync();
  EXPECT_GT(flush_count, before);
  EXPECT_EQ(acknowledged_.all(), (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}))
      << "sync() returns after them";
}

TEST_F(MessageLogs, a_token_that_is_handed_over_has_its_message_in_the_file) {
  auto with_policy = options();
  with_policy.fsync_ns = 1'000'000;
  std::atomic<uint64_t> missing{0}, seen{0};
  MessageLog log(with_policy, [&](std::span<const uint64_t> tokens, uint64_t spooled) {
    if (tokens.empty()) return;
    const std::string bytes = file_bytes(file(0));
    for (const uint64_t token : tokens) {
      seen.fetch_add(1);
      if (token > spooled || bytes.find("payload " + std::to_string(token - 1)) == bytes.npos) {
        missing.fetch_add(1);
      }
    }
  });
  for (uint64_t n = 0; n < 200; ++n) {
    append(log, n);
    if (n % 10 == 0) std::this_thread::sleep_for(1ms);
  }
  log.close();
  EXPECT_EQ(seen, 200);
  EXPECT_EQ(missing, 0);
}

TEST_F(MessageLogs, the_policy_says_how_often_the_log_is_flushed) {
  const auto flushes = [&](int64_t fsync_ns) {
    auto with_policy = options();
    with_policy.folder += "/" + std::to_string(fsync_ns + 1);
    with_policy.fsync_ns = fsync_ns;
    const auto log = open(with_policy);
    const size_t had = acknowledged_.count();
    const int before = flush_count;
    for (uint64_t n = 0; n < 20; ++n) {
      append(*log, n);
      if (fsync_ns == 0) {
        EXPECT_TRUE(acknowledged_.wait_for(had + n + 1));
      }
    }
    EXPECT_TRUE(acknowledged_.wait_for(had + 20));
    return flush_count - before;
  };
  EXPECT_GE(flushes(0), 20);
  EXPECT_EQ(flushes(-1), 0);
  EXPECT_LE(flushes(20'000'000), 10) << "of 20 messages at once";
}

TEST_F(MessageLogs, a_token_of_a_redelivery_waits_for_what_was_appended_before) {
  auto with_policy = options();
  with_policy.fsync_ns = kHour;
  const auto log = open(with_policy);
  log->acknowledge(70);  // nothing was appended
  append(*log, 0);
  log->acknowledge(71);
  std::this_thread::sleep_for(20ms);
  EXPECT_LE(acknowledged_.count(), 1);
  log->sync();
  auto all = acknowledged_.all();
  std::ranges::sort(all);
  EXPECT_EQ(all, (std::vector<uint64_t>{1, 70, 71}));
}

TEST_F(MessageLogs, the_next_file_begins_when_one_is_large_enough) {
  auto small = options();
  small.segment_bytes = 300;
  auto log = open(small);
  for (uint64_t n = 0; n < 100; ++n) {
    append(*log, n);
    log->sync();
  }
  const size_t count = files().size();
  EXPECT_GT(count, 10);
  for (const std::string& each : files()) EXPECT_LE(file_bytes(each).size(), 400);
  expect(*log, 0, 100);
  expect(*log, 41, 100);
  log = nullptr;
  log = open(small);
  expect(*log, 0, 100);
  EXPECT_EQ(files().size(), count);
}

TEST_F(MessageLogs, trim_removes_files_whose_messages_are_all_below_the_offset) {
  auto small = options();
  small.segment_bytes = 300;
  auto log = open(small);
  for (uint64_t n = 0; n < 60; ++n) {
    append(*log, n);
    log->sync();
  }
  const size_t all = files().size();
  log->trim(0);
  EXPECT_EQ(files().size(), all);
  log->trim(30);
  EXPECT_LT(files().size(), all);
  EXPECT_LE(log->begin(), 30);
  expect(*log, 30, 60);
  EXPECT_FALSE(std::filesystem::exists(file(0)));
  log->trim(60);
  EXPECT_EQ(files().size(), 1) << "the file that is written to stays";
  const uint64_t begin = log->begin();
  EXPECT_EQ(thrown_by([&] { MessageLog::Reader(*log, 0, 60).next(); }).code, Code::kDataLoss);
  append(*log, 60);
  log = nullptr;
  log = open(small);
  EXPECT_EQ(log->begin(), begin);
  expect(*log, begin, 61);
}

TEST_F(MessageLogs, a_tail_torn_at_any_byte_is_cut_off_and_the_log_goes_on) {
  const std::string bytes = made(10);
  const uint64_t last = places(bytes)[9];
  for (uint64_t cut = last; cut < bytes.size(); ++cut) {
    set_file(file(0), bytes.substr(0, cut));
    auto log = open();
    EXPECT_EQ(log->torn_bytes(), cut - last);
    expect(*log, 0, 9);
    append(*log, 9);
    log = nullptr;
    EXPECT_EQ(places(file_bytes(file(0))).size(), 11);
    expect(*open(), 0, 10);
  }
}

TEST_F(MessageLogs, a_last_message_with_any_byte_unwritten_is_cut_off) {
  const std::string bytes = made(10);
  const uint64_t last = places(bytes)[9];
  for (uint64_t at = last; at < bytes.size(); ++at) {
    set_file(file(0), bytes);
    flip(file(0), at);
    const auto log = open();
    EXPECT_EQ(log->torn_bytes(), bytes.size() - last);
    expect(*log, 0, 9);
  }
}

TEST_F(MessageLogs, a_new_file_torn_at_any_byte_of_its_begin_is_removed) {
  const std::string bytes = made(10);
  const uint64_t first = places(bytes)[0];
  for (const uint64_t cut : std::vector<uint64_t>{0, 1, 8, 15, 16, 17, 19, 20, 21, 28, first - 1}) {
    std::string header = bytes.substr(0, cut);
    if (cut >= 16) header[8] = 10;  // torn in the checksum, or in what follows
    set_file(file(10), header);
    auto log = open();
    expect(*log, 0, 10);
    append(*log, 10, 12);
    log = nullptr;
    expect(*open(), 0, 12);
    std::filesystem::remove(file(10));
    set_file(file(0), bytes);
  }
}

TEST_F(MessageLogs, a_damaged_byte_with_whole_messages_behind_is_an_error_with_its_place) {
  const std::string bytes = made(10);
  const auto at = places(bytes);
  for (uint64_t place = 0; place < at[9]; ++place) {
    flip(file(0), place);
    const auto thrown = thrown_by([&] { open(); });
    EXPECT_EQ(thrown.code, Code::kDataLoss) << "byte " << place;
    uint64_t record = place < 20 ? 0 : 20;
    for (const uint64_t each : at) record = each <= place ? each : record;
    EXPECT_NE(thrown.text.find(file(0) + ", byte " + std::to_string(record) + ":"),
              std::string::npos)
        << thrown.text;
    flip(file(0), place);
    ASSERT_EQ(file_bytes(file(0)), bytes) << "the file is as it was";
  }
  // What the error says to do.
  flip(file(0), at[5] + 10);
  EXPECT_NE(thrown_by([&] { open(); }).text.find("truncate -s " + std::to_string(at[5])),
            std::string::npos);
  std::filesystem::resize_file(file(0), at[5]);
  expect(*open(), 0, 5);
}

TEST_F(MessageLogs, a_damaged_byte_in_an_earlier_file_is_an_error_with_its_place) {
  auto small = options();
  small.segment_bytes = 200;
  auto log = open(small);
  for (uint64_t n = 0; n < 20; ++n) {
    append(*log, n);
    log->sync();
  }
  log = nullptr;
  const std::string first = file_bytes(file(0));
  for (uint64_t place = 0; place < first.size(); ++place) {
    flip(file(0), place);
    const auto thrown = thrown_by([&] { open(small); });
    EXPECT_EQ(thrown.code, Code::kDataLoss);
    EXPECT_NE(thrown.text.find(file(0) + ", byte "), std::string::npos) << thrown.text;
    flip(file(0), place);
  }
  const std::string second = files()[1];
  std::filesystem::remove(second);
  const auto gap = thrown_by([&] { open(small); });
  EXPECT_EQ(gap.code, Code::kDataLoss);
  EXPECT_NE(gap.text.find(files()[1]), std::string::npos) << "the file behind the gap";
}

TEST_F(MessageLogs, a_damaged_message_found_while_reading_is_an_error) {
  const auto log = open();
  append(*log, 0, 10);
  log->sync();
  flip(file(0), places(file_bytes(file(0)))[4] + 30);
  MessageLog::Reader reader(*log, 0, 10);
  for (uint64_t n = 0; n < 4; ++n) EXPECT_EQ(reader.next().offset, n);
  const auto thrown = thrown_by([&] { reader.next(); });
  EXPECT_EQ(thrown.code, Code::kDataLoss);
  EXPECT_NE(thrown.text.find(file(0) + ": message 4 "), std::string::npos) << thrown.text;
}

// After a loss of power, a disk may have written the later of two sectors.
TEST_F(MessageLogs, an_unwritten_sector_with_a_whole_message_behind_is_a_torn_tail) {
  auto log = open();
  append(*log, 0, 3);
  const std::string payload(5000, 'x');
  log->append(message_of("topic", payload), 0);
  log->append(message_of("topic", payload), 0);
  log = nullptr;
  std::string bytes = file_bytes(file(0));
  const auto at = places(bytes);
  std::fill_n(bytes.begin() + 1024, 512, '\0');
  set_file(file(0), bytes);
  EXPECT_EQ(open()->torn_bytes(), bytes.size() - at[3]);
  expect(*open(), 0, 3);
}

TEST_F(MessageLogs, a_torn_message_whose_payload_looks_like_records_is_cut_off_soon) {
  auto log = open();
  append(*log, 0, 3);
  std::string payload, record(24, '\0');  // each with a length of 1 MiB, and the kind of a message
  record[2] = 16;
  record[8] = 1;
  for (int i = 0; i < 200'000; ++i) payload += record;
  log->append(message_of("topic", payload), 0);
  log = nullptr;
  const std::string bytes = file_bytes(file(0));
  set_file(file(0), bytes.substr(0, bytes.size() - 1));
  EXPECT_EQ(open()->torn_bytes(), bytes.size() - 1 - places(bytes)[3]);
}

TEST_F(MessageLogs, on_a_full_disk_nothing_more_is_acknowledged_and_the_log_stays_whole) {
  auto with_policy = options();
  with_policy.fsync_ns = 0;
  uint64_t stored = 0;
  {
    const auto log = open(with_policy);
    append(*log, 0, 5);
    ASSERT_TRUE(acknowledged_.wait_for(5));
    const FullDisk full(4096);
    std::optional<Error> error;
    for (uint64_t n = 5; n < 1000 && !error; ++n) {
      try {
        append(*log, n);
        if (n % 10 == 0) log->sync();
      } catch (const Error& thrown) {
        error = thrown;
      }
    }
    ASSERT_TRUE(error) << "4096 bytes do not hold 1,000 messages";
    EXPECT_EQ(error->code(), Code::kSystem);
    EXPECT_EQ(error->error_number(), EFBIG);
    EXPECT_NE(std::string(error->what()).find(file(0)), std::string::npos) << error->what();
    stored = acknowledged_.count();
    const auto again = thrown_by([&] { log->sync(); });
    EXPECT_EQ(again.code, Code::kSystem);
    EXPECT_EQ(thrown_by([&] { log->check(); }).text, again.text);
    EXPECT_TRUE(log->busy()) << "a source pauses";
    log->acknowledge(9999);
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(acknowledged_.count(), stored);
  }
  EXPECT_LE(file_bytes(file(0)).size(), 4096);
  const auto log = open(with_policy);
  EXPECT_EQ(log->torn_bytes(), 0) << "it was cut behind its last whole message";
  EXPECT_GE(log->end(), stored);
  expect(*log, 0, log->end());
  append(*log, log->end());
  log->sync();
}

TEST_F(MessageLogs, a_disk_too_full_for_a_new_file_leaves_a_whole_log) {
  auto small = options();
  small.segment_bytes = 1;
  {
    const auto log = open(small);
    append(*log, 0);
    log->sync();
    const FullDisk full(10);
    append(*log, 1);
    EXPECT_EQ(thrown_by([&] { log->sync(); }).code, Code::kSystem);
  }
  EXPECT_EQ(acknowledged_.all(), std::vector<uint64_t>{1});
  auto log = open(small);
  expect(*log, 0, 1);
  append(*log, 1);
  log = nullptr;
  expect(*open(small), 0, 2);
}

TEST_F(MessageLogs, after_a_failed_flush_nothing_more_is_acknowledged) {
  auto with_policy = options();
  with_policy.fsync_ns = 1'000'000;
  const auto log = open(with_policy);
  append(*log, 0);
  ASSERT_TRUE(acknowledged_.wait_for(1));
  flush_fails = true;
  append(*log, 1);
  const auto thrown = thrown_by([&] { log->sync(); });
  EXPECT_EQ(thrown.code, Code::kSystem);
  flush_fails = false;
  EXPECT_EQ(thrown_by([&] { log->sync(); }).code, Code::kSystem) << "for ever";
  EXPECT_EQ(acknowledged_.count(), 1);
}

TEST_F(MessageLogs, a_folder_that_cannot_be_made_or_read_is_an_error_that_names_it) {
  set_file(folder_ + "/plain", "");
  const auto thrown = thrown_by([&] { open({.folder = folder_ + "/plain/spool"}); });
  EXPECT_EQ(thrown.code, Code::kSystem);
  EXPECT_NE(thrown.text.find(folder_ + "/plain/spool"), std::string::npos) << thrown.text;
  set_file(file(0) + ".other", "not of the log");
  set_file(folder_ + "/0.log", "not of the log");
  EXPECT_EQ(open()->end(), 0);
}

TEST_F(MessageLogs, one_log_at_a_time_has_a_folder) {
  auto log = open();
  const auto thrown = thrown_by([&] { open(); });
  EXPECT_EQ(thrown.code, Code::kInvalidArgument);
  EXPECT_NE(thrown.text.find(folder_), std::string::npos);
  log->close();
  open();
}

TEST_F(MessageLogs, another_process_has_the_folder_until_it_is_killed) {
  Gate ready;
  const pid_t child = start_child([&] {
    const auto log = open();
    append(*log, 0, 3);
    log->sync();
    ready.send('x');
    pause();
    return true;
  });
  char byte;
  ASSERT_TRUE(ready.receive(byte));
  EXPECT_EQ(thrown_by([&] { open(); }).code, Code::kInvalidArgument);
  kill_child(child);
  expect(*open(), 0, 3);
}

// A child that was forked while threads append and flush.
TEST_F(MessageLogs, a_forked_child_neither_joins_nor_hangs_nor_keeps_the_folder) {
  auto log = open();
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> appended{0};
  std::thread appending([&] {
    while (!stop) append(*log, appended.fetch_add(1));
  });
  std::thread syncing([&] {
    while (!stop) log->sync();
  });
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(holds_in_child([&] {
      for (const auto& work : std::vector<std::function<void()>>{
               [&] { append(*log, 0); }, [&] { log->sync(); }, [&] { log->check(); }}) {
        if (thrown_by(work).code != Code::kInvalidArgument) return false;
      }
      log->close();
      log = nullptr;
      return true;
    }));
  }
  Gate started, end;
  const pid_t child = start_child([&] {
    char byte;
    started.send('x');
    return end.receive(byte);
  });
  char byte;
  EXPECT_TRUE(started.receive(byte));
  stop = true;
  appending.join();
  syncing.join();
  log = nullptr;
  log = open();  // while the child lives
  EXPECT_EQ(log->end(), appended);
  end.send('x');
  EXPECT_EQ(status_of(child), 0);
}

TEST_F(MessageLogs, close_ends_appends_and_syncs_of_other_threads) {
  for (int round = 0; round < 5; ++round) {
    auto log = open();
    const uint64_t before = log->end();
    std::atomic<uint64_t> next{before};
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
      EXPECT_EQ(thrown_by([&] {
                  for (;;) append(*log, next), next.fetch_add(1);
                }).code,
                Code::kClosed);
    });
    threads.emplace_back([&] {
      EXPECT_EQ(thrown_by([&] {
                  for (;;) log->sync();
                }).code,
                Code::kClosed);
    });
    std::this_thread::sleep_for(1ms);
    log->close();
    log->close();
    for (std::thread& each : threads) each.join();
    log = open();
    EXPECT_EQ(log->end(), next) << "what was appended before close() is in the log";
    expect(*log, before, next);
  }
}

TEST_F(MessageLogs, a_message_above_1_GiB_is_an_error_and_changes_nothing) {
  constexpr size_t kBytes = size_t{1} << 30;
  void* zeros =
      mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(zeros, MAP_FAILED);
  const auto log = open();
  Message message = message_of("t", "");
  message.payload = {static_cast<const std::byte*>(zeros), kBytes};
  EXPECT_EQ(thrown_by([&] { log->append(message, 0); }).code, Code::kInvalidArgument);
  EXPECT_EQ(append(*log, 0), 0);
  log->sync();
  expect(*log, 0, 1);
  munmap(zeros, kBytes);
}

TEST_F(MessageLogs, a_process_that_is_killed_at_any_time_has_what_it_handed_over_in_the_log) {
  for (int round = 0; round < 5; ++round) {
    int tokens[2];
    ASSERT_EQ(pipe(tokens), 0);
    auto with_policy = options();
    with_policy.fsync_ns = 1'000'000;
    with_policy.segment_bytes = 4096;
    const pid_t child = start_child([&] {
      MessageLog log(with_policy, [&](std::span<const uint64_t> all, uint64_t) {
        for (const uint64_t each : all) (void)!write(tokens[1], &each, sizeof each);
      });
      for (uint64_t n = log.end();; ++n) append(log, n);
      return true;
    });
    close(tokens[1]);
    uint64_t token = 0, latest = 0;
    for (int i = 0; i < 300 + 70 * round; ++i) {
      ASSERT_EQ(read(tokens[0], &token, sizeof token), ssize_t{sizeof token});
    }
    kill_child(child);
    while (read(tokens[0], &token, sizeof token) == ssize_t{sizeof token}) latest = token;
    close(tokens[0]);
    const auto log = open(with_policy);
    EXPECT_GE(log->end(), latest);
    expect(*log, 0, log->end());
  }
}

}  // namespace
}  // namespace penstock::online
