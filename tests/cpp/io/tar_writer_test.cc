#include "penstock/io/tar_writer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bytes.h"
#include "memory_files.h"
#include "penstock/base/error.h"
#include "penstock/io/tar.h"
#include "penstock/io/tar_index.h"

namespace penstock {
namespace {

struct TarWriterTest : ::testing::Test {
  using Texts = std::vector<std::pair<std::string, std::string>>;

  static void write(TarWriter& writer, const std::string& key, const Texts& texts) {
    std::vector<TarWriter::Field> fields;
    for (const auto& [extension, data] : texts) fields.push_back({extension, bytes_of(data)});
    writer.write(key, fields);
  }
  static Code refused(TarWriter& writer, const std::string& key, const Texts& texts,
                      const std::string& says = "") {
    try {
      write(writer, key, texts);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
      return error.code();
    }
    return Code::kInternal;
  }
  // All samples, one after the other.
  std::vector<std::pair<std::string, Texts>> read(const std::string& path) {
    const std::string bytes = files[path];
    const RecordIndex index = index_tar(*files.open(path));
    std::vector<std::pair<std::string, Texts>> all;
    for (uint64_t i = 0; i < index.size(); ++i) {
      const auto place = index.at(i);
      TarSample sample;
      EXPECT_EQ(sample.parse(bytes_of(bytes).subspan(place.offset, place.bytes), place.offset), "");
      all.emplace_back(sample.key(), Texts());
      for (const auto& [extension, data] : sample.fields()) {
        all.back().second.emplace_back(
            extension, std::string(reinterpret_cast<const char*>(data.data()), data.size()));
      }
    }
    return all;
  }

  MemoryFiles files;
};

TEST_F(TarWriterTest, what_was_written_comes_back) {
  std::vector<std::pair<std::string, Texts>> samples;
  const std::string folder(90, 'f');
  for (const std::string& key :
       {std::string("a"), std::string("dir/v1.2/b"), std::string("c c"), std::string("\xC3\xA4"),
        folder + "/" + std::string(94, 'n'), folder + "/" + std::string(100, 'n'),
        std::string(300, 'l'), std::string(160, 'p') + "/x",
        std::string("\xE6\xBC\xA2/") + folder}) {
    samples.push_back({key, {{"jpg", std::string(700, 'j')}, {"seg.png", ""}, {"cls", "7"}}});
  }
  samples.push_back({"large", {{"bin", std::string(600'000, 'x')}}});
  TarWriter writer(files, "file");
  for (const auto& [key, texts] : samples) write(writer, key, texts);
  EXPECT_EQ(writer.samples(), samples.size());
  EXPECT_EQ(files.kind("file"), FileSystem::Kind::kNothing);
  writer.close();
  EXPECT_EQ(writer.bytes(), files["file"].size());
  EXPECT_EQ(read("file"), samples);
  // A name that fits takes one header.
  TarWriter again(files, "again");
  write(again, folder + "/" + std::string(94, 'n'), {{"x", ""}});
  again.close();
  EXPECT_EQ(files["again"].size(), 512u + 1024u);
}

TEST_F(TarWriterTest, equal_samples_are_equal_bytes) {
  for (const char* path : {"one", "two"}) {
    TarWriter writer(files, path);
    write(writer, "a", {{"x", "1"}});
    writer.close();
  }
  EXPECT_EQ(files["one"], files["two"]);
  EXPECT_EQ(files["one"].size(), 2048u);
  EXPECT_TRUE(files["one"].starts_with("a.x"));
}

TEST_F(TarWriterTest, samples_that_no_reader_would_find_are_refused) {
  TarWriter writer(files, "file");
  const Texts one{{"x", "1"}};
  EXPECT_EQ(refused(writer, "a", {}, "no fields"), Code::kInvalidArgument);
  for (const char* key : {"", "a.b", "dir/", "dir/.a", ".", "__meta__/a"}) {
    EXPECT_EQ(refused(writer, key, one, "a key is a path"), Code::kInvalidArgument) << key;
  }
  for (const char* key : {"../a", "/a", "a/../b"}) {
    EXPECT_EQ(refused(writer, key, one, "it climbs"), Code::kInvalidArgument) << key;
  }
  EXPECT_EQ(refused(writer, "a\xFF", one, "UTF-8"), Code::kInvalidArgument);
  EXPECT_EQ(refused(writer, "a", {{"X", ""}}, "lower case"), Code::kInvalidArgument);
  EXPECT_EQ(refused(writer, "a", {{"", ""}}), Code::kInvalidArgument);
  EXPECT_EQ(refused(writer, "a", {{"x/y", ""}}, "slash"), Code::kInvalidArgument);
  EXPECT_EQ(refused(writer, "a", {{"x", ""}, {"x", ""}}, "twice"), Code::kInvalidArgument);
  EXPECT_EQ(refused(writer, "a", {{"__key__", ""}}, "twice"), Code::kInvalidArgument);
  write(writer, "a", one);
  EXPECT_EQ(refused(writer, "a", one, "the sample before"), Code::kInvalidArgument);
  write(writer, "b", one);
  write(writer, "a", one);
  writer.close();
  writer.close();
  EXPECT_EQ(refused(writer, "c", one), Code::kClosed);
  EXPECT_EQ(read("file").size(), 3u) << "nothing was written of those";
}

TEST_F(TarWriterTest, a_full_disk_leaves_nothing) {
  files["file"] = "as it was";
  files.full_after = 300'000;
  TarWriter writer(files, "file");
  const std::string data(200'000, 'd');
  write(writer, "a", {{"x", data}});
  EXPECT_EQ(refused(writer, "b", {{"x", data}, {"y", data}}), Code::kSystem);
  EXPECT_EQ(refused(writer, "c", {{"x", ""}}), Code::kClosed);
  writer.close();
  EXPECT_EQ(files["file"], "as it was");
}

}  // namespace
}  // namespace penstock
