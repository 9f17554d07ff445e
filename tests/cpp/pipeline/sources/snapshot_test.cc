#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "../mended_snapshot.h"
#include "../ops.h"
#include "../snapshot_folder.h"
#include "../stages/reading.h"
#include "../stages/stream_contract.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/plan/plan.h"
#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

using testing::elements_of;
using testing::equal;
using testing::Made;
using testing::refusal_of;
using Numbers = std::vector<int64_t>;

class Snapshot : public testing::SnapshotFolder {
 protected:
  // All elements; nothing for failed ones, whose error must be a DataLoss that names file, place
  // and remedy.
  static std::vector<Made> elements(const Dataset& dataset) {
    Plan plan(*dataset.node());
    Scratch scratch;
    Context context{scratch};
    auto reader = plan.chain().reader(context);
    std::vector<Made> all;
    for (uint64_t i = 0; i < plan.chain().length(0); ++i) {
      Chunk chunk(scratch);
      chunk.reset(plan.chain().spec(), 1);
      reader->fetch({0, 0}, {&i, 1}, chunk, 0);
      all.push_back(elements_of(chunk, 0)[0]);
      for (const auto& [row, failure] : chunk.failures()) {
        try {
          std::rethrow_exception(failure.error);
        } catch (const Error& error) {
          const std::string text = error.what();
          EXPECT_EQ(error.code(), Code::kDataLoss) << text;
          EXPECT_NE(text.find("file, "), std::string::npos) << text;
          EXPECT_NE(text.find("byte "), std::string::npos) << text;
          EXPECT_NE(text.find("make it again"), std::string::npos) << text;
        }
      }
      scratch.empty();
    }
    return all;
  }

  static void go_through(const Dataset& dataset, uint32_t workers = 0) {
    Loader feed = dataset.build({.workers = workers});
    for (auto& element : feed.epoch()) (void)element;
  }
};

TEST_F(Snapshot, a_cache_in_a_file_is_made_once_and_gives_the_same_at_any_place) {
  for (uint32_t workers : {0u, 3u}) {
    std::filesystem::remove(path());
    std::atomic<int> calls{0};
    auto chain = [&] {
      return Dataset::range(0, 300)
          .map(std::make_shared<test::NumberOp>([&](int64_t n, const Keys&, uint32_t) {
            ++calls;
            return n * n;
          }))
          .map(std::make_shared<test::TextOp>());
    };
    go_through(chain().cache(path()), workers);
    // The next pass begins while the last elements of this one are being made.
    EXPECT_GE(calls, 300);
    EXPECT_LE(calls, workers == 0 ? 300 : 600);
    EXPECT_EQ(files(), 1u) << "and nothing hidden";
    const auto expected = elements(chain());
    calls = 0;
    const auto got = elements(Dataset::snapshot(path()));
    const auto again = elements(chain().cache(path()));
    ASSERT_EQ(got.size(), 300u);
    ASSERT_EQ(again.size(), 300u);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(equal(got[i], expected[i])) << i;
      EXPECT_TRUE(equal(again[i], expected[i])) << i;
    }
    auto batches = [&](const Dataset& dataset) {
      std::vector<std::string> all;
      Loader feed = dataset.shuffle({.seed = 4}).ragged_batch(7).build({.workers = workers});
      for (auto& batch : feed.epoch()) {
        auto bytes = batch.at("text").as_span<const uint8_t>();
        all.emplace_back(bytes.begin(), bytes.end());
      }
      return all;
    };
    EXPECT_EQ(batches(Dataset::snapshot(path())), batches(chain().cache(path())));
    EXPECT_EQ(calls, 0) << "all come from the file";
  }
}

TEST_F(Snapshot, while_it_fills_later_passes_take_what_is_there) {
  std::atomic<int> calls{0};
  std::atomic<bool> refusing{true};
  auto op = [&](const Example& element, SampleContext&) {
    ++calls;
    if (refusing && element.at("").as_span<const int64_t>()[0] == 70) {
      throw std::runtime_error("not yet");
    }
    return element;
  };
  Loader feed = Dataset::range(0, 100).map(op).cache(path()).build(
      {.workers = 0, .on_error = OnError::kSkip});
  for (auto& element : feed.epoch()) (void)element;
  EXPECT_EQ(calls, 100);
  EXPECT_FALSE(std::filesystem::exists(path())) << "an element is missing";
  refusing = false;
  for (auto& element : feed.epoch()) (void)element;
  EXPECT_EQ(calls, 101);
  EXPECT_TRUE(std::filesystem::exists(path()));
  const Numbers got = testing::numbers(elements(Dataset::snapshot(path())));
  ASSERT_EQ(got.size(), 100u);
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(got[i], i);
}

