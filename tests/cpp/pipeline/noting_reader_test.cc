#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/random.h"
#include "penstock/pipeline/streams/streams.h"

namespace penstock {
namespace {

SpecRef number_spec() {
  return std::make_shared<ElementSpec>(
      std::vector<Leaf>{{"", LeafKind::kDense, DType::kInt64, {}}});
}

// Numbers from 0, in pieces of `piece`; some are left out, some failed.
class Given : public ElementReader {
 public:
  Given(int64_t end, uint32_t piece, std::set<int64_t> skipped, std::set<int64_t> failed)
      : end_(end), piece_(piece), skipped_(std::move(skipped)), failed_(std::move(failed)) {}

  void begin(uint64_t) override { next_ = 0; }
  uint32_t next(uint32_t most, Chunk& out) override {
    const auto count = static_cast<uint32_t>(std::min<int64_t>({most, piece_, end_ - next_}));
    if (count == 0) return 0;
    out.reset(spec_, count);
    auto* numbers = reinterpret_cast<int64_t*>(out.dense(0));
    for (uint32_t row = 0; row < count; ++row, ++next_) {
      numbers[row] = next_;
      Failure failure{"given", static_cast<uint64_t>(next_),
                      std::make_exception_ptr(std::runtime_error("no"))};
      if (skipped_.contains(next_)) failure.decision = Decision::kSkip;
      if (failure.settled() || failed_.contains(next_)) out.fail(row, std::move(failure));
    }
    return count;
  }
  State save() const override { return next_; }
  void load(uint64_t, const State& state) override { next_ = state.get<int64_t>(); }

 private:
  const SpecRef spec_ = number_spec();
  int64_t end_;
  uint32_t piece_;
  std::set<int64_t> skipped_, failed_;
  int64_t next_ = 0;
};

// A number and the losses reported with it; -1: a failed number, -2: a row of losses only.
using RowNotes = std::pair<int64_t, std::vector<uint64_t>>;

std::vector<RowNotes> rows_of(Chunk& chunk) {
  std::vector<RowNotes> rows;
  for (uint32_t row = 0; row < chunk.rows(); ++row) {
    RowNotes row_notes{-1, {}};
    if (chunk.left_out(row)) {
      row_notes = {-2, {chunk.take_failure(row).position}};
    } else if ((chunk.alive() >> row & 1) != 0) {
      std::memcpy(&row_notes.first, chunk.at(0, row), sizeof(row_notes.first));
    }
    for (const Failure& lost : chunk.take_notes(row)) row_notes.second.push_back(lost.position);
    rows.push_back(std::move(row_notes));
  }
  return rows;
}

struct Reading {
  Scratch scratch;
  Context context{scratch, 0};
  Chunk chunk{scratch};
  std::unique_ptr<ElementReader> reader;

  explicit Reading(std::unique_ptr<ElementReader> of)
      : reader(noting_reader(std::move(of), context)) {}

  std::vector<RowNotes> rest(uint32_t most = Chunk::kRows) {
    std::vector<RowNotes> all;
    while (reader->next(most, chunk) != 0) {
      for (RowNotes& row_notes : rows_of(chunk)) all.push_back(std::move(row_notes));
    }
    EXPECT_EQ(reader->next(most, chunk), 0U);
    return all;
  }
};

TEST(PlacedReader, skipped_elements_are_reported_with_the_next_delivered_one) {
  for (uint32_t piece : {1U, 2U, 3U, 64U}) {
    Reading reading(
        std::make_unique<Given>(7, piece, std::set<int64_t>{0, 1, 4, 6}, std::set<int64_t>{5}));
    reading.reader->begin(0);
    const std::vector<RowNotes> expected = {{2, {0, 1}}, {3, {}}, {-1, {4}}, {-2, {6}}};
    EXPECT_EQ(reading.rest(), expected) << piece;
    reading.reader->begin(1);
    EXPECT_EQ(reading.rest(2), expected) << piece;
  }
}

TEST(PlacedReader, where_all_is_lost_it_stands_for_itself) {
  Reading reading(std::make_unique<Given>(3, 1, std::set<int64_t>{0, 1, 2}, std::set<int64_t>{}));
  reading.reader->begin(0);
  EXPECT_EQ(reading.rest(), (std::vector<RowNotes>{{-2, {0, 1, 2}}}));
}

TEST(PlacedReader, a_state_has_the_losses_that_were_not_reported_yet) {
  RandomStream draws({3, 0, 0});
  for (int round = 0; round < 60; ++round) {
    std::set<int64_t> skipped, failed;
    for (int64_t n = 0; n < 30; ++n) {
      if (draws.below(3) == 0) {
        skipped.insert(n);
      } else if (draws.below(8) == 0) {
        failed.insert(n);
      }
    }
    const auto piece = static_cast<uint32_t>(1 + draws.below(6));
    const auto given = [&] { return std::make_unique<Given>(30, piece, skipped, failed); };
    Reading reading(given());
    reading.reader->begin(0);
    const std::vector<RowNotes> whole = reading.rest();
    reading.reader->begin(0);
    for (size_t taken = 0;;) {
      const State state = State::parse(reading.reader->save().dump());
      Reading other(given());
      other.reader->load(0, state);
      ASSERT_EQ(other.rest(), std::vector<RowNotes>(whole.begin() + taken, whole.end()))
          << "after " << taken << " of round " << round;
      const uint32_t count = reading.reader->next(3, reading.chunk);
      if (count == 0) break;
      taken += count;
    }
  }
}

TEST(PlacedReader, refuses_what_is_no_state_of_losses) {
  Reading reading(std::make_unique<Given>(3, 1, std::set<int64_t>{}, std::set<int64_t>{}));
  for (const char* lost : {"1", "[1]", "[[]]", R"([["f", -1, "no", false]])", R"([["f", 1, "no"]])",
                           R"([["f", 1, 2, false]])"}) {
    const State state = {{"lost", State::parse(lost)}, {"behind", 0}};
    EXPECT_THROW(reading.reader->load(0, state), Error) << lost;
  }
  EXPECT_THROW(reading.reader->load(0, State{{"behind", 0}}), Error);
}

}  // namespace
}  // namespace penstock
