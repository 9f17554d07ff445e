#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "penstock/train/hogwild.h"
#include "tests/cpp/train/refusals.h"
#include "tests/cpp/train/serving.h"

// Pushes of some rows of some blocks.
namespace penstock::train {
namespace {

using testing::kLocal;
using testing::kTcp;
using testing::message_of;

constexpr int64_t kTableRows = 1000;
constexpr size_t kTableWidth = 37;  // shards are cut within rows

Layout a_table() {
  return Layout{{"table", {kTableRows, kTableWidth}}, {"b", {50}}, {"long", {20'000}}};
}

// A gradient of rows of "table", and sometimes of all of "b".
class Made {
 public:
  Made(std::mt19937& random, size_t count, bool with_b) : with_b_(with_b) {
    for (size_t i = 0; i < count; ++i) {
      rows_.push_back(static_cast<int64_t>(random() % kTableRows));
      if (i % 5 == 4) rows_[i] = rows_[i - 1];
    }
    for (size_t i = 0; i < count * kTableWidth + 50; ++i) {
      values_.push_back(static_cast<float>(random() % 2001) / 1000 - 1);
    }
  }
  std::vector<GradientPart> parts() const {
    std::vector<GradientPart> parts;
    if (with_b_) parts.push_back({"b", std::span(values_).first(50)});
    parts.push_back({"table", std::span(values_).subspan(50), true, rows_});
    return parts;
  }
  // The same as a slab, with zeroes in the other places.
  void fill(const Slab& slab) const {
    slab.zero();
    GradientParts parts;
    parts.set("test", slab.layout(), this->parts());
    for (const auto& piece : parts.pieces()) {
      std::ranges::copy(piece.values, slab.values().begin() + static_cast<ptrdiff_t>(piece.at));
    }
  }

 private:
  bool with_b_;
  std::vector<int64_t> rows_;
  std::vector<float> values_;
};

std::vector<float> weights_of(const ParameterServer& server) {
  const Slab now = Slab::make(server.layout());
  server.read(now);
  return {now.values().begin(), now.values().end()};
}

struct Serving {
  const char* listen;
  uint32_t copies;
};
class ParameterRows : public ::testing::TestWithParam<Serving> {
 protected:
  ServerOptions serving(ServerMode mode = {}) const {
    return {.shards = 3, .mode = mode, .listen = {GetParam().listen}, .copies = GetParam().copies};
  }
};

// With whole gradients in between, after which all of the other copy is stale.
TEST_P(ParameterRows, mixed_with_whole_gradients_give_the_bits_of_one_worker_by_itself) {
  for (const Optimizer& optimizer : {Optimizer::adam(1e-2, {}, {.clip_norm = 3}),
                                     Optimizer::momentum(0.1, 0.9, {.weight_decay = 0.01})}) {
    const Parameters begin(a_table()), alone(a_table());
    ParameterServer server(begin, optimizer, serving());
    ParameterClient client(server.addresses(), {.retry_s = 60});
    std::vector<Slab> state;
    for (size_t i = 0; i < optimizer.state_slabs(); ++i)
      state.push_back(Slab::make(alone.layout()));
    HogwildWorker reference(alone, optimizer, state, SharedCounters::make(1, false), 0, {});
    std::mt19937 random(7);
    const Slab whole = Slab::make(begin.layout());
    for (int round = 0; round < 24; ++round) {
      const Made made(random, round % 7 == 3 ? 0 : 1 + random() % 40, round % 3 == 0);
      if (round % 8 == 5) {
        made.fill(whole);
        EXPECT_TRUE(client.push(whole).applied);
        EXPECT_TRUE(reference.apply(whole));
      } else {
        EXPECT_TRUE(client.push(made.parts()).applied);
        EXPECT_TRUE(reference.apply(made.parts()));
      }
      ASSERT_TRUE(std::ranges::equal(weights_of(server), alone.slab().values())) << round;
    }
    for (const uint64_t version : server.read(whole)) EXPECT_EQ(version, 24u);
  }
}

TEST_P(ParameterRows, only_rows_travel) {
  const Parameters begin(a_table());
  ParameterServer server(begin, Optimizer::sgd(1.0), serving());
  ParameterClient client(server.addresses(), {.retry_s = 60});
  const std::vector<int64_t> rows{3, 999, 500};
  const std::vector<float> values(rows.size() * kTableWidth, -1.0f);
  const GradientPart part{"table", values, true, rows};
  EXPECT_TRUE(client.push({&part, 1}).applied);
  uint64_t bytes = 0;
  for (const auto& shard : nlohmann::json::parse(server.stats())) {
    EXPECT_EQ(shard["version"], 1);
    bytes += shard["bytes_in"].get<uint64_t>();
  }
  EXPECT_GE(bytes, values.size() * sizeof(float));
  EXPECT_LT(bytes, values.size() * sizeof(float) + 200);
  const auto now = weights_of(server);
  EXPECT_EQ(std::ranges::count(now, 1.0f), static_cast<ptrdiff_t>(values.size()));
  EXPECT_EQ(now[500 * kTableWidth + 36], 1);
  EXPECT_EQ(now[501 * kTableWidth], 0);
}

TEST_P(ParameterRows, in_synchronous_mode_missing_parts_count_as_zero) {
  const Parameters begin(a_table());
  for (const bool one_is_whole : {false, true}) {
    ParameterServer server(begin, Optimizer::sgd(1.0), serving({.staleness = 0, .workers = 2}));
    auto work = [&](const char* name, bool whole, std::vector<int64_t> rows, float value) {
      ParameterClient client(server.addresses(), {.name = name, .retry_s = 60});
      const std::vector<float> values(rows.size() * kTableWidth, value);
      const Slab gradient = Slab::make(client.layout());
      std::ranges::fill(gradient.values(), value);
      const GradientPart part{"table", values, true, rows};
      for (int round = 0; round < 5; ++round) {
        EXPECT_TRUE((whole ? client.push(gradient) : client.push({&part, 1})).applied);
      }
    };
    std::thread other([&] { work("b", one_is_whole, {2, 998}, -4); });
    work("a", false, {1, 2, 2}, -2);
    other.join();
    const auto now = weights_of(server);
    const float all = one_is_whole ? 10 : 0;  // half of 4 in 5 rounds
    EXPECT_EQ(now[0], all);
    EXPECT_EQ(now[1 * kTableWidth], 5 + all);
    EXPECT_EQ(now[2 * kTableWidth + 36], 10 + 10);
    EXPECT_EQ(now[998 * kTableWidth], 10);
    EXPECT_EQ(now[999 * kTableWidth], all);
    const Slab slab = Slab::make(begin.layout());
    server.read(slab);
    EXPECT_EQ(slab.values_of(slab.layout().at("long"))[19'999], all);
  }
}

TEST_P(ParameterRows, invalid_rows_are_refused_before_anything_is_sent) {
  const Parameters begin(a_table());
  ParameterServer server(begin, Optimizer::sgd(1.0), serving());
  ParameterClient client(server.addresses(), {.retry_s = 60});
  const std::vector<float> values(2 * kTableWidth, 1.0f);
  auto refused = [&](Code code, std::vector<GradientPart> parts) {
    return message_of(code, [&] { client.push(parts); });
  };
  const std::vector<int64_t> good{1, 2}, below{1, -1}, above{kTableRows, 1};
  const std::string said = refused(Code::kInvalidArgument, {{"table", values, true, above}});
  EXPECT_NE(said.find("push: block 'table' has 1000 rows; there is no row 1000"), std::string::npos)
      << said;
  refused(Code::kInvalidArgument, {{"table", values, true, below}});
  refused(Code::kInvalidArgument, {{"table", std::span(values).first(9), true, good}});
  refused(Code::kInvalidArgument, {{"table", values}});
  refused(Code::kInvalidArgument, {{"table", values, true, good}, {"table", values, true, good}});
  refused(Code::kNotFound, {{"tables", values, true, good}});
  std::vector<float> broken = values;
  broken[kTableWidth + 3] = NAN;
  const std::string where = refused(Code::kInvalidArgument, {{"table", broken, true, good}});
  EXPECT_NE(where.find("is nan at (1, 3)"), std::string::npos) << where;

  const GradientPart part{"table", values, true, good};
  for (const Encoding encoding : {Encoding::kFloat16, Encoding::kTopK}) {
    ParameterClient compressing(server.addresses(), {.retry_s = 60, .encoding = encoding});
    message_of(Code::kInvalidArgument, [&] { compressing.push({&part, 1}); });
  }
  message_of(Code::kInvalidArgument,
             [&] { ParameterClient(server.addresses(), {.encoding = Encoding::kRuns}); });
  for (const float weight : weights_of(server)) ASSERT_EQ(weight, 0);
  EXPECT_TRUE(client.push({&part, 1}).applied);
  EXPECT_EQ(client.push({&part, 1}).versions, (std::vector<uint64_t>{2, 2, 2}));

  ParameterServer compensating(begin, Optimizer::sgd(1.0), serving({.compensation = 0.5}));
  ParameterClient late(compensating.addresses(), {.retry_s = 60});
  message_of(Code::kInvalidArgument, [&] { late.push({&part, 1}); });
  for (const float weight : weights_of(compensating)) ASSERT_EQ(weight, 0);
}

INSTANTIATE_TEST_SUITE_P(Over, ParameterRows,
                         ::testing::Values(Serving{kLocal, 1}, Serving{kLocal, 2}, Serving{kTcp, 1},
                                           Serving{kTcp, 2}),
                         [](const auto& of) {
                           return std::string(of.param.listen == kTcp ? "tcp" : "local") + "_" +
                                  std::to_string(of.param.copies);
                         });

// A shard drops a push that its worker gave up, because the worker may reuse the memory.
TEST(ParameterRowsGivenUp, are_not_applied_later) {
  const Parameters begin(a_table());
  ParameterServer server(
      begin, Optimizer::sgd(1.0),
      {.shards = 2, .mode = {.staleness = 0, .lease_s = 100, .workers = 2}, .listen = {kLocal}});
  std::atomic<bool> enough{true};
  ParameterClient one(server.addresses(), {.name = "one", .while_waiting = [&] {
                                             if (enough) throw std::runtime_error("enough");
                                           }});
  ParameterClient other(server.addresses(), {.name = "other"});
  auto push = [](ParameterClient& client, int64_t row, float value) {
    const std::vector<float> values(kTableWidth, value);
    const GradientPart part{"table", values, true, {&row, 1}};
    return client.push({&part, 1});
  };
  EXPECT_THROW(push(one, 1, 2), std::runtime_error);
  enough = false;
  std::thread next([&] { EXPECT_TRUE(push(one, 2, 20).applied); });
  EXPECT_TRUE(push(other, 500, 200).applied);
  next.join();
  const auto weights = weights_of(server);
  for (int64_t row = 0; row < kTableRows; ++row) {
    const float expected = row == 500 ? -100 : row == 2 ? -10 : 0;
    ASSERT_EQ(weights[static_cast<size_t>(row) * kTableWidth], expected) << row;
  }
}

// The bytes of a push of rows, as a shard receives them.
std::vector<std::byte> runs_of(const std::vector<Run>& runs, size_t floats, float value) {
  std::vector<std::byte> bytes;
  const uint64_t count = runs.size();
  auto append = [&](const auto& each) {
    const auto* first = reinterpret_cast<const std::byte*>(&each);
    bytes.insert(bytes.end(), first, first + sizeof each);
  };
  append(count);
  for (const Run& run : runs) append(run);
  for (size_t i = 0; i < floats; ++i) append(value);
  return bytes;
}

// A killed shard may leave anything in the copy that is not current.
TEST(ShardRows, a_half_written_update_of_a_killed_shard_is_not_seen) {
  testing::OneShard one;
  one.shard->join({1, "w", "here"});
  uint64_t sequence = 0;
  auto push = [&](uint32_t at, uint32_t count) {
    const auto bytes = runs_of({{at, count}}, count, -1.0f);
    Shard::Push given;
    given.worker = 1;
    given.sequence = ++sequence;
    given.squares = count;
    given.gradient = Gradient(Encoding::kRuns, bytes, testing::OneShard::kFloats);
    EXPECT_EQ(one.shard->push(given).outcome, Outcome::kApplied);
    // Repeated, it is only answered.
    EXPECT_EQ(one.shard->push(given).version, sequence);
  };
  push(10, 5);
  push(100, 5);
  std::ranges::fill(one.memory->weights(1 - one.memory->current().copy), 77.0f);
  one.start_again();
  one.shard->join({1, "w", "here"});
  for (const uint32_t at : {100u, 500u, 199'990u}) push(at, 10);
  auto expected = [](size_t i) {
    return (i >= 10 && i < 15 ? 1.0f : 0) + (i >= 100 && i < 105 ? 1.0f : 0) +
           (i >= 100 && i < 110 ? 1.0f : 0) + (i >= 500 && i < 510 ? 1.0f : 0) +
           (i >= 199'990 ? 1.0f : 0);
  };
  for (size_t i = 0; i < testing::OneShard::kFloats; ++i) ASSERT_EQ(one.weight(i), expected(i));
}

TEST(ShardRows, invalid_runs_are_refused) {
  const size_t floats = 1000;
  auto refused = [&](const std::vector<std::byte>& bytes) {
    message_of(Code::kDataLoss, [&] { Gradient(Encoding::kRuns, bytes, floats); });
  };
  EXPECT_EQ(Gradient(Encoding::kRuns, runs_of({{0, 2}, {998, 2}}, 4, 1), floats).carried(), 4u);
  EXPECT_EQ(Gradient(Encoding::kRuns, runs_of({}, 0, 1), floats).carried(), 0u);
  refused({});
  refused(runs_of({{0, 2}}, 1, 1));          // fewer floats
  refused(runs_of({{0, 2}}, 3, 1));          // more
  refused(runs_of({{0, 0}}, 0, 1));          // of nothing
  refused(runs_of({{999, 2}}, 2, 1));        // beyond the end
  refused(runs_of({{5, 2}, {0, 2}}, 4, 1));  // descending
  refused(runs_of({{5, 2}, {6, 2}}, 4, 1));  // overlapping
  refused(runs_of({{5, 2}, {7, 2}}, 4, 1));  // without a gap
  refused(runs_of({{UINT32_MAX, UINT32_MAX}}, 0, 1));
  auto many = runs_of({{0, 2}}, 2, 1);
  many[6] = std::byte{1};  // 2^48 and one of them
  refused(many);
  // With separate floats: their number matches, and nothing else was sent.
  const std::vector<float> values(3);
  message_of(Code::kDataLoss, [&] { Gradient(runs_of({{0, 4}}, 0, 1), values, floats); });
  message_of(Code::kDataLoss, [&] { Gradient(runs_of({{0, 2}}, 1, 1), values, floats); });
}

}  // namespace
}  // namespace penstock::train