TEST_F(Snapshot, what_was_not_finished_leaves_nothing) {
  Dataset cached = Dataset::range(0, 100).cache(path());
  {
    Loader feed = cached.build({.workers = 0});
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(feed.next());
    EXPECT_EQ(files(), 1u) << "the hidden one";
    EXPECT_FALSE(std::filesystem::exists(path()));
  }
  EXPECT_EQ(files(), 0u);
  EXPECT_THROW(go_through(Dataset::range(0, 9).cache(folder_ / "no" / "file")), Error);
  EXPECT_THROW(Dataset::range(0, 9).cache(std::string()), Error);
  EXPECT_THROW(Dataset::range(0, 9).repeat().cache(path()).build({.workers = 0}), Error);
  EXPECT_EQ(files(), 0u);
}

TEST_F(Snapshot, of_streams_and_of_nothing) {
  auto odd = [](const Example& element, SampleContext&) {
    return element.at("").as_span<const int64_t>()[0] % 2 == 1;
  };
  Dataset stream = Dataset::range(0, 100).filter(odd).cache(path());
  go_through(stream, 2);
  const Numbers got = testing::numbers(elements(Dataset::snapshot(path())));
  ASSERT_EQ(got.size(), 50u);
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(got[i], 2 * i + 1);
  std::filesystem::remove(path());
  testing::check_stream(stream.node());  // filling it
  EXPECT_TRUE(std::filesystem::exists(path()));
  testing::check_stream(stream.node());  // from the file
  std::filesystem::remove(path());
  go_through(Dataset::range(0, 0).cache(path()));
  EXPECT_TRUE(elements(Dataset::snapshot(path())).empty());
  std::filesystem::remove(path());
  auto none = [](const Example&, SampleContext&) { return false; };
  go_through(Dataset::range(0, 9).filter(none).cache(path()));
  EXPECT_TRUE(elements(Dataset::snapshot(path())).empty());
}

TEST_F(Snapshot, another_chains_file_is_refused_and_kept) {
  go_through(Dataset::range(0, 20).skip(1).cache(path()));
  const std::string before = read();
  auto refusal = [&](const Dataset& dataset, uint64_t seed = 0) {
    return refusal_of([&] {
      Loader feed = dataset.build({.seed = seed, .workers = 0});
      (void)feed.next();
    });
  };
  const std::string stage = refusal(Dataset::range(0, 20).take(19).cache(path()));
  EXPECT_NE(stage.find("file has the elements of another chain: its stage 2 is \"skip(1)\", and "
                       "here \"take(19)\"; delete it"),
            std::string::npos)
      << stage;
  EXPECT_NE(refusal(Dataset::range(0, 20).cache(path())).find("here none"), std::string::npos);
  const std::string seed = refusal(Dataset::range(0, 20).skip(1).cache(path()), 3);
  EXPECT_NE(seed.find("build(seed=0), and here with 3"), std::string::npos) << seed;
  EXPECT_EQ(refusal(Dataset::range(0, 20).skip(1).cache(path())), "none");
  EXPECT_EQ(read(), before);
  std::filesystem::remove(path());
  go_through(Dataset::range(0, 20).shard(0, 2).cache(path()));
  EXPECT_NE(refusal(Dataset::range(0, 20).shard(1, 2).cache(path())).find("rank 0 of 2"),
            std::string::npos)
      << "the ranks have other elements, though their titles are alike";
}

TEST_F(Snapshot, of_two_writers_one_has_the_name_and_both_go_on) {
  Dataset cached = Dataset::range(0, 50).cache(path());
  Loader one = cached.build({.workers = 0});
  Loader other = Dataset::range(0, 50).cache(path()).build({.workers = 0});
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(one.next());
    ASSERT_TRUE(other.next());
  }
  EXPECT_EQ(files(), 2u);
  while (one.next()) {
  }
  const std::string whole = read();
  Numbers rest;
  while (auto element = other.next()) rest.push_back(element->at("").as_span<const int64_t>()[0]);
  EXPECT_EQ(rest.size(), 20u);
  EXPECT_EQ(read(), whole);
  EXPECT_EQ(elements(Dataset::snapshot(path())).size(), 50u);
  one.close();
  other.close();
}

