#include "penstock/train/server/shard_follower.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/train/server/shard_messages.h"

namespace penstock::train {
namespace {

constexpr const char* kFollow = "ParameterServer";
constexpr double kReachLeaderS = 5;
constexpr double kStateS = 60;  // until the leader has copied its state

Error damaged_entry(const std::string& why) {
  return Error(Code::kDataLoss, kFollow, "a change from the leader: " + why);
}

}  // namespace

ShardFollower::ShardFollower(std::shared_ptr<ShardMemory> memory, const Optimizer& optimizer,
                             double compensation, Options options)
    : memory_(std::move(memory)),
      update_(memory_, optimizer, static_cast<float>(compensation)),
      compensated_(compensation > 0),
      options_(std::move(options)) {}

void ShardFollower::stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  if (connection_) connection_->close();
}

void ShardFollower::resume() {
  const std::lock_guard lock(mutex_);
  stopped_ = false;
}

std::shared_ptr<net::Connection> ShardFollower::connect(const std::string& address) {
  const auto check = [this] {
    if (stopped_) throw Error(Code::kClosed, kFollow, "this process follows no longer");
  };
  net::ConnectOptions options;
  options.secret = options_.secret;
  options.encrypt = options_.encrypt;
  options.timeout_s = kReachLeaderS;
  options.stall_timeout_s = options_.silence_s;
  options.while_waiting = [this, check] {
    const std::lock_guard lock(mutex_);
    check();
  };
  std::shared_ptr<net::Connection> connection = net::connect(address, options);
  const std::lock_guard lock(mutex_);
  check();
  return connection_ = std::move(connection);
}

std::string ShardFollower::run(const std::string& address) try {
  struct End {
    ~End() {
      const std::lock_guard lock(its.mutex_);
      its.connection_.reset();
    }
    ShardFollower& its;
  } end{*this};
  const auto connection = connect(address);
  std::vector<std::byte> head;
  wire::append(head, wire::AskHead{.ask = wire::Ask::kFollow});
  wire::append(head, wire::FollowHead{.follower = options_.follower,
                                      .server = options_.server,
                                      .floats = memory_->shape().floats,
                                      .states = memory_->shape().states});
  connection->send(head);
  receive_state(*connection);
  for (;;) {
    acknowledge(*connection);
    const auto message = connection->receive(options_.silence_s);
    if (!message) return address + " has ended";
    receive_entry(*connection, *message);
  }
} catch (const Error& error) {
  return error.what();
}

void ShardFollower::acknowledge(net::Connection& connection) const {
  std::vector<std::byte> head;
  wire::append(head, wire::EntryAck{.number = number_});
  connection.send(head);
}

// Into memory of its own first: the state of an earlier call may be the only one that is left.
void ShardFollower::receive_state(net::Connection& connection) {
  const auto message = connection.receive(kStateS);
  if (!message) throw Error(Code::kClosed, kFollow, "the leader has ended");
  ByteReader head = wire::reader(message->head, kFollow);
  const auto answer = head.get<wire::AnswerHead>();
  if (answer.magic != wire::AskHead::kMagic) throw damaged_entry("it is no shard");
  if (answer.status != wire::AnswerHead::kOk) {
    const auto text = head.take(head.left());
    throw Error(Code::kClosed, kFollow, {reinterpret_cast<const char*>(text.data()), text.size()});
  }
  const auto state = head.get<wire::StateHead>();
  const ShardMemory::Shape& shape = memory_->shape();
  const uint64_t slab_bytes = shape.floats * sizeof(float);
  if (head.left() != 0 ||
      message->body_bytes != sizeof(ShardRecord) + (1 + shape.states) * slab_bytes) {
    throw damaged_entry("the state of another shard");
  }
  ShardCheckpoint received;
  connection.receive_body(std::as_writable_bytes(std::span(&received.record, 1)));
  received.weights.resize(shape.floats);
  connection.receive_body(std::as_writable_bytes(std::span(received.weights)));
  for (uint32_t i = 0; i < shape.states; ++i) {
    received.states.emplace_back(shape.floats);
    connection.receive_body(std::as_writable_bytes(std::span(received.states.back())));
  }
  memory_->load(received);
  number_ = state.number;
  has_state_ = true;
}

