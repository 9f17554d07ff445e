#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "../../io/tars.h"
#include "../../io/tfrecords.h"
#include "../stages/stream_contract.h"
#include "penstock/base/error.h"
#include "penstock/io/tar_writer.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/sources.h"
#include "tests/cpp/temporary_folder.h"

namespace penstock {
namespace {

struct TarSourceTest : ::testing::Test {
  // {"key": ..., then its fields}, or "<lost>".
  static std::string text_of(const testing::Made& element, const std::vector<std::string>& names) {
    if (!element) return "<lost>";
    std::string text;
    for (const std::string& name : names) {
      const auto bytes = element->at(name).as_span<const uint8_t>();
      text += (text.empty() ? "" : " ") + std::string(bytes.begin(), bytes.end());
    }
    return text;
  }
  std::vector<std::string> all(const Node::Ref& node,
                               const std::vector<std::string>& names = {"__key__", "jpg", "cls"}) {
    testing::StreamReading reading(node, 0, files);
    reading.reader().begin(0);
    std::vector<std::string> made;
    errors.clear();
    for (std::vector<testing::Made> some; !(some = reading.next(7)).empty();) {
      for (const testing::Made& element : some) made.push_back(text_of(element, names));
      for (const auto& [row, failure] : reading.failures()) {
        try {
          std::rethrow_exception(failure.error);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Code::kDataLoss) << error.what();
          errors.push_back(error.what());
        }
      }
    }
    return made;
  }
  std::vector<std::string> samples(int begin, int end) {
    std::vector<std::string> expected;
    for (int i = begin; i < end; ++i) {
      const std::string key = "in/" + std::to_string(i);
      expected.push_back(key + " jpg of " + key + " " + std::to_string(i % 10));
    }
    return expected;
  }
  std::string& write(const std::string& path, int begin, int end) {
    TarWriter writer(*files, path);
    for (int i = begin; i < end; ++i) {
      const std::string key = "in/" + std::to_string(i), jpg = "jpg of " + key,
                        cls = std::to_string(i % 10);
      const TarWriter::Field fields[] = {{"jpg", std::as_bytes(std::span(jpg))},
                                         {"cls", std::as_bytes(std::span(cls))}};
      writer.write(key, fields);
    }
    writer.close();
    return (*files)[path];
  }
  void expect_error(const std::vector<std::string>& parts, size_t number = 0) {
    ASSERT_GT(errors.size(), number);
    for (const std::string& part : parts) {
      EXPECT_NE(errors[number].find(part), std::string::npos) << errors[number];
    }
  }
  Code code(const std::function<void()>& what) {
    try {
      what();
    } catch (const Error& error) {
      return error.code();
    }
    return Code::kInternal;
  }

