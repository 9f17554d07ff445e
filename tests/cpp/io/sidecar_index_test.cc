#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "penstock/io/crc32c.h"
#include "penstock/io/record_index.h"
#include "penstock/io/tfrecord.h"
#include "tfrecords.h"

namespace penstock {
namespace {

using Place = RecordIndex::Place;

std::vector<Place> places(const RecordIndex& index) {
  std::vector<Place> all;
  for (uint64_t i = 0; i < index.size(); ++i) all.push_back(index.at(i));
  return all;
}

struct SidecarIndex : ::testing::Test, TFRecords {
  static RecordIndex index_of(uint64_t first, const std::vector<std::pair<uint64_t, bool>>& each) {
    RecordIndex::Builder builder;
    uint64_t offset = first;
    for (const auto& [bytes, damaged] : each) {
      builder.add(offset, damaged);
      offset += bytes;
    }
    return builder.finish(offset);
  }

  std::string& keep(const RecordIndex& index, const IndexedFile& of) {
    auto sink = files->create("kept");
    write_index(*sink, index, of);
    sink->commit();
    return (*files)["kept"];
  }
  std::optional<RecordIndex> kept(const IndexedFile& of) {
    return read_index(*files->open("kept"), of);
  }

  // The index of `path`, through the saved index; counts how often it was made.
  RecordIndex through(const std::string& path) {
    const auto file = files->open(path);
    return load_or_build_index(*files, *file, "tfrecord", 0, [&] {
      ++made;
      return index_tfrecord(*file);
    });
  }

