#include "penstock/io/record_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "penstock/io/crc32c.h"
#include "penstock/io/fixed_records.h"
#include "penstock/io/lines.h"
#include "penstock/io/tfrecord.h"
#include "tfrecords.h"

namespace penstock {
namespace {

// One row or failure of a stream.
struct Got {
  uint64_t file, offset, record, lost;
  std::string text;  // the payload, or the reason of the failure
  bool operator==(const Got&) const = default;
};

struct RecordStreamTest : ::testing::Test, TFRecords {
  std::shared_ptr<const StreamFiles> stream_of(std::vector<std::string> paths,
                                               Compression compression) {
    std::vector<Compression> each(paths.size(), compression);
    return std::make_shared<StreamFiles>(pool, std::move(paths), std::move(each));
  }
  RecordStream records(const std::vector<std::string>& paths, Compression compression) {
    return {stream_of(paths, compression), "tfrecord", tfrecord_framing()};
  }

  static std::vector<Got> next(RecordStream& stream, size_t most) {
    std::vector<Got> got(stream.read(most));
    EXPECT_LE(got.size(), most);
    for (size_t i = 0; i < got.size(); ++i) {
      const auto& [place, bytes] = stream.row(i);
      got[i] = {place.file, place.offset, place.record, 0,
                std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
    }
    for (const auto& failure : stream.failures()) {
      got[failure.row].lost = failure.bytes + 1;  // 0 bytes may be lost, too
      got[failure.row].text = stream.error_of(failure).what();
    }
    return got;
  }
  static std::vector<Got> rest(RecordStream& stream, size_t most = 64) {
    std::vector<Got> all;
    for (std::vector<Got> got = next(stream, most); !got.empty(); got = next(stream, most)) {
      all.insert(all.end(), got.begin(), got.end());
    }
    EXPECT_EQ(stream.read(most), 0u) << "it stays over";
    return all;
  }
  std::vector<Got> all(const std::vector<std::string>& paths, Compression compression,
                       size_t most = 64) {
    RecordStream stream = records(paths, compression);
    stream.begin();
    return rest(stream, most);
  }

  // The same through an index, which is another implementation.
  std::vector<Got> indexed(const std::string& path) {
    auto opened = open({path});
    TFRecordReader reader(opened);
    std::vector<Got> all;
    for (uint64_t i = 0; i < opened->size(); ++i) {
      reader.read({&i, 1});
      const auto payload = reader.payload(0);
      all.push_back({0,
                     opened->index(0).at(i).offset,
                     i,
                     0,
                     {reinterpret_cast<const char*>(payload.data()), payload.size()}});
      for (const auto& failure : reader.failures()) {
        all.back().lost = failure.bytes + 1;
        all.back().text = failure.error.what();
      }
    }
    return all;
  }
};

TEST_F(RecordStreamTest, gives_what_an_index_gives_whatever_is_damaged) {
  std::mt19937 random(5);
  for (int round = 0; round < 120; ++round) {
    std::vector<std::string> some = payloads(random() % 60, random());
    if (round % 10 == 0) some.emplace_back(300'000, 'x');  // larger than one read
    some.emplace_back("last");
    std::string& bytes = write("file", some);
    for (unsigned i = random() % 6; i > 0 && !bytes.empty(); --i) {
      switch (random() % 3) {
        case 0:
          bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
          break;
        case 1:
          bytes.erase(random() % bytes.size(), random() % 20);
          break;
        default:
          bytes.insert(random() % bytes.size(), random() % 20, 'z');
      }
    }
    const std::vector<Got> expected = indexed("file");
    const size_t most = random() % 64 + 1;
    EXPECT_EQ(all({"file"}, Compression::kNone, most), expected) << round;
    for (Compression compression : {Compression::kGzip, Compression::kZlib}) {
      (*files)["small"] = compressed(bytes, compression);
      std::vector<Got> got = all({"small"}, compression, most);
      ASSERT_EQ(got.size(), expected.size()) << round;
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].lost, expected[i].lost);
        EXPECT_EQ(got[i].offset, expected[i].offset);
        if (got[i].lost == 0) {
          EXPECT_EQ(got[i].text, expected[i].text);
        } else {
          EXPECT_NE(got[i].text.find("small, record " + std::to_string(i) + " at byte " +
                                     std::to_string(got[i].offset) + " of what was inflated"),
                    std::string::npos)
              << got[i].text;
        }
      }
    }
  }
}

TEST_F(RecordStreamTest, goes_on_from_every_place) {
  std::vector<std::string> paths;
  for (int file = 0; file < 4; ++file) {
    paths.push_back("file-" + std::to_string(file));
    std::string& bytes = write(paths.back(), payloads(file == 1 ? 0 : 30, file));
    if (file == 2) bytes[200] ^= 1;
  }
  for (Compression compression : {Compression::kNone, Compression::kGzip}) {
    if (compression == Compression::kGzip) {
      for (const std::string& path : paths) {
        (*files)[path] = compressed((*files)[path], compression);
      }
    }
    const std::vector<Got> expected = all(paths, compression);
    EXPECT_EQ(all(paths, compression, 7), expected);
    RecordStream stream = records(paths, compression), other = records(paths, compression);
    stream.begin();
    for (size_t i = 0; i <= expected.size(); ++i) {
      const RecordStream::Place place = stream.place();
      other.seek(place);
      const std::vector<Got> left = rest(other, 9);
      EXPECT_EQ(left, std::vector<Got>(expected.begin() + static_cast<std::ptrdiff_t>(i),
                                       expected.end()));
      EXPECT_EQ(next(stream, 1).size(), i < expected.size() ? 1u : 0u);
    }
    EXPECT_THROW(other.seek({4, 1, 0}), Error);
    EXPECT_THROW(other.seek({5, 0, 0}), Error);
    EXPECT_THROW(other.seek({0, 1 << 20, 0}), Error);
    other.begin();
    EXPECT_EQ(rest(other), expected) << "a place that is none changes nothing";
  }
}

TEST_F(RecordStreamTest, damage_of_compressed_bytes_costs_the_rest_of_its_file_and_no_other) {
  std::mt19937 random(1);
  std::vector<std::string> some;
  for (int i = 0; i < 200; ++i) {  // bytes that cannot be compressed
    some.emplace_back(100, '\0');
    for (char& byte : some.back()) byte = static_cast<char>(random());
  }
  const std::string whole = compressed(write("file", some), Compression::kGzip);
  (*files)["next"] = compressed(write("next", payloads(5)), Compression::kGzip);
  for (size_t at = 0; at < whole.size(); at += 97) {
    for (bool cut : {false, true}) {
      std::string& bytes = (*files)["file"] = whole;
      if (cut) {
        bytes.resize(at);
      } else {
        bytes[at] ^= 0x10;
      }
      const std::vector<Got> got = all({"file", "next"}, Compression::kGzip);
      const bool harmless = cut ? at == 0 : at >= 4 && at < 10;  // time and system are not checked
      // A wrong byte may be detected in a record first, and then by the checksum of the file.
      auto expected = some.begin();
      std::string last;
      for (size_t i = 0; i + 5 < got.size(); ++i) {
        if (got[i].lost > 0) {
          EXPECT_TRUE(!cut || i + 6 == got.size()) << "it is the file's last";
          last = got[i].text;
        } else {
          expected = std::find(expected, some.end(), got[i].text);
          ASSERT_NE(expected, some.end()) << "nothing comes that was not there";
        }
      }
      EXPECT_EQ(last.find("cannot be read on at byte") == last.npos, harmless) << at << cut;
      ASSERT_GE(got.size(), 5u);
      for (size_t i = 0; i < 5; ++i) EXPECT_EQ(got[got.size() - 5 + i].file, 1u);
      EXPECT_EQ(all({"file", "next"}, Compression::kGzip, 3), got) << "in any portions";
    }
  }
}

TEST_F(RecordStreamTest, a_file_that_is_gone_or_becomes_shorter_is_one_failure) {
  write("a", payloads(5));
  std::string& large = write("b", std::vector<std::string>(100, std::string(10'000, 'x')));
  write("c", payloads(5));
  RecordStream stream = records({"a", "gone", "b", "c"}, Compression::kNone);
  stream.begin();
  std::vector<Got> got = next(stream, 10);
  ASSERT_EQ(got.size(), 10u);
  EXPECT_NE(got[5].text.find("gone"), std::string::npos);
  EXPECT_EQ(stream.failures()[0].code, Code::kNotFound);
  large.resize(500'000);
  got = rest(stream);
  size_t lost = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i].lost == 0) continue;
    ++lost;
    EXPECT_EQ(got[i].offset + got[i].lost - 1, 1'001'600u) << "all that the file had is counted";
    EXPECT_EQ(got.size() - i, 6u);
  }
  EXPECT_EQ(lost, 1u);
}

// Files of records of four bytes, with a given number of records.
TEST_F(RecordStreamTest, counted_files_have_so_many_rows_or_nothing_follows) {
  (*files)["a"] = "headaaaabbbb";
  (*files)["empty"] = "head";
  (*files)["b"] = "headccccdddd";
  const std::vector<std::string> paths{"a", "empty", "b"};
  const auto counted = [&](Compression compression, std::vector<uint64_t> counts) {
    auto each = std::make_shared<StreamFiles>(*stream_of(paths, compression));
    each->header_bytes = {4, 4, 4};
    each->counts = std::move(counts);
    return RecordStream(each, "counted", fixed_framing(4, 0));
  };
  for (Compression compression : {Compression::kNone, Compression::kGzip}) {
    if (compression != Compression::kNone) {
      for (const auto& path : paths) (*files)[path] = compressed((*files)[path], compression);
    }
    RecordStream stream = counted(compression, {2, 0, 2}), other = counted(compression, {2, 0, 2});
    for (size_t rows = 0; rows <= 4; ++rows) {  // from each place
      stream.begin();
      for (size_t i = 0; i < rows; ++i) next(stream, 1);
      other.seek(stream.place());
      EXPECT_EQ(rest(other).size(), 4 - rows);
    }
    const std::pair<std::vector<uint64_t>, size_t> wrong[] = {
        {{1, 0, 2}, 0}, {{3, 0, 2}, 2}, {{2, 1, 2}, 2}, {{2, 0, 1}, 2}, {{2, 0, 3}, 4}};
    for (const auto& [counts, sound] : wrong) {
      RecordStream bad = counted(compression, counts);
      bad.begin();
      size_t rows = 0;
      for (size_t got = 0; bad.failures().empty(); rows += got) got = bad.read(2);
      EXPECT_EQ(rows, sound + 1) << "all in front of it, and it";
      const std::vector<Got> again = next(bad, 2);
      ASSERT_EQ(again.size(), 1u) << "nothing follows";
      const Got last = again[0];
      EXPECT_TRUE(bad.failures()[0].fatal);
      EXPECT_NE(last.text.find("by its header it has"), std::string::npos) << last.text;
      RecordStream from = counted(compression, counts);
      from.seek(bad.place());
      EXPECT_EQ(next(from, 5), std::vector{last}) << "and the same from that place";
    }
    const std::string whole = (*files)["a"];
    (*files)["a"].resize(whole.size() - 1);  // of a record, or of the final checksum
    stream.begin();
    const std::vector<Got> got = next(stream, 64);
    ASSERT_EQ(got.size(), compression == Compression::kNone ? 4u : 2u) << "a lost row is a row";
    EXPECT_EQ(stream.failures()[0].row, 1u);
    EXPECT_EQ(stream.failures()[0].fatal, compression != Compression::kNone);
    (*files)["a"] = whole;
  }
}

TEST_F(RecordStreamTest, a_length_that_cannot_be_takes_no_memory) {
  std::string frame(12, '\0');
  const uint64_t length = uint64_t{1} << 40;
  std::memcpy(frame.data(), &length, 8);
  const uint32_t crc = masked(crc32c(std::as_bytes(std::span(frame)).first(8)));
  std::memcpy(frame.data() + 8, &crc, 4);
  const std::string sound = write("file", {"one"});
  (*files)["file"] = sound + frame + std::string(100, 'x') + sound;
  for (Compression compression : {Compression::kNone, Compression::kGzip}) {
    if (compression != Compression::kNone) {
      (*files)["file"] = compressed((*files)["file"], compression);
    }
    const std::vector<Got> got = all({"file"}, compression);
    ASSERT_EQ(got.size(), 3u);
    EXPECT_EQ(got[1].lost - 1, 112u);
    EXPECT_EQ(got[2].text, "one");
  }
}

// A megabyte of deflate may hold a record of a gigabyte.
TEST_F(RecordStreamTest, a_record_of_more_than_a_gibibyte_is_not_decompressed) {
  std::string frame(12, '\0');
  const uint64_t length = (uint64_t{1} << 30) + 1;
  std::memcpy(frame.data(), &length, 8);
  const uint32_t crc = masked(crc32c(std::as_bytes(std::span(frame)).first(8)));
  std::memcpy(frame.data() + 8, &crc, 4);
  std::mt19937 random(1);
  std::string noise(1'100'000, '\0');  // so that deflate could reach the length
  for (char& each : noise) each = static_cast<char>(random());
  const std::string sound = write("file", {"one"});
  (*files)["file"] = compressed(sound + frame + noise, Compression::kGzip);
  (*files)["other"] = compressed(sound, Compression::kGzip);
  RecordStream stream = records({"file", "other"}, Compression::kGzip);
  stream.begin();
  const std::vector<Got> got = rest(stream);
  ASSERT_EQ(got.size(), 3u);
  EXPECT_NE(got[1].text.find("more than 1 GiB"), std::string::npos) << got[1].text;
  EXPECT_GT(got[1].lost, 0u);
  EXPECT_EQ(got[2].text, "one");
}

TEST_F(RecordStreamTest, lines_are_those_of_an_index) {
  std::mt19937 random(2);
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    text.append(i == 700 ? 200'000 : random() % 90, static_cast<char>('a' + i % 26));
    text += random() % 3 == 0 ? "\r\n" : "\n";
  }
  for (std::string end : {"", "x", "x\r", "\r\n"}) {
    (*files)["plain"] = text + end;
    (*files)["small"] = compressed(text + end, Compression::kGzip);
    auto opened =
        std::make_shared<RecordFiles>(pool, std::vector<std::string>{"plain"},
                                      std::vector<RecordIndex>{index_lines(*files->open("plain"))});
    LineReader reader(opened);
    std::vector<std::string> expected;
    for (uint64_t i = 0; i < opened->size(); ++i) {
      reader.read({&i, 1});
      expected.emplace_back(reinterpret_cast<const char*>(reader.payload(0).data()),
                            reader.payload(0).size());
    }
    for (auto [path, compression] :
         {std::pair("plain", Compression::kNone), {"small", Compression::kGzip}}) {
      RecordStream stream(stream_of({path}, compression), "lines", line_framing());
      stream.begin();
      std::vector<std::string> got;
      for (const Got& each : rest(stream, 50)) got.push_back(each.text);
      EXPECT_EQ(got, expected);
    }
  }
}

}  // namespace
}  // namespace penstock
