#include "penstock/io/lines.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>

#include "../../io/tfrecords.h"
#include "../stages/stream_contract.h"
#include "penstock/base/error.h"
#include "penstock/io/lines.h"
#include "penstock/io/record_index.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

// A plain implementation of lines.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::string line;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\n') line += text[i];
    if (text[i] != '\n' && i + 1 < text.size()) continue;
    if (text[i] == '\n' && !line.empty() && line.back() == '\r') line.pop_back();
    lines.push_back(std::exchange(line, {}));
  }
  return lines;
}

struct Lines : ::testing::Test {
  std::vector<std::string> all(const Node::Ref& node, size_t step = 64) {
    IndexedRef stage = Builder(files).build(*node).indexed;
    EXPECT_EQ(stage->spec()->leaves()[0].kind, LeafKind::kText);
    auto reader = stage->reader(context);
    std::vector<std::string> made;
    failures.clear();
    for (uint64_t begin = 0; begin < stage->length(0); begin += step) {
      std::vector<uint64_t> positions(std::min<uint64_t>(step, stage->length(0) - begin));
      std::iota(positions.begin(), positions.end(), begin);
      chunk.reset(stage->spec(), static_cast<uint32_t>(positions.size()));
      reader->fetch({}, positions, chunk, 0);
      for (uint32_t row = 0; row < positions.size(); ++row) {
        if ((chunk.alive() >> row & 1) == 0) {
          made.push_back("<lost>");
          continue;
        }
        made.emplace_back(reinterpret_cast<const char*>(chunk.at(0, row)),
                          static_cast<size_t>(chunk.shape(0, row)[0]));
      }
      for (auto& [row, failure] : chunk.failures()) failures.push_back(failure);
    }
    return made;
  }

  std::shared_ptr<MemoryFiles> files = std::make_shared<MemoryFiles>();
  Scratch scratch;
  Context context{scratch};
  Chunk chunk{scratch};
  std::vector<Failure> failures;
};

TEST_F(Lines, building_can_be_stopped_and_leaves_nothing) {
  for (char i = 'a'; i < 'e'; ++i) (*files)[std::string(1, i)] = std::string(1 << 20, '\n');
  Progress progress;
  std::atomic<int> reads = 0;
  files->before_read("c", [&] { progress.stop = ++reads == 2; });
  LineOptions options;
  options.index = "beside";
  const Node::Ref node = nodes::lines({"a", "b", "c", "d"}, options);
  const Error error = testing::error_of([&] { Builder(files, true, &progress).build(*node); });
  EXPECT_EQ(error.code(), Code::kClosed);
  EXPECT_EQ(reads, 2);
  EXPECT_THROW((void)files->open("c" + std::string(kIndexSuffix)), Error);
  progress.stop = false;
  EXPECT_EQ(Builder(files, true, &progress).build(*node).indexed->length(0), 4u << 20);
}

TEST_F(Lines, end_with_lf_or_cr_lf_or_the_file) {
  for (std::string text : {"", "\n", "a", "a\n", "a\r\n", "a\r", "\r\n", "\n\n", "a\n\nb", "a\rb\n",
                           "a\nb\r\n\r\nc", "\r\r\n", "\na"}) {
    (*files)["file"] = text;
    EXPECT_EQ(all(nodes::lines("file", {})), lines_of(text)) << text;
  }
}

TEST_F(Lines, have_an_index_beside_the_file_if_asked_for) {
  for (std::string text : {"", "\n", "a", "a\r\n\nb"}) {
    (*files)["file"] = text;
    const LineOptions beside{.compression = "none", .index = "beside"};
    EXPECT_EQ(all(nodes::lines("file", beside)), lines_of(text)) << text;
    bool built = false;
    files->before_read("file", [&] {
      if (!built) throw Error(Code::kInternal, "read", "it was gone over again");
    });
    const Node::Ref again = nodes::lines("file", beside);
    Builder(files).build(*again);
    built = true;
    EXPECT_EQ(all(again), lines_of(text)) << text;
    files->before_read("file", {});
  }
}

