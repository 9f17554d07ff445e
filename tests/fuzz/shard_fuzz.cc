// Any messages from a worker to a shard: each is answered, with an error or not, or ends the
// connection; other workers go on.
//
//   a message: byte 0: its kind, bit 6 well-formed numbers, bit 7 with a slab   byte 1: bytes of
//   the head   byte 2: bytes of the body, in fours   then the head, then the body
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fuzz/input.h"
#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/net/connection.h"
#include "penstock/train/server/shard.h"
#include "penstock/train/server/shard_messages.h"
#include "penstock/train/server/shard_service.h"
#include "penstock/train/slab.h"

using namespace penstock;
using namespace penstock::train;

namespace {

constexpr size_t kFloats = 32;

struct Served {
  const Layout layout{{"w", {kFloats}}};
  const std::shared_ptr<ShardMemory> memory =
      ShardMemory::make({.floats = kFloats, .states = 0, .copies = 2}, 0);
  const std::shared_ptr<Shard> shard =
      std::make_shared<Shard>(memory, Optimizer::sgd(0.5), ServerMode{});
  ShardService service{shard, {layout, {0, kFloats}, 7}, {}, {"unix:@"}, "", false};
  Slab slab = Slab::make(layout, Slab::Kind::kShared);
  Slab other = Slab::make(Layout{{"w", {2 * kFloats}}}, Slab::Kind::kShared);
};

// Ended with the process, as its threads are.
Served& served() {
  static auto* one = new Served;
  return *one;
}

template <typename Head>
Head head_from(const std::vector<std::byte>& bytes) {
  Head head;
  std::memcpy(&head, bytes.data(), std::min(bytes.size(), sizeof head));
  return head;
}

// Numbers that a worker could have sent, with those of `bytes` in them.
std::vector<std::byte> well_formed(wire::Ask ask, const std::vector<std::byte>& bytes) {
  std::vector<std::byte> head;
  if (ask == wire::Ask::kHello) {
    auto hello = head_from<wire::HelloHead>(bytes);
    hello.worker = 1 + hello.worker % 4;
    hello.name_bytes %= 8;
    wire::append(head, hello);
    wire::append(head, std::string(hello.name_bytes, 'w'));
  } else if (ask == wire::Ask::kSlab) {
    wire::append(head, wire::SlabHead{1 + head_from<wire::SlabHead>(bytes).slab % 3});
  } else if (ask == wire::Ask::kPush) {
    auto push = head_from<wire::PushHead>(bytes);
    push.sequence %= 16;
    push.slab %= 4;
    push.base_slab %= 4;
    push.encoding %= kEncodings + 1;
    push.has_base %= 3;
    wire::append(head, push);
  }
  return head;
}

// Whether there was an answer; else the connection has ended.
bool answered(net::Connection& connection) {
  const auto answer = connection.receive(20);
  if (!answer) return false;
  REQUIRE(answer->head.size() >= sizeof(wire::AnswerHead));
  const auto head = head_from<wire::AnswerHead>(answer->head);
  REQUIRE(head.magic == wire::AskHead::kMagic);
  std::vector<std::byte> body(answer->body_bytes);
  connection.receive_body(body);
  return true;
}

void send(net::Connection& connection, Input& input) {
  const uint8_t kind = input.byte();
  const auto ask = static_cast<wire::Ask>(kind % 16);
  const size_t head_bytes = input.byte(), body_bytes = 4 * size_t{input.byte()};
  std::vector<std::byte> head;
  wire::append(head, wire::AskHead{.ask = ask});
  const std::vector<std::byte> rest = input.take(head_bytes);
  const std::vector<std::byte> numbers = kind & 64 ? well_formed(ask, rest) : rest;
  head.insert(head.end(), numbers.begin(), numbers.end());
  const std::vector<std::byte> body = input.take(body_bytes);
  const std::array parts{std::span<const std::byte>(body)};
  int descriptor = -1;
  if (kind & 128) descriptor = (head_bytes & 1 ? served().slab : served().other).fd();
  connection.send(head, parts, descriptor);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string address = served().service.addresses()[0];
  Input input(data, size);
  try {
    const auto connection = net::connect(address);
    for (int messages = 0; messages < 20 && !input.empty(); ++messages) {
      send(*connection, input);
      if (!answered(*connection)) break;
    }
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kClosed || error.code() == Code::kDataLoss);
  }
  const auto honest = net::connect(address);
  const wire::AskHead ask;  // statistics
  honest->send(std::as_bytes(std::span(&ask, 1)));
  REQUIRE(answered(*honest));
  return 0;
}