void ShardFollower::receive_entry(net::Connection& connection, const net::Received& message) {
  ByteReader head = wire::reader(message.head, kFollow);
  const auto entry = head.get<wire::EntryHead>();
  if (entry.magic != wire::AskHead::kMagic) throw damaged_entry("an unknown message");
  if (entry.beat != 0) {
    if (head.left() != 0 || message.body_bytes != 0) throw damaged_entry("a beat with more");
    return;
  }
  if (entry.number != number_ + 1) {
    throw damaged_entry("number " + std::to_string(entry.number) + " after " +
                        std::to_string(number_));
  }
  if (entry.rows > kMaxWorkers || entry.parts > kMaxWorkers) throw damaged_entry("it is too long");
  std::vector<std::pair<uint32_t, LedgerRow>> rows;
  for (uint32_t i = 0; i < entry.rows; ++i) {
    const auto index = head.get<uint32_t>();
    rows.emplace_back(index, head.get<LedgerRow>());
    if (index >= kMaxWorkers) throw damaged_entry("no such row");
  }
  const auto parts = receive_parts(connection, head, entry.parts, message.body_bytes);
  const ShardRecord& before = memory_->record();
  const uint64_t updates = parts.empty() ? 0 : 1;
  if (entry.record.version != before.version + updates ||
      entry.record.step != before.step + updates) {
    throw damaged_entry("version " + std::to_string(entry.record.version) + " after " +
                        std::to_string(before.version));
  }
  const ShardMemory::Change change(*memory_);
  const uint32_t copy = parts.empty() ? memory_->current().copy : update_.compute(parts);
  change.commit(copy, [&](ShardRecord& next) {
    next.version = entry.record.version;
    next.step = entry.record.step;
    next.skipped = entry.record.skipped;
    next.non_finite = entry.record.non_finite;
    next.evictions = entry.record.evictions;
    for (const auto& [index, row] : rows) next.rows[index] = row;
  });
  if (!parts.empty()) update_.committed();
  number_ = entry.number;
}

// The parts are valid until the next call.
std::vector<ShardUpdate::Part> ShardFollower::receive_parts(net::Connection& connection,
                                                            ByteReader& head, uint32_t parts,
                                                            uint64_t body_bytes) {
  const uint64_t floats = memory_->shape().floats;
  std::vector<wire::PartHead> heads;
  uint64_t all = 0;
  for (uint32_t i = 0; i < parts; ++i) {
    const auto part = head.get<wire::PartHead>();
    if (part.encoding >= kEncodings || (part.has_base == 1) != compensated_ ||
        part.bytes > Gradient::bytes_of(static_cast<Encoding>(part.encoding), floats)) {
      throw damaged_entry("no such gradient");
    }
    all += part.bytes + part.has_base * floats * sizeof(float);
    heads.push_back(part);
  }
  if (head.left() != 0 || all != body_bytes) {
    throw damaged_entry("a body of " + std::to_string(body_bytes) + " bytes");
  }
  received_.resize(std::max<size_t>(received_.size(), parts));
  gradients_.clear();
  gradients_.reserve(parts);
  std::vector<ShardUpdate::Part> received;
  for (uint32_t i = 0; i < parts; ++i) {
    const wire::PartHead& part = heads[i];
    const uint64_t base_floats = part.has_base * floats;
    std::vector<float>& into = received_[i];
    into.resize(base_floats + (part.bytes + sizeof(float) - 1) / sizeof(float));
    const auto body =
        std::as_writable_bytes(std::span(into)).first(base_floats * sizeof(float) + part.bytes);
    connection.receive_body(body);
    gradients_.emplace_back(static_cast<Encoding>(part.encoding),
                            body.subspan(base_floats * sizeof(float)), floats);
    received.push_back({&gradients_.back(), part.squares, std::span(into).first(base_floats)});
  }
  return received;
}

}  // namespace penstock::train
