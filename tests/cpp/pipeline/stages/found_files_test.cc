#include "penstock/pipeline/plan/found_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "../../io/tfrecords.h"
#include "penstock/pipeline/plan/plan.h"
#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "reading.h"
#include "tests/cpp/temporary_folder.h"

namespace penstock {
namespace {

using testing::error_of;

std::string lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += std::to_string(i) + std::string(i % 7, 'x') + "\n";
  return text;
}

// Builds these nodes twice: the second build gets the files and indices that the first one found,
// with the files in their state at that time.
struct FoundFilesTest : ::testing::Test {
  std::shared_ptr<MemoryFiles> files = std::make_shared<MemoryFiles>();

  os::Fd found_by(const Node::Ref& node) const {
    Builder builder(files);
    builder.build(*node);
    return write_found_files(builder.found());
  }
  Built given(const Node::Ref& node, const os::Fd& found) const {
    Builder builder(files);
    builder.give(read_found_files(found, builder.pool()));
    return builder.build(*node);
  }
  static uint64_t length(const Built& built) { return built.indexed->length(0); }
  static std::string origin(const Built& built, uint64_t position) {
    Scratch scratch;
    return built.indexed->origin(Context{scratch}, {}, position);
  }
};

TEST_F(FoundFilesTest, another_build_has_the_same_files_and_records) {
  (*files)["in/a"] = lines(150);
  (*files)["in/b"] = "";
  (*files)["in/c"] = lines(3);
  auto make = [] { return nodes::lines("in/*", LineOptions()); };
  const os::Fd found = found_by(make());
  (*files)["in/a"] = lines(4);
  (*files)["in/aa"] = lines(100);
  files->remove("in/c");
  const Built built = given(make(), found);
  EXPECT_EQ(length(built), 153u);
  EXPECT_EQ(origin(built, 149), "in/a, record 149");
  EXPECT_EQ(origin(built, 150), "in/c, record 0");
  EXPECT_EQ(length(given(make(), found_by(make()))), 104u);
}

TEST_F(FoundFilesTest, a_listing_arrives_as_it_was) {
  for (const char* name : {"a/1.png", "a/2.png", "b/1.jpg", "b/notes"})
    (*files)[std::string("in/") + name] = name;
  auto make = [] { return nodes::image_folder("in", {}); };
  const os::Fd found = found_by(make());
  (*files)["in/a/0.png"] = "";
  (*files)["in/aa/1.png"] = "";
  files->remove("in/b/1.jpg");
  const Built built = given(make(), found);
  EXPECT_EQ(length(built), 3u);
  EXPECT_EQ(origin(built, 2), "in/b/1.jpg");
  EXPECT_EQ(length(given(make(), found_by(make()))), 4u);
  auto named = [] { return nodes::files({"in/a/2.png", "in/a/1.png"}, std::nullopt, ""); };
  EXPECT_EQ(origin(given(named(), found_by(named())), 1), "in/a/1.png");
}

TEST_F(FoundFilesTest, an_index_of_any_size_arrives_as_it_was) {
  RecordIndex::Builder builder;
  std::vector<uint64_t> places;
  uint64_t next = 3;
  for (uint64_t i = 0; i < 300'000; ++i) {
    builder.add(next, i % 1000 == 7);
    places.push_back(next);
    next += i == 200'000 ? uint64_t{5} << 32 : 1 + i % 100;
  }
  std::vector<RecordIndex> indices(3);
  indices[0] = builder.finish(next);
  indices[1] = RecordIndex::equal(16, 7, 1000);
  auto pool = std::make_shared<FilePool>(files);
  FoundFiles of_all{
      std::make_shared<RecordFiles>(pool, std::vector<std::string>{"a", "ab", "abc"}, indices),
      nullptr,
      nullptr,
      {1, -2}};
  const auto found = std::make_shared<const FoundFiles>(of_all);
  const auto read = read_found_files(write_found_files(std::vector{found, found}), pool);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0], read[1]);
  EXPECT_EQ(read[0]->about, found->about);
  const RecordFiles& all = *read[0]->indexed;
  ASSERT_EQ(all.files(), 3u);
  EXPECT_EQ(all.path(2), "abc");
  for (size_t file = 0; file < 3; ++file) {
    ASSERT_EQ(all.index(file).size(), indices[file].size());
    EXPECT_EQ(all.index(file).file_bytes(), indices[file].file_bytes());
    for (uint64_t i = 0; i < indices[file].size(); ++i) {
      ASSERT_EQ(all.index(file).at(i), indices[file].at(i)) << i;
    }
  }
}

