#pragma once

// Reads a stream without an engine, and checks the contract of ElementReader: the same elements in
// portions of any size, from every place on in another reader, and with any amount of memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "reading.h"

namespace penstock::testing {

// A node as a stream, also if it is indexed, and a reader of it.
class StreamReading {
 public:
  // `share`: bytes of memory.
  explicit StreamReading(const Node::Ref& node, uint64_t seed = 0,
                         std::shared_ptr<FileSystem> files = posix_files(),
                         uint64_t share = UINT64_MAX)
      : builder_(std::move(files)),
        stage_(builder_.as_stream(builder_.build(*node))),
        memory_(share),
        context_{scratch_, seed} {
    context_.memory = &memory_;
    fresh();
  }

  const Streamed& stage() const { return *stage_; }
  ElementReader& reader() { return *reader_; }
  const StreamMemory& memory() const { return memory_; }
  // Another reader of the same stage.
  void fresh() { reader_ = stage_->reader(context_); }

  // The next elements, or none at the end. The reader's scratch is overwritten afterwards, as a
  // stream reader may do.
  std::vector<Made> next(uint32_t most) {
    Chunk chunk(scratch_);
    const uint32_t count = reader_->next(most, chunk);
    EXPECT_LE(count, most);
    if (count == 0) return {};
    EXPECT_EQ(chunk.rows(), count);
    std::vector<Made> made = elements_of(chunk, 0);
    failures_ = chunk.failures();
    scratch_.empty();
    std::memset(scratch_.take(64 << 10), 0xA5, 64 << 10);
    scratch_.empty();
    return made;
  }
  // Of the last next().
  const std::vector<std::pair<uint32_t, Failure>>& failures() const { return failures_; }

  // The rest, or `limit` elements of it.
  std::vector<Made> rest(uint32_t most = Chunk::kRows, size_t limit = 1000) {
    std::vector<Made> all;
    while (all.size() < limit) {
      std::vector<Made> made =
          next(static_cast<uint32_t>(std::min<uint64_t>(most, limit - all.size())));
      if (made.empty()) break;
      for (Made& element : made) all.push_back(std::move(element));
    }
    return all;
  }
  std::vector<Made> epoch(uint64_t number = 0, uint32_t most = Chunk::kRows, size_t limit = 1000) {
    reader_->begin(number);
    return rest(most, limit);
  }

 private:
  Builder builder_;
  StreamedRef stage_;
  StreamMemory memory_;
  Scratch scratch_;
  Context context_;
  std::unique_ptr<ElementReader> reader_;
  std::vector<std::pair<uint32_t, Failure>> failures_;
};

inline void expect_equal(std::span<const Made> made, std::span<const Made> expected,
                         const std::string& what) {
  ASSERT_EQ(made.size(), expected.size()) << what;
  for (size_t i = 0; i < made.size(); ++i) {
    ASSERT_TRUE(equal(made[i], expected[i])) << what << ", element " << i;
  }
}

// `limit`: the number of elements of each pass to check, because a stream may be endless.
inline void check_stream(const Node::Ref& node, size_t limit = 400, uint64_t seed = 3,
                         const std::shared_ptr<FileSystem>& files = posix_files()) {
  StreamReading reading(node, seed, files);
  const std::vector<Made> whole = reading.epoch(0, Chunk::kRows, limit);
  const bool ends = whole.size() < limit;
  const std::string title = node->title;
  if (ends) {
    EXPECT_TRUE(reading.next(1).empty()) << title << " is over, and stays so";
    if (auto length = reading.stage().length()) {
      EXPECT_EQ(*length, whole.size()) << title;
    }
  }
  const std::vector<Made> second = reading.epoch(1, 5, limit);
  for (uint32_t most : {1u, 3u, Chunk::kRows}) {
    expect_equal(reading.epoch(0, most, limit), whole, title + ", again");
  }
  StreamReading little(node, seed, files, 1);  // pulls one element at a time, and keeps none
  expect_equal(little.epoch(0, 5, limit), whole, title + ", with little memory");
  little.reader().begin(0);
  // The states before every element, and at the end.
  std::vector<std::string> states;
  StreamReading direct(node, seed, files);  // loads states directly, without JSON
  reading.reader().begin(0);
  for (size_t i = 0; i <= whole.size(); ++i) {
    const State state = reading.reader().save();
    states.push_back(state.dump());
    if (i % 8 == 0) {
      direct.reader().load(0, state);
      const size_t left = std::min<size_t>(whole.size() - i, 3);
      expect_equal(direct.rest(2, left), std::span(whole).subspan(i, left), title + ", not JSON");
      // With more memory than the state was saved with, and with less.
      direct.reader().load(0, little.reader().save());
      expect_equal(direct.rest(3, left), std::span(whole).subspan(i, left), title + ", with more");
      little.reader().load(0, state);
    }
    if (i < whole.size()) {
      const std::vector<Made> one = little.next(1);
      expect_equal(one, std::span(whole).subspan(i, 1), title + ", with little memory");
    }
    if (i < whole.size()) {
      ASSERT_EQ(reading.next(1).size(), 1u) << title << ", element " << i;
    }
  }
  for (size_t i = 0; i < states.size(); ++i) {
    const std::string place = title + " from " + std::to_string(i) + ": " + states[i];
    reading.fresh();
    reading.reader().load(0, State::parse(states[i]));
    const std::string saved = reading.reader().save().dump();
    // From some places the whole rest, from all others a part.
    const size_t left = std::min(i % 16 == 0 ? limit : size_t{70}, whole.size() - i);
    expect_equal(reading.rest(i % 2 == 0 ? 7 : Chunk::kRows, left),
                 std::span(whole).subspan(i, left), place);
    if (::testing::Test::HasFatalFailure()) return;
    if (ends && i + left == whole.size()) {
      EXPECT_TRUE(reading.next(1).empty()) << place;
    }
    // Saved immediately, and loaded by a reader at another position.
    reading.reader().load(0, State::parse(saved));
    expect_equal(reading.rest(1, std::min<size_t>(left, 3)),
                 std::span(whole).subspan(i, std::min<size_t>(left, 3)), place + ", saved again");
    if (::testing::Test::HasFatalFailure()) return;
  }
  expect_equal(reading.epoch(1, Chunk::kRows, limit), second, title + ", the next epoch");
  reading.fresh();
  expect_equal(reading.epoch(1, Chunk::kRows, limit), second, title + ", entered there");
  for (const char* wrong : {"{}", "[]", "null", "7", "{\"input\": 7}"}) {
    reading.fresh();
    EXPECT_THROW(reading.reader().load(0, State::parse(wrong)), Error) << title << ": " << wrong;
  }
}

// The same, and also checks that every epoch's numbers are those of `expected`.
inline void check_stream(const Node::Ref& node,
                         const std::function<std::vector<int64_t>(uint64_t epoch)>& expected,
                         size_t limit = 400, uint64_t seed = 3) {
  StreamReading reading(node, seed);
  for (uint64_t epoch : {0, 1, 5}) {
    std::vector<int64_t> numbers = expected(epoch);
    if (numbers.size() > limit) numbers.resize(limit);
    EXPECT_EQ(testing::numbers(reading.epoch(epoch, Chunk::kRows, limit)), numbers)
        << node->title << ", epoch " << epoch;
  }
  check_stream(node, limit, seed);
}

}  // namespace penstock::testing
