// Any damage of a TFRecord file: exactly the damaged records are lost, and counted.
#include <gtest/gtest.h>

#include "penstock/io/crc32c.h"
#include "tfrecords.h"

namespace penstock {
namespace {

constexpr size_t kRecords = 7;

struct TFRecordDamage : ::testing::Test, TFRecords {
  TFRecordDamage() {
    uint64_t begin = 0;
    for (const std::string& payload : written) {
      begins.push_back(begin);
      begin += 16 + payload.size();
    }
    begins.push_back(begin);
  }

  uint64_t frame_bytes(size_t record) const { return begins[record + 1] - begins[record]; }

  // Reads the file: the records `lost` are missing, and so many places and bytes are lost.
  void expect(const std::vector<size_t>& lost, uint64_t places, uint64_t bytes,
              const std::string& what) {
    Gained gained = read_all(open({"file"}));
    std::vector<std::string> left;
    for (size_t i = 0; i < kRecords; ++i) {
      if (std::find(lost.begin(), lost.end(), i) == lost.end()) left.push_back(written[i]);
    }
    ASSERT_EQ(gained.payloads, left) << what;
    ASSERT_EQ(gained.lost_records, places) << what;
    ASSERT_EQ(gained.lost_bytes, bytes) << what;
  }

  std::vector<std::string> written = payloads(kRecords, 13);
  std::string& file = write("file", written);
  const std::string sound = file;
  std::vector<uint64_t> begins;
};

TEST_F(TFRecordDamage, a_wrong_byte_anywhere_costs_its_record_and_no_other) {
  for (size_t record = 0; record < kRecords; ++record) {
    for (uint64_t at = begins[record]; at < begins[record + 1]; ++at) {
      for (int wrong : {1, 0x80, 0xFF}) {
        file = sound;
        file[at] = static_cast<char>(file[at] ^ wrong);
        ASSERT_NO_FATAL_FAILURE(expect({record}, 1, frame_bytes(record), std::to_string(at)));
      }
    }
  }
}

TEST_F(TFRecordDamage, cut_off_at_any_byte_it_costs_the_last_record_and_what_is_left_of_it) {
  for (size_t record = 0; record < kRecords; ++record) {
    for (uint64_t at = begins[record]; at < begins[record + 1]; ++at) {
      file = sound.substr(0, at);
      std::vector<size_t> lost;
      for (size_t i = record; i < kRecords; ++i) lost.push_back(i);
      const uint64_t rest = at - begins[record];
      ASSERT_NO_FATAL_FAILURE(expect(lost, rest > 0 ? 1 : 0, rest, std::to_string(at)));
    }
  }
}

TEST_F(TFRecordDamage, garbage_between_records_is_one_place_and_costs_no_record) {
  for (size_t before = 0; before <= kRecords; ++before) {
    for (size_t length : {1, 15, 16, 17, 300, 70'000}) {
      for (char filling : {'\0', '\1', '\xFF', 'x'}) {
        file = sound;
        file.insert(begins[before], length, filling);
        ASSERT_NO_FATAL_FAILURE(expect({}, 1, length, std::to_string(before)));
      }
    }
  }
}

TEST_F(TFRecordDamage, what_lacks_bytes_costs_itself_and_the_record_it_runs_into) {
  for (size_t record = 0; record + 1 < kRecords; ++record) {
    if (written[record].size() < 2) continue;
    file = sound;
    file.erase(begins[record] + 13, 1);
    ASSERT_NO_FATAL_FAILURE(expect({record, record + 1}, 2,
                                   frame_bytes(record) + frame_bytes(record + 1) - 1,
                                   std::to_string(record)));
    file = sound;
    file.erase(begins[record] + 3, 1);  // in the length: the record's end is unknown
    ASSERT_NO_FATAL_FAILURE(expect({record}, 1, frame_bytes(record) - 1, std::to_string(record)));
  }
}

TEST_F(TFRecordDamage, two_apart_are_two_places_and_two_in_neighbouring_lengths_are_one) {
  for (size_t first = 0; first < kRecords; ++first) {
    for (size_t second = first + 1; second < kRecords; ++second) {
      file = sound;
      file[begins[first]] ^= 1;
      file[begins[second]] ^= 1;
      ASSERT_NO_FATAL_FAILURE(expect({first, second}, second == first + 1 ? 1 : 2,
                                     frame_bytes(first) + frame_bytes(second),
                                     std::to_string(first) + " " + std::to_string(second)));
      file = sound;
      file[begins[first]] ^= 1;           // a length
      file[begins[second + 1] - 1] ^= 1;  // a payload's checksum, too
      ASSERT_NO_FATAL_FAILURE(expect({first, second}, second == first + 1 ? 1 : 2,
                                     frame_bytes(first) + frame_bytes(second),
                                     std::to_string(first) + " " + std::to_string(second)));
    }
  }
}

// A length that agrees with its checksum and is larger than the file.
TEST_F(TFRecordDamage, no_memory_is_taken_for_bytes_that_the_file_does_not_have) {
  for (uint64_t length :
       {sound.size(), size_t{1} << 40, size_t{1} << 63, SIZE_MAX, SIZE_MAX - 15, SIZE_MAX - 16}) {
    const auto bytes = std::as_bytes(std::span(&length, 1));
    const uint32_t crc = masked(crc32c(bytes));
    for (size_t record = 0; record < kRecords; ++record) {
      file = sound;
      std::memcpy(&file[begins[record]], &length, 8);
      std::memcpy(&file[begins[record] + 8], &crc, 4);
      ASSERT_NO_FATAL_FAILURE(expect({record}, 1, frame_bytes(record), std::to_string(length)));
    }
  }
}

TEST_F(TFRecordDamage, garbage_alone_is_one_place) {
  for (size_t length : {1, 11, 12, 16, 1000, 200'000}) {
    file.resize(length);
    uint32_t state = 1;
    for (char& byte : file) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
    Gained gained = read_all(open({"file"}));
    EXPECT_TRUE(gained.payloads.empty());
    EXPECT_EQ(gained.lost_records, 1u);
    EXPECT_EQ(gained.lost_bytes, length);
  }
}

TEST_F(TFRecordDamage, an_error_names_file_record_and_byte) {
  file[begins[3] + 14] ^= 1;
  file[begins[5] + 2] ^= 1;
  Gained gained = read_all(open({"file"}));
  ASSERT_EQ(gained.errors.size(), 2u);
  for (auto [text, record] : {std::pair(gained.errors[0], 5), {gained.errors[1], 3}}) {
    EXPECT_NE(text.find("file, record " + std::to_string(record) + " at byte " +
                        std::to_string(begins[record])),
              text.npos)
        << text;
  }
}

}  // namespace
}  // namespace penstock