// Reading a damaged file gives only elements that were stored, and DataLoss errors.
TEST_F(Snapshot, every_damage_is_found) {
  Dataset text = Dataset::range(8, 11).map(std::make_shared<test::TextOp>());
  go_through(text.cache(path()));
  const std::string sound = read();
  const auto expected = elements(text);
  size_t unread = 0;
  auto look = [&](const std::string& bytes, const std::string& what, bool must = true) {
    write(bytes);
    try {
      const auto got = elements(Dataset::snapshot(path()));
      ASSERT_EQ(got.size(), expected.size()) << what;
      size_t lost = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        lost += !got[i];
        EXPECT_TRUE(!got[i] || equal(got[i], expected[i])) << what;
      }
      EXPECT_TRUE(lost > 0 || !must) << what;
      unread += lost == 0;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kDataLoss) << what << ": " << error.what();
      EXPECT_NE(std::string(error.what()).find("file, byte "), std::string::npos) << error.what();
    }
  };
  for (size_t at = 0; at < sound.size(); ++at) {
    std::string bytes = sound;
    bytes[at] = static_cast<char>(bytes[at] ^ (at % 2 == 0 ? 0x01 : 0x80));
    look(bytes, "byte " + std::to_string(at), false);
    if (at % 3 == 0) look(sound.substr(0, at), "cut at " + std::to_string(at));
    if (at % 7 == 0) look(sound.substr(at + 1), "without the first " + std::to_string(at + 1));
  }
  // Only the padding of records is never read.
  EXPECT_LT(unread, 5u * kSnapshotUnit);
  look(sound + sound, "twice");
  look(sound + '\0', "and a byte");
  look(std::string(1000, 'x'), "of another kind");
  write(sound.substr(0, sound.size() - 1));
  const std::string why = refusal_of([&] { text.cache(path()).build({.workers = 0}); });
  EXPECT_NE(why.find("delete it, and the next pass makes it again"), std::string::npos) << why;
  write(sound);
  EXPECT_EQ(elements(Dataset::snapshot(path())).size(), 3u);
  std::filesystem::remove(path());
  EXPECT_THROW(elements(Dataset::snapshot(path())), Error);
  EXPECT_THROW(elements(Dataset::snapshot(folder_)), Error);
}

// Memory for batches is allocated before elements are read: here it would be 8 GiB for each.
TEST_F(Snapshot, a_spec_of_larger_elements_than_there_are_is_damage) {
  const int64_t shape = 12345, larger = int64_t{1} << 33;
  go_through(Dataset::arrays({{"x", Tensor::make(DType::kUint8, {3, shape})}}).cache(path()));
  std::string file = read();
  const size_t at = file.find(std::string_view(reinterpret_cast<const char*>(&shape), 8));
  ASSERT_NE(at, std::string::npos);
  std::memcpy(&file[at], &larger, sizeof(larger));
  testing::mend_snapshot(file);
  write(file);
  try {
    Dataset::snapshot(path()).build({.workers = 0});
    FAIL() << "it was opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kDataLoss);
    EXPECT_NE(std::string(error.what()).find("larger than its first one"), std::string::npos)
        << error.what();
  }
}

TEST_F(Snapshot, a_file_that_shrinks_while_it_is_read_loses_what_is_gone_only) {
  go_through(Dataset::range(0, 100).cache(path()));
  Plan plan(*Dataset::snapshot(path()).node());
  Scratch scratch;
  Context context{scratch};
  auto reader = plan.chain().reader(context);
  std::filesystem::resize_file(path(), 64 + 96 * 50);  // a spec, and 96 bytes an element
  Chunk chunk(scratch);
  std::vector<uint64_t> positions{3, 99, 20, 70};
  chunk.reset(plan.chain().spec(), 4);
  reader->fetch({0, 0}, positions, chunk, 0);
  EXPECT_EQ(chunk.alive(), 0b0101u);
  const auto made = elements_of(chunk, 0);
  EXPECT_EQ(made[0]->at("").as_span<const int64_t>()[0], 3);
  EXPECT_EQ(made[2]->at("").as_span<const int64_t>()[0], 20);
}

}  // namespace
}  // namespace penstock
