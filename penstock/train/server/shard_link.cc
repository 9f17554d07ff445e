#include "penstock/train/server/shard_link.h"

#include <algorithm>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/memory/copy.h"
#include "penstock/net/connection.h"
#include "penstock/train/server/shard_messages.h"

namespace penstock::train {
namespace {

constexpr size_t kMaxNumbered = 8;
constexpr size_t kMaxKnownSlabs = 32;               // fewer than a shard keeps
constexpr double kConnectS = 5;                     // for one attempt
constexpr double kMinWaitS = 1;                     // a shard may be busy with an update
constexpr size_t kMaxTextBytes = size_t{64} << 20;  // of a layout, or of statistics

Error damaged_answer(const std::string& address, const std::string& why) {
  return Error(Code::kDataLoss, "connect", address + " is no shard of this kind: " + why);
}

constexpr char kShardStats[] = "shard_stats";

}  // namespace

uint64_t SlabNumbers::number_of(const Slab& slab) {
  const auto found = std::ranges::find_if(
      slabs_, [&](const Named& each) { return each.slab.values().data() == slab.values().data(); });
  if (found != slabs_.end()) {
    std::rotate(found, found + 1, slabs_.end());
  } else {
    if (slabs_.size() == kMaxNumbered) slabs_.erase(slabs_.begin());
    slabs_.push_back({slab, next_++});
  }
  return slabs_.back().number;
}

ShardLink::ShardLink(std::shared_ptr<ShardResolver> resolver, size_t shard, Worker worker)
    : resolver_(std::move(resolver)), shard_(shard), worker_(std::move(worker)) {}

void ShardLink::drop() {
  connection_.reset();
  if (asked_ != 0) in_doubt_ = std::exchange(asked_, 0);
  known_slabs_.clear();
}

void ShardLink::limit_wait(double timeout_s) {
  wait_s_ = timeout_s > 0 ? std::max(timeout_s, kMinWaitS) : 0;
}

void ShardLink::connect(double timeout_s) {
  limit_wait(timeout_s);
  if (connection_ != nullptr && !connection_->closed()) return;
  drop();
  net::ConnectOptions options;
  options.secret = worker_.secret;
  options.encrypt = worker_.encrypt;
  options.timeout_s = std::min(timeout_s, kConnectS);
  options.stall_timeout_s = worker_.stall_timeout_s;
  options.while_waiting = worker_.while_waiting;
  const ShardLocation location = resolver_->locate(shard_, options.timeout_s);
  address_ = location.address;
  epoch_ = std::max(epoch_, location.epoch);
  connection_ = net::connect(address_, options);
  local_ = connection_->local();
  try {
    const bool again = layout_.has_value();
    std::vector<std::byte> hello;
    wire::append(hello, wire::HelloHead{.worker = worker_.id,
                                        .name_bytes = static_cast<uint32_t>(worker_.name.size()),
                                        .chosen = worker_.chosen,
                                        .decided = decided_,
                                        .in_doubt = in_doubt_,
                                        .evictions = server_.evictions,
                                        .incarnation = server_.incarnation,
                                        .epoch = epoch_});
    wire::append(hello, worker_.name);
    ask(wire::Ask::kHello, hello);
    Answer said = answer(wait_s_);
    ByteReader rest = wire::reader(said.rest, "connect");
    const auto server = rest.get<wire::ServerHead>();
    if (server.epoch < epoch_) {
      throw Error(Code::kClosed, "connect",
                  address_ + " has epoch " + std::to_string(server.epoch) + ", and epoch " +
                      std::to_string(epoch_) + " has replaced it");
    }
    epoch_ = server.epoch;
    const std::string json = text_body(said.body_bytes);
    Layout layout = Layout::from_json(json);
    if (server.begin >= server.end || server.end > layout.floats()) {
      throw damaged_answer(address_, "its range is outside the layout");
    }
    if (again && (layout != *layout_ || server.begin != server_.begin ||
                  server.end != server_.end || server.server != server_.server)) {
      throw Error(Code::kInvalidArgument, "connect",
                  address_ + " is another server now; make a new client");
    }
    if (connection_->local()) {
      if (!said.descriptor) throw damaged_answer(address_, "no descriptor of its memory");
      memory_ = ShardMemory::open(said.descriptor.get(), ShardMemory::Access::kRead);
      if (memory_->shape().floats != server.end - server.begin) {
        throw damaged_answer(address_, "its memory has another size");
      }
    }
    layout_ = std::move(layout);
    server_ = server;
    if (!again) base_version_ = said.head.version;
    if (ready_) send_ready();
  } catch (...) {
    drop();
    throw;
  }
}

// ---- asking and answering -----------------------------------------------------------------------

void ShardLink::ask(wire::Ask what, std::span<const std::byte> rest,
                    std::span<const std::span<const std::byte>> body, int descriptor) {
  std::vector<std::byte> head;
  wire::append(head, wire::AskHead{.ask = what});
  head.insert(head.end(), rest.begin(), rest.end());
  connection_->send(head, body, descriptor);
}

// The limit is for the beginning of the answer; the connection itself checks that a body keeps
// coming.
ShardLink::Answer ShardLink::answer(double wait_s) {
  std::optional<net::Received> message;
  try {
    message = connection_->receive(wait_s);
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout || connection_->closed()) throw;
    throw Error(Code::kTimeout, "connect",
                address_ + " has not answered for " + std::to_string(wait_s) + " s");
  }
  if (!message) throw Error(Code::kClosed, "connect", address_ + " closed the connection");
  ByteReader head = wire::reader(message->head, "connect");
  Answer answer;
  answer.head = head.get<wire::AnswerHead>();
  if (answer.head.magic != wire::AskHead::kMagic) throw damaged_answer(address_, "no answer");
  const auto rest = head.take(head.left());
  if (answer.head.status != wire::AnswerHead::kOk) {
    asked_ = 0;  // what was refused was not applied
    const uint32_t code = std::min(answer.head.status - 1, static_cast<uint32_t>(Code::kInternal));
    std::string text(reinterpret_cast<const char*>(rest.data()), rest.size());
    throw Error(static_cast<Code>(code), address_, text);
  }
  answer.rest.assign(rest.begin(), rest.end());
  answer.body_bytes = message->body_bytes;
  answer.descriptor = std::move(message->descriptor);
  return answer;
}

