#include <gtest/gtest.h>

#include <thread>

#include "../../io/tfrecords.h"
#include "../stages/stream_contract.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

using testing::error_of;

std::string text_of(const Chunk& chunk, uint32_t row) {
  return {reinterpret_cast<const char*>(chunk.at(0, row)),
          static_cast<size_t>(chunk.shape(0, row)[0])};
}

Error error_of(const Failure& failure) {
  return testing::error_of([&] { std::rethrow_exception(failure.error); });
}

struct TFRecordSource : ::testing::Test, TFRecords {
  // All elements, with <lost> for lost ones.
  std::vector<std::string> all(const Node::Ref& node) {
    Builder builder(files);
    IndexedRef stage = builder.build(*node).indexed;
    std::unique_ptr<IndexedReader> reader = stage->reader(context);
    std::vector<std::string> made;
    failures.clear();
    for (uint64_t begin = 0; begin < stage->length(0); begin += Chunk::kRows) {
      std::vector<uint64_t> positions(std::min<uint64_t>(64, stage->length(0) - begin));
      std::iota(positions.begin(), positions.end(), begin);
      chunk.reset(stage->spec(), static_cast<uint32_t>(positions.size()));
      reader->fetch({}, positions, chunk, 0);
      for (uint32_t row = 0; row < positions.size(); ++row) {
        made.push_back(chunk.alive() >> row & 1 ? text_of(chunk, row) : "<lost>");
      }
      for (auto& [row, failure] : chunk.failures()) failures.push_back(failure);
      scratch.empty();
    }
    return made;
  }

  static std::vector<std::string> texts(const std::vector<testing::Made>& elements) {
    std::vector<std::string> made;
    for (const testing::Made& element : elements) {
      auto bytes = element ? element->at("").as_span<const uint8_t>() : std::span<const uint8_t>();
      made.push_back(element ? std::string(bytes.begin(), bytes.end()) : "<lost>");
    }
    return made;
  }

  Scratch scratch;
  Context context{scratch};
  Chunk chunk{scratch};
  std::vector<Failure> failures;
};

TEST_F(TFRecordSource, records_are_byte_strings_file_after_file) {
  std::vector<std::string> expected;
  for (size_t i = 0; i < 5; ++i) {
    auto some = payloads(i == 2 ? 0 : 40 * i + 3, i);
    write("in/part-" + std::to_string(i), some);
    expected.insert(expected.end(), some.begin(), some.end());
  }
  const Node::Ref node = nodes::tfrecord("in/part-*", {});
  EXPECT_EQ(all(node), expected);
  Built built = Builder(files).build(*node);
  EXPECT_EQ(built.indexed->spec()->to_string(), "{: bytes}");
  EXPECT_FALSE(built.indexed->costly());
}

TEST_F(TFRecordSource, what_one_fetch_made_outlives_the_next) {
  auto some = payloads(130);
  write("file", some);
  Builder builder(files);
  IndexedRef stage = builder.build(*nodes::tfrecord("file", {})).indexed;
  auto reader = stage->reader(context);
  // One chunk that is made in pieces, as by concatenate, and chunks that are used together, as for
  // a batch of strings.
  Chunk other(scratch);
  std::vector<uint64_t> positions{3, 129, 7}, more{64, 65, 66, 2};
  chunk.reset(stage->spec(), 7);
  reader->fetch({}, positions, chunk, 0);
  reader->fetch({}, more, chunk, 3);
  other.reset(stage->spec(), 3);
  reader->fetch({}, std::vector<uint64_t>{10, 11, 12}, other, 0);
  positions.insert(positions.end(), more.begin(), more.end());
  for (uint32_t row = 0; row < 7; ++row) EXPECT_EQ(text_of(chunk, row), some[positions[row]]);
  for (uint32_t row = 0; row < 3; ++row) EXPECT_EQ(text_of(other, row), some[10 + row]);
}

TEST_F(TFRecordSource, it_is_indexed_once_whoever_builds_it) {
  for (char name : {'a', 'b', 'c'}) write(std::string(1, name), payloads(20));
  const Node::Ref node = nodes::tfrecord({"a", "b", "c"}, {});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_EQ(Builder(files).build(*node).indexed->length(0), 60u); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(files->opened, 3);
  EXPECT_EQ(all(node).size(), 60u);
  EXPECT_EQ(files->opened, 6) << "the plans that had them open are gone";

  auto elsewhere = std::make_shared<MemoryFiles>();
  for (char name : {'a', 'b', 'c'}) (*elsewhere)[std::string(1, name)] = "";
  EXPECT_EQ(Builder(elsewhere).build(*node).indexed->length(0), 0u);
}