  std::shared_ptr<MemoryFiles> files = std::make_shared<MemoryFiles>();
  std::vector<std::string> errors;
};

TEST_F(TarSourceTest, samples_come_archive_after_archive) {
  write("s-00.tar", 0, 70);
  write("s-01.tar", 70, 70);
  write("s-02.tar", 70, 100);
  for (Paths paths : {Paths("s-{00..02}.tar"), Paths("s-*.tar"), Paths({"s-00.tar", "s-02.tar"})}) {
    for (bool stream : {false, true}) {
      EXPECT_EQ(all(nodes::tar(paths, {.stream = stream})), samples(0, 100));
    }
  }
  const Node::Ref node = nodes::tar("s-{00..02}.tar", {});
  EXPECT_EQ(node->title, "tar(s-00.tar, s-01.tar, s-02.tar)");
  const Built built = Builder(files).build(*node);
  EXPECT_EQ(built.indexed->spec()->to_string(), "{__key__: text, jpg: bytes, cls: bytes}");
  EXPECT_EQ(built.indexed->length(0), 100u);
  testing::check_stream(nodes::tar("s-*", {}), 400, 3, files);
  testing::check_stream(nodes::tar("s-*", {.stream = true}), 400, 3, files);
}

TEST_F(TarSourceTest, compressed_archives_are_a_stream) {
  const std::string plain = write("a.tgz", 0, 50);
  (*files)["a.tgz"] = compressed(plain, Compression::kGzip);
  const Node::Ref node = nodes::tar("a.tgz", {});
  EXPECT_TRUE(Builder(files).build(*node).stream != nullptr);
  EXPECT_EQ(all(node), samples(0, 50));
  testing::check_stream(node, 400, 3, files);
  std::string& bytes = (*files)["a.tgz"];
  bytes.resize(bytes.size() / 2);
  const std::vector<std::string> some = all(node);
  ASSERT_FALSE(some.empty());
  EXPECT_EQ(some.back(), "<lost>");
  expect_error({"a.tgz, record "});
}

TEST_F(TarSourceTest, fields_are_chosen_and_ordered) {
  TarBytes tar;
  tar.add("a.jpg", "A").add("a.json", "{}").add("a.cls", "1");
  tar.add("b.cls", "2").add("b.jpg", "B").end();
  (*files)["file"] = tar.bytes;
  const Node::Ref node = nodes::tar("file", {.fields = {"cls", "jpg"}});
  EXPECT_EQ(node->title, "tar(file, fields=['cls', 'jpg'])");
  EXPECT_EQ(Builder(files).build(*node).indexed->spec()->to_string(),
            "{__key__: text, cls: bytes, jpg: bytes}");
  EXPECT_EQ(all(node), (std::vector<std::string>{"a A 1", "b B 2"}));
  for (const char* name : {"", "JPG", "a/b"}) {
    EXPECT_EQ(code([&] { nodes::tar("file", {.fields = {name}}); }), Code::kInvalidArgument)
        << name;
  }
  EXPECT_EQ(code([&] { nodes::tar("file", {.fields = {"x", "x"}}); }), Code::kInvalidArgument);
  EXPECT_EQ(code([&] { nodes::tar("file", {.fields = {"__key__"}}); }), Code::kInvalidArgument);
}

TEST_F(TarSourceTest, a_sample_with_other_fields_is_lost_alone) {
  TarBytes tar;
  tar.add("a.jpg", "A").add("a.cls", "1").add("b.jpg", "B");
  tar.add("c.cls", "3").add("c.jpg", "C").add("d.jpg", "D").add("d.cls", "4").add("d.txt", "t");
  tar.add("e.jpg", "E").add("e.cls", "5").end();
  (*files)["file"] = tar.bytes;
  for (bool stream : {false, true}) {
    EXPECT_EQ(all(nodes::tar("file", {.stream = stream})),
              (std::vector<std::string>{"a A 1", "<lost>", "c C 3", "<lost>", "e E 5"}));
    ASSERT_EQ(errors.size(), 2u);
    expect_error(
        {"file, record 1 at byte 2048 (1024 bytes)", "sample 'b' has no 'cls', only 'jpg'"});
    expect_error({"sample 'd' has 'txt'", "the first sample 'jpg', 'cls'", "fields="}, 1);
  }
  EXPECT_EQ(all(nodes::tar("file", {.fields = {"jpg"}}), {"__key__", "jpg"}),
            (std::vector<std::string>{"a A", "b B", "c C", "d D", "e E"}));
}

TEST_F(TarSourceTest, damage_costs_one_sample_and_says_where) {
  std::string& bytes = write("file", 0, 100);
  bytes[2048 * 40] ^= 1;
  bytes[2048 * 60 + 1024] ^= 1;
  std::vector<std::string> expected = samples(0, 100);
  expected[40] = expected[60] = "<lost>";
  EXPECT_EQ(all(nodes::tar("file", {})), expected);
  expect_error(
      {"file, record 40 at byte 81920 (2048 bytes)", "at byte 81920: the checksum of a header"});
  expect_error({"file, record 60 ", "at byte 123904: the checksum", "behind entry 'in/60.jpg'"}, 1);
  // After it was indexed it is cut, and changed.
  const Node::Ref node = nodes::tar("file", {});
  Builder builder(files);
  builder.build(*node);
  bytes.resize(2048 * 98 + 700);
  bytes[2048 * 90] ^= 1;
  expected[90] = expected[98] = expected[99] = "<lost>";
  EXPECT_EQ(all(node), expected);
  expect_error({"file, record 90", "the checksum of a header does not match"}, 2);
  expect_error({"file, record 98"}, 3);
}

TEST_F(TarSourceTest, an_index_beside_them_is_read_and_not_made) {
  std::string& bytes = write("file", 0, 50);
  bytes[2048 * 20] ^= 1;
  const TarOptions beside{.index = "beside"};
  const std::vector<std::string> expected = all(nodes::tar("file", {}));
  const std::vector<std::string> lost = errors;
  EXPECT_EQ(all(nodes::tar("file", beside)), expected);
  EXPECT_EQ(files->list("").size(), 2u);
  EXPECT_EQ((*files)["file.penstock-index"].substr(8, 8), std::string("tar\0\0\0\0\0", 8));
  int reads = 0;
  files->before_read("file", [&] { ++reads; });
  Builder(files).build(*nodes::tar("file", beside));
  EXPECT_EQ(reads, 2) << "its first bytes, and its first sample's headers";
  EXPECT_EQ(all(nodes::tar("file", beside)), expected);
  EXPECT_EQ(errors, lost);
}

TEST_F(TarSourceTest, who_is_told_what_was_found_opens_nothing) {
  write("a", 0, 30);
  for (bool stream : {false, true}) {
    Builder first(files);
    const Node::Ref node = nodes::tar("a", {.stream = stream});
    first.build(*node);
    const os::Fd written = write_found_files(first.found());
    auto elsewhere = std::make_shared<MemoryFiles>();
    Builder second(elsewhere);
    second.give(read_found_files(written, second.pool()));
    const Built built = second.build(*nodes::tar("a", {.stream = stream}));
    EXPECT_EQ(elsewhere->opened, 0);
    const SpecRef spec = stream ? built.stream->spec() : built.indexed->spec();
    EXPECT_EQ(spec->to_string(), "{__key__: text, jpg: bytes, cls: bytes}");
  }
}

TEST_F(TarSourceTest, an_archive_without_samples_has_no_fields) {
  (*files)["empty"] = TarBytes().end().bytes;
  EXPECT_EQ(Builder(files).build(*nodes::tar("empty", {})).indexed->length(0), 0u);
  write("full", 0, 3);
  EXPECT_EQ(all(nodes::tar({"empty", "full"}, {})), samples(0, 3));
  (*files)["none"] = std::string(3000, 'x');
  EXPECT_EQ(all(nodes::tar("none", {}), {"__key__"}), std::vector<std::string>{"<lost>"});
  expect_error({"none, record 0 at byte 0", "the checksum of a header does not match"});
}

TEST_F(TarSourceTest, a_loader_batches_them) {
  const testing::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  std::ofstream(folder + "/a.tar", std::ios::binary) << write("a", 0, 100);
  for (uint32_t workers : {0, 2}) {
    Loader feed =
        Dataset::tar(folder + "/a.tar").shuffle({.seed = 3}).batch(100).build({.workers = workers});
    auto batch = feed.next();
    ASSERT_TRUE(batch);
    const auto bytes = batch->at("cls").as_span<const uint8_t>();
    EXPECT_EQ(bytes.size(), 100u);
    EXPECT_FALSE(std::equal(bytes.begin(), bytes.begin() + 10, "0123456789"));
  }
}

}  // namespace
}  // namespace penstock
