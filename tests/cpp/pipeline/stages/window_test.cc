// Windows over a stream; those over an indexed plan are in batches_test.cc.
#include <gtest/gtest.h>

#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "streams.h"

namespace penstock::testing {
namespace {

namespace ref = reference;

void check_windows(const Node::Ref& input, const ref::Dataset& expected,
                   const WindowOptions& options) {
  auto windows = nodes::window(input, options);
  StreamReading reading(windows, 3);
  for (uint64_t epoch : {0, 1}) {
    const ref::Lists lists =
        ref::window(expected, options.size, options.shift == 0 ? options.size : options.shift,
                    options.stride, options.drop_last, epoch);
    for (uint32_t most : {1u, 5u, Chunk::kRows}) {
      const std::vector<Made> made = reading.epoch(epoch, most);
      ASSERT_EQ(made.size(), lists.size()) << windows->title;
      for (size_t i = 0; i < made.size(); ++i) {
        ASSERT_EQ(numbers({made[i]}), lists[i]) << windows->title << ", window " << i;
      }
    }
  }
}

TEST(WindowStream, is_what_the_reference_says) {
  for (int64_t length : {0, 1, 12, 60, 260}) {
    for (uint64_t size : {1, 3, 70}) {
      for (uint64_t shift : {0, 1, 2, 5, 100}) {
        for (uint64_t stride : {1, 2, 4}) {
          for (bool drop : {false, true}) {
            check_windows(odds(length), ref_odds(length), {size, shift, stride, drop});
          }
        }
      }
    }
  }
}

TEST(WindowStream, keeps_its_place_at_every_window) {
  for (bool drop : {false, true}) {
    for (WindowOptions options :
         {WindowOptions{1, 1, 1, drop}, WindowOptions{3, 1, 1, drop}, WindowOptions{3, 2, 4, drop},
          WindowOptions{2, 7, 1, drop}, WindowOptions{2, 90, 3, drop},
          WindowOptions{70, 3, 1, drop}, WindowOptions{5, 5, 2, drop}}) {
      check_stream(nodes::window(odds(300), options));
    }
  }
  check_stream(nodes::window(odds(1), WindowOptions{.size = 3}));
  check_stream(
      nodes::window(nodes::repeat(odds(20), kEndless), WindowOptions{.size = 3, .shift = 2}));
  check_stream(
      nodes::repeat(nodes::window(odds(40), WindowOptions{.size = 3, .shift = 2, .stride = 3}), 3));
}

TEST(WindowStream, further_stages_work_on_it) {
  const WindowOptions options = {.size = 4, .shift = 1, .drop_last = true};
  check_stream(nodes::batch(nodes::window(odds(80), options), 3u, false));
  check_stream(nodes::window(nodes::window(odds(80), options), WindowOptions{.size = 2}));
  check_stream(nodes::take(nodes::window(odds(80), options), 5));
  check_stream(nodes::unbatch(nodes::window(odds(60), WindowOptions{.size = 4})), ref_odds(60));
  // With a tail before the window.
  auto doubled =
      nodes::map(odds(60), test::number_op([](int64_t n, const Keys&, uint32_t) { return 2 * n; }));
  check_stream(nodes::window(doubled, WindowOptions{.size = 3, .shift = 1}));
}

TEST(WindowStream, what_failed_is_handed_on_and_is_in_no_window) {
  StreamReading reading(nodes::window(faulty(13), WindowOptions{.size = 3, .shift = 2}));
  EXPECT_EQ(numbers(reading.epoch()),
            (std::vector<int64_t>{0, 1, 2, 2, 3, 4, 4, 5, 6, -1, 6, 8, 9, 9, 10, 11, 11, 12}));
  check_stream(nodes::window(faulty(150), WindowOptions{.size = 3, .shift = 1}));
  check_stream(nodes::window(faulty(150), WindowOptions{.size = 2, .shift = 9, .stride = 2}));
}

TEST(WindowStream, what_cannot_be_stacked_is_the_windows_failure) {
  std::vector<Example> elements;
  for (int64_t i = 0; i < 6; ++i) {
    elements.push_back(
        {{"x", tensor(Shape{i / 2}, std::vector<int64_t>(static_cast<size_t>(i / 2)))},
         {"number", tensor<int64_t>({}, {i})}});
  }
  auto stream = nodes::shuffle_buffer(nodes::items(elements), uint64_t{0}, uint64_t{1});
  StreamReading reading(nodes::window(stream, WindowOptions{.size = 2, .shift = 1}));
  EXPECT_EQ(numbers(reading.epoch(), "number"),
            (std::vector<int64_t>{0, 1, -1, 2, 3, -1, 4, 5, 5}));
  reading.reader().begin(0);
  for (int i = 0; i < 6 && (i == 0 || reading.failures().empty()); ++i) {
    (void)reading.next(Chunk::kRows);
  }
  ASSERT_FALSE(reading.failures().empty());
  EXPECT_EQ(reading.failures()[0].second.stage, "window(2, shift=1, stride=1)");
  EXPECT_EQ(reading.failures()[0].second.position, 1u);
}

TEST(WindowStream, strings_are_a_column_of_the_window) {
  auto texts = nodes::map(odds(30), std::make_shared<test::TextOp>());
  auto windows = nodes::window(texts, WindowOptions{.size = 4, .shift = 3});
  check_stream(windows);
  StreamReading reading(windows);
  EXPECT_EQ(numbers(reading.epoch(), "number").size(), 4u * 4 + 3);
  // unbatch separates them again.
  check_stream(nodes::unbatch(windows));
  StreamReading apart(nodes::unbatch(windows));
  for (const Made& element : apart.epoch()) {
    const auto text = element->at("text").as_span<const uint8_t>();
    EXPECT_EQ(std::string(text.begin(), text.end()),
              std::to_string(numbers({element}, "number")[0]));
  }
}

}  // namespace
}  // namespace penstock::testing
