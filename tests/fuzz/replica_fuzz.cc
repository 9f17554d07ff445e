// Any messages from a leader to its follower: each is acknowledged, or ends the connection, and a
// change that is acknowledged is in the follower's memory.
//
//   byte 0: bit 0 delay compensation, bit 1 the state is damaged
//   a message: byte 0: bit 0 a beat, bit 1 the right number, bit 2 the right version, bit 3 one
//   well-formed part   byte 1: bytes of the rest of the head   byte 2: bytes of the body, in fours
//   byte 3: the part's encoding   then the head, then the body
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/input.h"
#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/net/listener.h"
#include "penstock/train/server/shard_follower.h"
#include "penstock/train/server/shard_messages.h"

using namespace penstock;
using namespace penstock::train;

namespace {

constexpr size_t kFloats = 32;
constexpr uint8_t kBeat = 1, kNumbered = 2, kVersioned = 4, kWellFormed = 8;

// Whether the follower has acknowledged a message; else the connection has ended.
bool acknowledged(net::Connection& leader, uint64_t& number) {
  const auto message = leader.receive(20);
  if (!message) return false;
  wire::EntryAck ack;
  REQUIRE(message->head.size() == sizeof ack && message->body_bytes == 0);
  std::memcpy(&ack, message->head.data(), sizeof ack);
  REQUIRE(ack.magic == wire::AskHead::kMagic);
  number = ack.number;
  return true;
}

void send_state(net::Connection& leader, bool damaged) {
  ShardRecord record{};
  record.server = 7;
  const std::array<float, kFloats> weights{}, state{};
  std::vector<std::byte> head;
  wire::append(head, wire::AnswerHead());
  wire::append(head, wire::StateHead{.number = 5, .epoch = 1});
  std::vector<std::span<const std::byte>> body{std::as_bytes(std::span(&record, 1)),
                                               std::as_bytes(std::span(weights)),
                                               std::as_bytes(std::span(state))};
  if (damaged) body.pop_back();
  leader.send(head, body);
}

// Returns the version that the change says it makes.
uint64_t send_entry(net::Connection& leader, Input& input, const ShardRecord& before,
                    uint64_t number, bool compensates) {
  const uint8_t kind = input.byte();
  const size_t head_bytes = input.byte(), body_bytes = 4 * size_t{input.byte()};
  const uint8_t encoding = input.byte();
  std::vector<std::byte> rest = input.take(head_bytes);
  const std::vector<std::byte> body = input.take(body_bytes);
  wire::EntryHead entry;
  std::memcpy(&entry, rest.data(), std::min(rest.size(), sizeof entry));
  rest.erase(rest.begin(),
             rest.begin() + static_cast<ptrdiff_t>(std::min(rest.size(), sizeof entry)));
  entry.magic = wire::AskHead::kMagic;
  entry.beat = kind & kBeat;
  if (kind & kNumbered) entry.number = number + 1;
  if (kind & kVersioned) {
    entry.record.version = before.version + 1;
    entry.record.step = before.step + 1;
  }
  if (kind & kWellFormed) {
    entry.rows %= 4;
    entry.parts = 1;
    rest.resize(entry.rows * (sizeof(uint32_t) + sizeof(LedgerRow)));
    const uint64_t base = compensates ? kFloats * sizeof(float) : 0;
    wire::append(rest, wire::PartHead{.squares = 1,
                                      .bytes = body.size() - std::min(body.size(), base),
                                      .encoding = encoding % (kEncodings + 1),
                                      .has_base = compensates});
  }
  std::vector<std::byte> head;
  wire::append(head, entry);
  head.insert(head.end(), rest.begin(), rest.end());
  const std::array parts{std::span<const std::byte>(body)};
  leader.send(head, parts);
  return entry.record.version;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static net::Listener* const listener = new net::Listener("unix:@");
  const Optimizer optimizer = Optimizer::momentum(0.1, 0.9, {});
  const auto memory = ShardMemory::make({.floats = kFloats, .states = 1, .copies = 1}, 0);
  Input input(data, size);
  const uint8_t mode = input.byte();
  const bool compensates = mode & 1;
  ShardFollower follower(memory, optimizer, compensates ? 0.5 : 0, {.follower = 3, .server = 7});
  std::string why;
  std::thread following([&] { why = follower.run(listener->address()); });
  try {
    const auto leader = listener->accept(20);
    REQUIRE(leader && leader->receive(20));
    send_state(*leader, mode & 2);
    uint64_t last = 5, number = last, version = 0;
    while (acknowledged(*leader, number)) {
      REQUIRE(number == last || (number == last + 1 && memory->record().version == version));
      last = number;
      if (input.empty()) break;
      // The follower has made all changes so far.
      version = send_entry(*leader, input, memory->record(), number, compensates);
    }
    leader->close();
  } catch (const Error&) {
    // The follower has ended the connection.
  }
  following.join();
  REQUIRE(!why.empty());
  REQUIRE(follower.has_state() == (memory->record().server == 7));
  return 0;
}