  int made = 0;
};

TEST_F(SidecarIndex, its_bytes_are_those_that_are_written_down) {
  const IndexedFile of{"tfrecord", 0, 320, 1000};
  const std::string& bytes = keep(index_of(0, {{16, false}, {284, true}, {20, false}}), of);
  std::string expected = "PSTKIDX1tfrecord";
  for (uint64_t number : {320, 1000, 0, 0, 3, 4}) {
    expected.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  expected += std::string("\x20\xB9\x04\x28") + "CRC.";
  ASSERT_EQ(bytes.size(), expected.size());
  EXPECT_EQ(bytes.substr(0, 68), expected.substr(0, 68));
  uint32_t crc = 0;
  std::memcpy(&crc, bytes.data() + 68, sizeof(crc));
  EXPECT_EQ(crc, 0x10C7B14Cu);
}

TEST_F(SidecarIndex, gives_back_every_place) {
  std::vector<std::pair<uint64_t, bool>> many, wide;
  for (uint64_t i = 0; i < 200'000; ++i) many.emplace_back(1 + i * i % 3000, i % 977 == 3);
  for (uint64_t i = 0; i < 200; ++i) wide.emplace_back(uint64_t{1} << (i % 50), i % 7 == 0);
  for (const auto& [first, each] :
       {std::pair<uint64_t, std::vector<std::pair<uint64_t, bool>>>{0, {}},
        {0, {{1, true}}},
        {77, {{(uint64_t{1} << 62) - 1, false}, {1, false}}},
        {12, many},
        {0, wide}}) {
    const RecordIndex index = index_of(first, each);
    const IndexedFile of{"csv,", first / 2, index.file_bytes(), -5};
    keep(index, of);
    const auto again = kept(of);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->file_bytes(), index.file_bytes());
    ASSERT_EQ(places(*again), places(index));
    EXPECT_TRUE(std::equal(again->damaged().begin(), again->damaged().end(),
                           index.damaged().begin(), index.damaged().end()));
  }
}

TEST_F(SidecarIndex, of_another_file_is_none) {
  const IndexedFile of{"lines", 3, 30, 1000};
  keep(index_of(3, {{27, false}}), of);
  EXPECT_TRUE(kept(of));
  EXPECT_FALSE(kept({"line", 3, 30, 1000}));
  EXPECT_FALSE(kept({"tfrecord", 3, 30, 1000}));
  EXPECT_FALSE(kept({"lines", 0, 30, 1000}));
  EXPECT_FALSE(kept({"lines", 3, 31, 1000}));
  EXPECT_FALSE(kept({"lines", 3, 30, 1001}));
}

TEST_F(SidecarIndex, that_is_cut_anywhere_or_goes_on_is_none) {
  const IndexedFile of{"tfrecord", 0, 400, 1};
  const std::string whole = keep(index_of(0, {{100, false}, {200, true}, {100, false}}), of);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    (*files)["kept"] = whole.substr(0, bytes);
    EXPECT_FALSE(kept(of)) << bytes;
  }
  (*files)["kept"] = whole + '\0';
  EXPECT_FALSE(kept(of));
  (*files)["kept"] = whole;
  EXPECT_TRUE(kept(of));
}

TEST_F(SidecarIndex, with_any_bit_wrong_is_none) {
  const IndexedFile of{"tfrecord", 0, 400, 1};
  const std::string whole = keep(index_of(0, {{100, false}, {200, true}, {100, false}}), of);
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string& bytes = (*files)["kept"] = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(kept(of)) << bit;
  }
}

// The checksum is right, but the content is invalid.
TEST_F(SidecarIndex, that_lies_is_none) {
  struct Lie {
    uint64_t bytes, begin, first, places;
    std::string list;
  };
  const std::string all_ones(9, '\xFF');
  const std::vector<Lie> lies = {
      {20, 0, 0, 1, "\x26"},                        // ends before the file
      {20, 0, 0, 1, "\x2A"},                        // after the file
      {20, 0, 0, 2, std::string("\x28\x00", 2)},    // an empty place
      {20, 0, 0, 2, std::string("\x00\x28", 2)},    //
      {20, 0, 0, 1, "\x28\x02"},                    // more than it says
      {20, 0, 0, 3, "\x14\x14"},                    // fewer
      {20, 0, 0, uint64_t{1} << 60, "\x14\x14"},    //
      {20, 0, 0, 1, "\xA8"},                        // a number without an end
      {20, 0, 0, 1, all_ones + "\x01"},             // larger than the file
      {20, 0, 0, 1, all_ones + "\xFF\x01"},         // than any number
      {20, 4, 2, 1, "\x24"},                        // a first place before its lowest offset
      {20, 0, 21, 0, ""},                           // after the file
      {20, 0, 4, 1, "\x20"},                        // that leaves out the first record
      {20, 0, 0, 0, ""},                            // ... and all of them
      {20, 0, 20, 0, ""},                           //
      {20, 0, UINT64_MAX - 3, 1, "\x30"},           // sums that overflow
      {UINT64_MAX, 0, UINT64_MAX - 20, 1, "\x28"},  // an impossible file size
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    const Lie& lie = lies[i];
    std::string bytes = "PSTKIDX1tfrecord";
    for (uint64_t number :
         {lie.bytes, uint64_t{7}, lie.begin, lie.first, lie.places, uint64_t{lie.list.size()}}) {
      bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
    }
    bytes += lie.list;
    const uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
    bytes.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
    (*files)["kept"] = bytes;
    EXPECT_FALSE(kept({"tfrecord", lie.begin, lie.bytes, 7})) << i;
  }
}

TEST_F(SidecarIndex, is_made_once) {
  std::string& bytes = write("file", payloads(300));
  bytes[index("file").at(100).offset] ^= 1;
  bytes.resize(bytes.size() - 3);
  const std::vector<Place> expected = places(index("file"));
  EXPECT_EQ(places(through("file")), expected);
  EXPECT_EQ(made, 1);
  files->before_read("file", [] { throw Error(Code::kInternal, "read", "nobody reads this"); });
  EXPECT_EQ(places(through("file")), expected);
  EXPECT_EQ(made, 1);
}

TEST_F(SidecarIndex, is_made_again_when_the_file_was_changed_or_it_is_damaged) {
  const std::string name = "file" + std::string(kIndexSuffix);
  auto check = [&](int times, const char* why) {
    const std::vector<Place> expected = places(index("file"));
    EXPECT_EQ(places(through("file")), expected) << why;
    EXPECT_EQ(places(through("file")), expected) << why;
    EXPECT_EQ(made, times) << why;
  };
  write("file", payloads(50));
  check(1, "there is none");
  const std::string more = (*files)["file"];
  (*files)["file"] += more;
  check(2, "appended");
  // The same size and other records.
  std::vector<std::string> others = payloads(50);
  std::rotate(others.begin(), others.begin() + 7, others.end());
  write("file", others);
  check(3, "another one");
  std::vector<std::string> replaced = payloads(50);
  const size_t before = (*files)["file"].size();
  ASSERT_EQ(write("file", replaced).size(), before);
  check(4, "replaced by one of the same size");
  (*files)[name][70] ^= 1;
  check(5, "damaged");
  (*files)[name] = "something else";
  check(6, "foreign");
  files->before_read(name, [] { throw Error(Code::kSystem, "read", "it burns"); });
  through("file");
  EXPECT_EQ(made, 7);
  files->before_read(name, {});
  check(7, "and is kept");
}

TEST_F(SidecarIndex, that_cannot_be_kept_is_in_memory) {
  write("file", payloads(50));
  const std::vector<Place> expected = places(index("file"));
  files->read_only = true;
  EXPECT_EQ(places(through("file")), expected);
  files->read_only = false;
  for (uint64_t full : {0, 10, 64, 70, 100}) {
    files->full_after = full;
    EXPECT_EQ(places(through("file")), expected);
  }
  EXPECT_EQ(made, 6);
  EXPECT_EQ(files->list(""), std::vector<std::string>{"file"});
}

TEST_F(SidecarIndex, of_a_file_that_changes_meanwhile_is_not_kept) {
  write("file", payloads(50));
  const auto file = files->open("file");
  auto make = [&] {
    RecordIndex index = index_tfrecord(*file);
    (*files)["file"].back() ^= 1;
    return index;
  };
  EXPECT_EQ(load_or_build_index(*files, *file, "tfrecord", 0, make).size(), 50u);
  EXPECT_EQ(files->list(""), std::vector<std::string>{"file"});
}

TEST_F(SidecarIndex, errors_of_the_file_itself_are_told) {
  write("file", payloads(50));
  files->before_read("file", [] { throw Error(Code::kSystem, "read", "it burns"); });
  EXPECT_THROW(through("file"), Error);
  EXPECT_EQ(files->list(""), std::vector<std::string>{"file"});
}

}  // namespace
}  // namespace penstock