TEST_F(TFRecordSource, what_is_known_beforehand_is_an_error_of_the_build) {
  std::vector<std::string> paths;
  for (int i = 0; i < 100; ++i) {
    paths.push_back("file-" + std::to_string(i));
    write(paths.back(), payloads(3));
  }
  auto build = [&](Paths what) { Builder(files).build(*nodes::tfrecord(std::move(what), {})); };
  EXPECT_EQ(error_of([&] { build("nothing-*"); }).code(), Code::kNotFound);
  files->before_read("file-57", [] { throw Error(Code::kSystem, "read", "file-57: it burns"); });
  Error error = error_of([&] { build("file-*"); });
  EXPECT_EQ(error.code(), Code::kSystem);
  EXPECT_STREQ(error.what(), "read: file-57: it burns");
  files->remove("file-3");
  error = error_of([&] { build(paths); });
  EXPECT_EQ(error.code(), Code::kNotFound);
  EXPECT_NE(std::string(error.what()).find("file-3"), std::string::npos);
  files->before_read("file-57", {});
  build("file-*");
}

TEST_F(TFRecordSource, arguments_that_cannot_be) {
  auto code = [](Paths paths, TFRecordOptions options) {
    return error_of([&] { nodes::tfrecord(paths, options); }).code();
  };
  EXPECT_EQ(code(std::vector<std::string>{}, {}), Code::kInvalidArgument);
  EXPECT_EQ(code("x", {.compression = "brotli"}), Code::kInvalidArgument);
  EXPECT_EQ(code("x", {.index = "besides"}), Code::kInvalidArgument);
  EXPECT_EQ(code("x", {.stream = true, .index = "beside"}), Code::kInvalidArgument);
}

TEST_F(TFRecordSource, a_title_names_the_files_and_opens_none) {
  EXPECT_EQ(nodes::tfrecord("train-*.tfrecord", {})->title, "tfrecord(train-*.tfrecord)");
  EXPECT_EQ(nodes::tfrecord({"a", "b", "c"}, {})->title, "tfrecord(a, b, c)");
  const std::string many = nodes::tfrecord({"a", "b", "c", "d", "e"}, {})->title;
  EXPECT_TRUE(many.starts_with("tfrecord(a, b, c, and 2 more: ")) << many;
  EXPECT_NE(nodes::tfrecord({"a", "b", "c", "d", "f"}, {})->title, many);
  EXPECT_NE(nodes::tfrecord({"a", "b", "c", "de", ""}, {})->title, many);
}

TEST_F(TFRecordSource, an_index_beside_the_files_is_made_once_and_has_all_damage) {
  for (size_t i = 0; i < 3; ++i) write("in/part-" + std::to_string(i), payloads(40, i));
  std::string& bytes = (*files)["in/part-1"];
  const RecordIndex where = index("in/part-1");
  bytes[where.at(10).offset] ^= 1;
  bytes[where.at(20).offset + 14] ^= 1;
  bytes.resize(bytes.size() - 1);
  const TFRecordOptions beside{.compression = "none", .index = "beside"};
  EXPECT_EQ(nodes::tfrecord("in/*", beside)->title, nodes::tfrecord("in/*", {})->title);

  const std::vector<std::string> expected = all(nodes::tfrecord("in/*", {}));
  const std::vector<Failure> lost = failures;
  ASSERT_EQ(lost.size(), 3u);
  EXPECT_EQ(files->list("in/").size(), 3u);
  EXPECT_EQ(all(nodes::tfrecord("in/*", beside)), expected);
  EXPECT_EQ(files->list("in/").size(), 6u);
  // Another run, in another process: no byte of the files is read before it begins.
  bool built = false;
  for (size_t i = 0; i < 3; ++i) {
    files->before_read("in/part-" + std::to_string(i), [&] {
      if (!built) throw Error(Code::kInternal, "read", "it was gone over again");
    });
  }
  const Node::Ref again = nodes::tfrecord("in/*", beside);
  EXPECT_EQ(Builder(files).build(*again).indexed->length(0), 120u);
  built = true;
  EXPECT_EQ(all(again), expected);
  ASSERT_EQ(failures.size(), lost.size());
  for (size_t i = 0; i < lost.size(); ++i) {
    EXPECT_EQ(failures[i].position, lost[i].position);
    EXPECT_STREQ(error_of(failures[i]).what(), error_of(lost[i]).what());
  }
}