TEST_F(Lines, of_many_files_are_one_range_whatever_their_lengths) {
  std::mt19937 random(1);
  std::vector<std::string> expected;
  for (char name = 'a'; name < 'f'; ++name) {
    std::string& text = (*files)[std::string("in/") + name];
    for (int i = 0; i < 300; ++i) {
      text.append(i == 77 ? 600'000 : random() % 100, static_cast<char>('a' + i % 26));
      text += random() % 3 == 0 ? "\r\n" : "\n";
    }
    if (name == 'c') text += "without an end";
    for (std::string& line : lines_of(text)) expected.push_back(line);
  }
  const Node::Ref node = nodes::lines("in/*", {});
  EXPECT_EQ(node->title, "lines(*)");
  EXPECT_EQ(all(node), expected);
  EXPECT_EQ(all(node, 7), expected);
}

TEST_F(Lines, that_are_others_than_when_indexed_are_lost) {
  std::string& text = (*files)["file"];
  text = "one\ntwo\nthree\nfour";
  const Node::Ref node = nodes::lines("file", {});
  EXPECT_EQ(all(node), lines_of(text));
  text = "one\nt\no\nthree\nfour";  // a line end inside a line
  EXPECT_EQ(all(node), (std::vector<std::string>{"one", "<lost>", "three", "four"}));
  text = "one\ntwoo\nthree\nfour";  // all later lines have moved
  EXPECT_EQ(all(node), (std::vector<std::string>{"one", "<lost>", "<lost>", "<lost>"}));
  text = "one\ntwo\nthr";
  EXPECT_EQ(all(node), (std::vector<std::string>{"one", "two", "<lost>", "<lost>"}));
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures[0].stage, "lines(file)");
  try {
    std::rethrow_exception(failures[0].error);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kDataLoss);
    EXPECT_NE(std::string(error.what()).find("lines: file, record 2 at byte 8 (6 bytes)"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(Lines, that_are_no_utf8_are_lost_indexed_and_as_a_stream) {
  (*files)["file"] = "one\n\xff\r\nt\xc3\xbcrkis\ncaf\xe9";
  const std::vector<std::string> expected{"one", "<lost>", "t\xc3\xbcrkis", "<lost>"};
  const std::string wanted[] = {
      "lines: file, record 1 at byte 4 (3 bytes): the line is not UTF-8",
      "lines: file, record 3 at byte 15 (4 bytes): the line is not UTF-8"};
  EXPECT_EQ(all(nodes::lines("file", {})), expected);
  ASSERT_EQ(failures.size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(testing::text_of(failures[i]), wanted[i]);
  const auto node = nodes::lines("file", LineOptions{.stream = true});
  testing::StreamReading reading(node, 0, files);
  reading.reader().begin(0);
  reading.next(4);
  ASSERT_EQ(reading.failures().size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(testing::text_of(reading.failures()[i].second), wanted[i]);
  }
  testing::check_stream(node, 400, 3, files);
}

TEST_F(Lines, of_compressed_files_are_a_stream) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "line " + std::to_string(i) + (i % 3 == 0 ? "\r\n" : "\n");
  (*files)["a"] = compressed(text, Compression::kGzip);
  (*files)["b"] = compressed("x^ is text, and \r\nnot zlib", Compression::kZlib);
  (*files)["c"] = "x^";  // a zlib file may begin so
  EXPECT_EQ(all(nodes::lines("c", {})), std::vector<std::string>{"x^"});
  const auto gzip = nodes::lines(Paths{"a", "c"}, LineOptions{});
  testing::check_stream(gzip, 400, 3, files);
  const auto zlib = nodes::lines("b", LineOptions{.compression = "zlib"});
  testing::StreamReading reading(zlib, 0, files);
  EXPECT_EQ(reading.epoch().size(), 2u);
  const auto plain = nodes::lines("c", LineOptions{.stream = true});
  EXPECT_EQ(plain->title, "lines(c, stream)");
  testing::check_stream(plain, 400, 3, files);
}

TEST_F(Lines, files_that_are_not_there) {
  EXPECT_THROW(nodes::lines("file", {.compression = "brotli"}), Error);
  Error error = testing::error_of([&] { Builder(files).build(*nodes::lines("none", {})); });
  EXPECT_STREQ(error.what(), "open: no such file: none");
  error = testing::error_of([&] { Builder(files).build(*nodes::lines("no*", {})); });
  EXPECT_STREQ(error.what(), "glob: no file matches no*");
  (*files)["gone"] = "";
  const LineOptions unseen{.compression = "none", .stream = true};
  const auto gone = nodes::lines("gone", unseen);
  Builder(files).build(*gone);
  files->remove("gone");
  testing::StreamReading reading(gone, 0, files);
  EXPECT_EQ(reading.epoch().size(), 1u);
  reading.reader().begin(0);
  reading.next(1);
  EXPECT_NE(testing::text_of(reading.failures()[0].second).find("no such file"), std::string::npos);
}

}  // namespace
}  // namespace penstock