TEST_F(FoundFilesTest, a_source_that_comes_twice_is_given_once) {
  (*files)["file"] = lines(1000);
  auto source = [] { return nodes::lines("file", LineOptions()); };
  auto zip = [](const Node::Ref& one, const Node::Ref& other) {
    return nodes::zip(std::vector{one, other}, std::vector<std::string>{"a", "b"});
  };
  const Node::Ref shared = source();
  const os::Fd once = found_by(zip(shared, shared)), twice = found_by(zip(source(), source()));
  EXPECT_LT(lseek(once.get(), 0, SEEK_END) * 3 / 2, lseek(twice.get(), 0, SEEK_END));
  (*files)["file"] = lines(10);
  const Node::Ref again = source();
  for (const os::Fd* found : {&once, &twice}) {
    EXPECT_EQ(length(given(zip(again, again), *found)), 1000u);
    EXPECT_EQ(length(given(zip(source(), source()), *found)), 1000u);
  }
}

TEST_F(FoundFilesTest, a_stream_stays_one_and_no_file_is_opened) {
  (*files)["in/a"] = compressed(lines(20), Compression::kGzip);
  (*files)["in/b"] = lines(20);
  auto make = [] { return nodes::lines("in/*", LineOptions()); };
  const os::Fd found = found_by(make());
  files->remove("in/a");
  files->remove("in/b");
  const Built built = given(make(), found);
  EXPECT_NE(built.stream, nullptr);
}

TEST_F(FoundFilesTest, what_idx_files_say_of_their_rows_goes_along) {
  const std::string header{0, 0, 0x0B, 2, 0, 0, 0, 5, 0, 0, 0, 3};
  (*files)["rows"] = header + std::string(30, 'x');
  for (bool stream : {false, true}) {
    auto make = [&] { return nodes::idx("rows", IdxOptions{.stream = stream}); };
    const os::Fd found = found_by(make());
    const std::string before = std::exchange((*files)["rows"], "another file");
    const Built built = given(make(), found);
    const SpecRef spec = stream ? built.stream->spec() : built.indexed->spec();
    EXPECT_EQ(spec->to_string(), "{: int16 (3,)}");
    EXPECT_EQ(stream ? *built.stream->length() : length(built), 5u);
    (*files)["rows"] = before;
  }
}

TEST_F(FoundFilesTest, what_was_found_for_another_plan_is_refused) {
  (*files)["file"] = lines(10);
  auto source = [] { return nodes::lines("file", LineOptions()); };
  const os::Fd found = found_by(source());
  const auto two =
      nodes::zip(std::vector<Node::Ref>{source(), source()}, std::vector<std::string>{"a", "b"});
  EXPECT_EQ(error_of([&] { given(two, found); }).code(), Code::kInternal);
  auto pool = std::make_shared<FilePool>(files);
  const auto bytes = static_cast<uint64_t>(lseek(found.get(), 0, SEEK_END));
  for (uint64_t size = 0; size < bytes; size += 8) {
    std::string cut(size, '\0');
    ASSERT_EQ(pread(found.get(), cut.data(), size, 0), static_cast<ssize_t>(size));
    const os::Fd shorter = os::memory_file("test");
    ASSERT_EQ(write(shorter.get(), cut.data(), size), static_cast<ssize_t>(size));
    EXPECT_EQ(error_of([&] { read_found_files(shorter, pool); }).code(), Code::kInvalidArgument)
        << size;
  }
}

TEST_F(FoundFilesTest, a_reader_refuses_records_that_are_not_there) {
  (*files)["file"] = lines(10);
  Builder builder(files);
  const IndexedRef stage = builder.build(*nodes::lines("file", LineOptions())).indexed;
  Scratch scratch;
  Context context{scratch};
  Chunk chunk(scratch);
  chunk.reset(stage->spec(), 2);
  const std::vector<uint64_t> positions{10, 3};
  const auto reader = stage->reader(context);
  EXPECT_EQ(error_of([&] { reader->fetch({}, positions, chunk, 0); }).code(), Code::kInternal);
}

TEST(PlanOfFiles, is_the_same_in_a_process_that_comes_later) {
  const testing::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  std::ofstream(folder + "/a") << lines(100);
  auto make = [&] { return nodes::lines(folder + "/*", LineOptions()); };
  const Plan plan(*make());
  std::ofstream(folder + "/a") << lines(120);
  std::ofstream(folder + "/b") << lines(5);
  EXPECT_EQ(Plan(*make()).known_length(), 125u);
  EXPECT_EQ(Plan(*make(), false, nullptr, Plan::Given{plan.files_for_workers(), {}}).known_length(),
            100u);
}

}  // namespace
}  // namespace penstock
