#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "penstock/base/os.h"
#include "penstock/train/named_socket.h"
#include "penstock/train/weights_memory.h"
#include "tests/cpp/threads.h"
#include "tests/cpp/train/publishing.h"

// Which readers wake which others when a version is published.
namespace penstock::train {
namespace {

using penstock::testing::sleeps;
using penstock::testing::this_thread;
using testing::a_name;
using testing::eventually;
using testing::publish;
using testing::two_blocks;

TEST(PublishWakes, readers_are_woken_even_if_the_first_ends_before_it_wakes_others) {
  const std::string name = a_name();
  Parameters parameters(two_blocks());
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  Model model(name);  // first: attaching wakes all of its learner's sleepers

  // Attached without a Model: acts like a reader, except that it wakes no others.
  std::optional<Peer> peer = connect_to_name("weights", name);
  ASSERT_TRUE(peer);
  GreetingReader greeting;
  ASSERT_TRUE(eventually(
      [&] { return greeting.read(peer->fd.get()) == GreetingReader::State::kComplete; }));
  const auto memory = WeightsMemory::open(greeting.take_descriptor());
  auto* base = reinterpret_cast<std::byte*>(memory->values(0).data()) - memory->offset_of(0);
  auto& header = *reinterpret_cast<WeightsHeader*>(base);
  auto& row = reinterpret_cast<ReaderRow*>(base + kRowsAt)[greeting.greeting().row];
  std::atomic<pid_t> first{0}, second{0};
  std::atomic<bool> woken{false};
  std::thread by_hand([&] {
    row.waiting.fetch_add(1);
    const uint32_t seen = header.changes.load();
    first = this_thread();
    woken = os::futex_wait_bitset(header.changes, seen, 50'000'000'000, uint32_t{1} << seen % 32) ==
            os::Woken::kWoken;
  });
  ASSERT_TRUE(eventually([&] { return first != 0 && sleeps(first); }));

  std::atomic<bool> there{false};
  std::thread waits([&] {
    second = this_thread();
    there = model.wait(2);
  });
  ASSERT_TRUE(eventually([&] { return second != 0 && sleeps(second); }));
  ASSERT_FALSE(woken);
  publish(publisher, parameters, 2);
  by_hand.join();
  EXPECT_TRUE(woken) << "it slept first";
  EXPECT_TRUE(eventually([&] { return there.load(); })) << "the learner's server wakes it";
  publish(publisher, parameters, 3);  // wakes it in any case
  waits.join();
}

}  // namespace
}  // namespace penstock::train