std::string ShardLink::text_body(uint64_t bytes) {
  if (bytes > kMaxTextBytes)
    throw damaged_answer(address_, "a text of " + std::to_string(bytes) + " bytes");
  std::string text(bytes, '\0');
  connection_->receive_body(std::as_writable_bytes(std::span(text)));
  return text;
}

void ShardLink::register_slab(const Slab& slab, uint64_t number) {
  if (std::ranges::find(known_slabs_, number) != known_slabs_.end()) return;
  std::vector<std::byte> head;
  wire::append(head, wire::SlabHead{number});
  ask(wire::Ask::kSlab, head, {}, slab.fd());
  (void)answer(wait_s_);
  if (known_slabs_.size() == kMaxKnownSlabs) known_slabs_.erase(known_slabs_.begin());
  known_slabs_.push_back(number);
}

// ---- pushes and pulls ---------------------------------------------------------------------------

void ShardLink::send_push(const Push& push, bool pulls) {
  if (push.slab != nullptr) register_slab(*push.slab, push.slab_number);
  if (push.base_slab != nullptr) register_slab(*push.base_slab, push.base_number);
  wire::PushHead head;
  head.sequence = push.sequence;
  head.squares = push.squares;
  head.base = base_version_;
  head.pulls = pulls_;
  head.pulled_ns = pulled_ns_;
  head.encoding = static_cast<uint32_t>(push.encoding);
  std::vector<std::span<const std::byte>> body;
  if (push.base_slab != nullptr) {
    head.has_base = 1;
    head.base_slab = push.base_number;
  } else if (!push.base.empty()) {
    head.has_base = 1;
    body.push_back(std::as_bytes(push.base));
  }
  if (push.slab != nullptr) head.slab = push.slab_number;
  if (!push.gradient.empty()) body.push_back(push.gradient);
  std::vector<std::byte> bytes;
  wire::append(bytes, head);
  if (in_doubt_ != push.sequence) in_doubt_ = 0;
  asked_ = push.sequence;
  // On the same host the weights are read from the shard's memory.
  const bool answered_with_weights = pulls && !connection_->local();
  ask(answered_with_weights ? wire::Ask::kPushPull : wire::Ask::kPush, bytes, body);
}