TEST_F(TFRecordSource, compressed_files_have_no_index_beside_them) {
  (*files)["file"] = compressed(write("file", payloads(30)), Compression::kGzip);
  const Node::Ref node = nodes::tfrecord("file", {.index = "beside"});
  EXPECT_TRUE(Builder(files).build(*node).stream != nullptr);
  EXPECT_EQ(files->list(""), std::vector<std::string>{"file"});
}

TEST_F(TFRecordSource, a_record_that_is_wrong_fails_alone_at_its_place) {
  auto some = payloads(100);
  std::string& bytes = write("file", some);
  const RecordIndex where = index("file");
  bytes[where.at(70).offset + 14] ^= 1;
  const Node::Ref node = nodes::tfrecord("file", {});
  std::vector<std::string> expected = some;
  expected[70] = "<lost>";
  EXPECT_EQ(all(node), expected);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].stage, "tfrecord(file)");
  EXPECT_EQ(failures[0].position, 70u);
  Error error = error_of(failures[0]);
  EXPECT_EQ(error.code(), Code::kDataLoss);
  for (std::string part :
       {std::string("file, record 70"), "byte " + std::to_string(where.at(70).offset),
        "(" + std::to_string(where.at(70).bytes) + " bytes)", std::string("checksum")}) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }

  bytes.resize(where.at(98).offset + 5);  // after it was indexed
  expected[98] = expected[99] = "<lost>";
  EXPECT_EQ(all(node), expected);
  ASSERT_EQ(failures.size(), 3u);
  EXPECT_EQ(error_of(failures[1]).code(), Code::kDataLoss);
}

TEST_F(TFRecordSource, compressed_files_are_a_stream_and_tell_so_themselves) {
  std::vector<std::string> paths{"plain", "gzip", "zlib", "none", "named.gz"};
  for (size_t i = 0; i < paths.size(); ++i) write(paths[i], payloads(i == 3 ? 0 : 30, i));
  (*files)["gzip"] = compressed((*files)["gzip"], Compression::kGzip);
  (*files)["zlib"] = compressed((*files)["zlib"], Compression::kZlib);
  std::vector<std::string> expected;
  for (size_t i : {0, 1, 2, 4}) {
    for (std::string& payload : payloads(30, i)) expected.push_back(payload);
  }
  const auto made = nodes::tfrecord(Paths(paths), TFRecordOptions{});
  testing::StreamReading reading(made, 0, files);
  EXPECT_FALSE(reading.stage().length());
  EXPECT_EQ(texts(reading.epoch()), expected);
  testing::check_stream(made, 400, 3, files);
  // A given compression applies to all files, whatever their bytes are.
  const auto wrong = nodes::tfrecord("plain", TFRecordOptions{.compression = "gzip"});
  testing::StreamReading other(wrong, 0, files);
  EXPECT_EQ(texts(other.epoch()), std::vector<std::string>{"<lost>"});
  const auto none = nodes::tfrecord("gzip", TFRecordOptions{.compression = "none"});
  EXPECT_EQ(all(none), std::vector<std::string>{"<lost>"});
}

TEST_F(TFRecordSource, as_a_stream_it_gives_what_it_gives_indexed) {
  std::vector<std::string> paths;
  for (size_t i = 0; i < 3; ++i) {
    paths.push_back("file-" + std::to_string(i));
    write(paths.back(), payloads(50, i));
  }
  (*files)["file-1"][300] ^= 1;
  const auto made = nodes::tfrecord("file-*", TFRecordOptions{.stream = true});
  EXPECT_EQ(made->title, "tfrecord(file-*, stream)");
  testing::StreamReading reading(made, 0, files);
  EXPECT_EQ(texts(reading.epoch()), all(nodes::tfrecord("file-*", {})));
  reading.reader().begin(0);
  std::vector<Failure> stream;
  while (!reading.next(20).empty()) {
    for (const auto& [row, failure] : reading.failures()) stream.push_back(failure);
  }
  ASSERT_EQ(stream.size(), 1u);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(stream[0].position, failures[0].position);
  EXPECT_STREQ(error_of(stream[0]).what(), error_of(failures[0]).what());
  testing::check_stream(made, 400, 3, files);
}

}  // namespace
}  // namespace penstock