// The push is acknowledged before the weights come: if they do not, the push is repeated, and
// answered from the shard's ledger.
Shard::Answer ShardLink::receive_push(std::optional<std::span<float>> pulled) {
  const Answer said = answer(server_.holds != 0 ? kForEver : wait_s_);
  pulls_ = pulled_ns_ = 0;
  decided_ = std::exchange(asked_, 0);
  in_doubt_ = 0;
  if (!pulled) return {said.head.outcome, said.head.version};
  if (!connection_->local()) return {said.head.outcome, weights_body(said, *pulled)};
  begin_pull();
  return {said.head.outcome, end_pull(*pulled)};
}

void ShardLink::begin_pull() {
  if (!connection_->local()) return ask(wire::Ask::kPull);
  // The memory of a shard that has ended can be read, but no longer has the server's weights.
  if (!connection_->idle()) throw Error(Code::kClosed, "pull", address_ + " is gone");
}

uint64_t ShardLink::end_pull(std::span<float> into) {
  if (connection_->local()) {
    pulled_ns_ = now_ns();
    const ShardMemory::Current now = memory_->current();
    copy_stream(into.data(), memory_->weights(now.copy).data(), into.size_bytes());
    ++pulls_;
    return base_version_ = now.version;
  }
  return weights_body(answer(wait_s_), into);
}

uint64_t ShardLink::weights_body(const Answer& said, std::span<float> into) {
  if (said.body_bytes != into.size_bytes())
    throw damaged_answer(address_, "weights of another size");
  connection_->receive_body(std::as_writable_bytes(into));
  return base_version_ = said.head.version;
}

void ShardLink::send_ready() {
  ask(wire::Ask::kReady);
  (void)answer(wait_s_);
  ready_ = true;
}

void ShardLink::send_alive() {
  ask(wire::Ask::kAlive);
  (void)answer(wait_s_);
}

std::string ShardLink::stats() {
  ask(wire::Ask::kStats);
  return text_body(answer(wait_s_).body_bytes);
}

void ShardLink::bye(double wait_s) {
  if (connection_ == nullptr) return;
  try {
    ask(wire::Ask::kBye);
    (void)answer(wait_s);
  } catch (const Error&) {
  } catch (...) {
    drop();
    throw;
  }
  drop();
}

std::string shard_stats(const std::string& address, const std::string& secret,
                        std::optional<bool> encrypt, double timeout_s,
                        const std::function<void()>& while_waiting) {
  net::ConnectOptions options;
  options.secret = secret;
  options.encrypt = encrypt;
  options.timeout_s = timeout_s;
  options.stall_timeout_s = timeout_s;
  options.max_body_bytes = uint64_t{64} << 20;
  options.while_waiting = while_waiting;
  const auto connection = net::connect(address, options);

  const wire::AskHead question{.ask = wire::Ask::kStats};
  connection->send(std::as_bytes(std::span(&question, 1)));
  const auto received = connection->receive(timeout_s);
  if (!received) throw Error(Code::kClosed, kShardStats, address + " left without an answer");
  ByteReader head = wire::reader(received->head, kShardStats);
  const auto answer = head.get<wire::AnswerHead>();
  if (answer.magic != wire::AskHead::kMagic || answer.status != wire::AnswerHead::kOk) {
    throw Error(Code::kDataLoss, kShardStats, address + " is no shard of this kind");
  }
  std::string text(received->body_bytes, '\0');
  connection->receive_body(std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace penstock::train
