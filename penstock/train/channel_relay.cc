#include "penstock/train/channel_relay.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "penstock/base/byte_reader.h"
#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/element/chunk.h"

namespace penstock::train {

// Questions of the receiver. kTake is answered with kItems, kOpen with kItems that has none, or
// kFailed and the text of an error; kEnd is not answered.
enum class ItemKind : uint32_t { kOpen = 1, kTake = 2, kEnd = 3, kItems = 4, kFailed = 5 };

struct ItemQuestion {
  static constexpr uint32_t kMagic = 0x3143'5250;  // "PRC1"
  uint32_t magic = kMagic;
  ItemKind kind = ItemKind::kOpen;
  uint64_t session = 0;
  uint64_t capacity = 0;  // of kOpen
  uint64_t taken = 0;     // of kTake: number of the last message that arrived
  uint64_t most = 0;      // of kTake: items
  WhenFull when_full = WhenFull::kBlock;
  uint32_t reserved = 0;
};

namespace {

constexpr const char* kItemRelay = "channel relay";
constexpr uint64_t kMessageBytes = uint64_t{4} << 20;  // about as many are asked for
constexpr uint64_t kMaxMessageItems = 4096, kFirstMessageItems = 64;
constexpr double kNewerS = 0.05;  // between two looks for a newer receiver
constexpr double kGiveS = 0.2;    // how long the sender waits for an item
constexpr double kItemsS = 60;    // for the sender to answer

struct ItemsHead {
  static constexpr uint32_t kMagic = 0x3149'5250;  // "PRI1"
  uint32_t magic = kMagic;
  ItemKind kind = ItemKind::kItems;
  uint64_t number = 0;  // of this message; without items: of the last one
  uint64_t items = 0;
  uint64_t put = 0, got = 0, dropped = 0, refused = 0, queued = 0;  // ProducerCounts
};

template <class Head>
Head item_head(const net::Received& message) {
  ByteReader reader{message.head, Code::kDataLoss, kItemRelay};
  const auto head = reader.get<Head>();
  if (head.magic != Head::kMagic) {
    throw Error(Code::kDataLoss, kItemRelay, "the other end is no relay of a channel");
  }
  return head;
}

template <class Head>
std::span<const std::byte> head_bytes(const Head& head) {
  return std::as_bytes(std::span(&head, 1));
}

uint64_t in_units(uint64_t bytes) { return (bytes + kRecordUnit - 1) / kRecordUnit * kRecordUnit; }

}  // namespace

// ---- the producers' host ------------------------------------------------------------------------

ItemSender::ItemSender(std::string name, const std::string& address, net::ListenOptions options)
    : name_(std::move(name)), listener_(address, std::move(options)) {}

uint64_t ItemSender::answer(double timeout_s) try {
  const auto question = next(timeout_s);
  if (!question) return 0;
  switch (question->kind) {
    case ItemKind::kOpen:
      open(*question);
      return 0;
    case ItemKind::kTake:
      return give(*question);
    case ItemKind::kEnd:
      channel_.reset();
      return 0;
    default:
      throw Error(Code::kDataLoss, kItemRelay, "the other end asks no question");
  }
} catch (...) {
  connection_.reset();
  throw;
}

std::optional<ItemQuestion> ItemSender::next(double timeout_s) {
  const Deadline end(timeout_s);
  for (;;) {
    if (auto newer = listener_.accept(connection_ ? 0 : end.left_s())) {
      connection_ = std::move(newer);
    }
    if (!connection_) return std::nullopt;
    try {
      if (auto message = connection_->receive(std::min(kNewerS, end.left_s()))) {
        return item_head<ItemQuestion>(*message);
      }
      connection_.reset();
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout || connection_->closed()) throw;
      if (end.passed()) return std::nullopt;
    }
  }
}

void ItemSender::open(const ItemQuestion& question) {
  if (channel_ && session_ == question.session) {  // after a broken connection
    send_counts({});
    return;
  }
  channel_.reset();
  number_ = items_ = 0;
  records_.clear();
  if (question.when_full > WhenFull::kDropNewest) {
    throw Error(Code::kDataLoss, kItemRelay, "a channel's policy that does not exist");
  }
  try {
    channel_ = std::make_unique<Channel>(
        name_, ChannelOptions{.capacity = question.capacity, .when_full = question.when_full});
  } catch (const Error& error) {
    const std::string why = error.what();
    const std::array body{std::as_bytes(std::span(why))};
    connection_->send(head_bytes(ItemsHead{.kind = ItemKind::kFailed}), body);
    throw;
  }
  session_ = question.session;
  send_counts({});
}

uint64_t ItemSender::give(const ItemQuestion& question) {
  if (!channel_ || question.session != session_) {
    throw Error(Code::kDataLoss, kItemRelay,
                "items of a channel that was not opened are asked for");
  }
  // Else the last message was lost with its connection: it is sent again.
  const bool next = items_ == 0 || question.taken == number_;
  if (question.taken != (next ? number_ : number_ - 1)) {
    throw Error(Code::kDataLoss, kItemRelay, "a message that does not exist is acknowledged");
  }
  if (next) {
    items_ = 0;
    records_.clear();
    try {
      pack(channel_->get(std::clamp<uint64_t>(question.most, 1, kMaxMessageItems),
                         static_cast<int64_t>(kGiveS * 1e9)));
    } catch (const Error& error) {
      // A producer put an invalid item, and its next put() says so. Nothing was taken.
      if (error.code() != Code::kDataLoss) throw;
    }
    if (items_ != 0) ++number_;
  }
  send_counts(std::as_bytes(std::span(records_)));
  return next ? items_ : 0;
}

// An answer; `records`: of the items.
void ItemSender::send_counts(std::span<const std::byte> records) {
  ItemsHead head{.number = number_, .items = records.empty() ? 0 : items_};
  for (const ProducerCounts& each : channel_->stats()) {
    head.put += each.put;
    head.got += each.got;
    head.dropped += each.dropped;
    head.refused += each.refused;
    head.queued += each.queued;
  }
  const std::array body{records};
  connection_->send(head_bytes(head), body);
}

void ItemSender::pack(const Items& items) {
  Scratch scratch;
  Chunk chunk(scratch);
  for (size_t item = 0; item < items.size(); ++item) {
    const auto [block, row] = items[item];
    const SpecRef& spec = items.blocks()[block].spec();
    chunk.reset(spec, 1);
    items.blocks()[block].view(row, chunk, 0);
    const BlockLayout layout = row_layout(chunk, 0);
    const auto spec_bytes = spec->bytes();
    const uint64_t front = in_units(sizeof(RecordHeader) + spec_bytes.size());
    const RecordHeader header{front + in_units(layout.bytes()), spec_bytes.size()};
    const size_t at = records_.size() * sizeof(uint64_t);
    records_.resize(records_.size() + header.bytes / sizeof(uint64_t));
    std::byte* to = reinterpret_cast<std::byte*>(records_.data()) + at;
    std::memcpy(to, &header, sizeof(header));
    std::memcpy(to + sizeof(header), spec_bytes.data(), spec_bytes.size());
    write_row(chunk, 0, layout, to + front);
  }
  items_ = items.size();
}

// ---- the learner's host -------------------------------------------------------------------------

ItemReceiver::ItemReceiver(std::string name, std::string address, net::ConnectOptions options)
    : name_(std::move(name)), address_(std::move(address)), options_(std::move(options)) {}

std::optional<ItemReceiver::Taken> ItemReceiver::take(double timeout_s) try {
  const Deadline end(timeout_s);
  attach(timeout_s);
  if (!connection_) connect();
  if (items_ == 0 && !ask(timeout_s)) return std::nullopt;
  if (!put_rest(end.left_s())) return std::nullopt;
  const Taken taken{.items = std::exchange(items_, 0),
                    .bytes = records_.size() * sizeof(uint64_t),
                    .seconds = 1e-9 * static_cast<double>(now_ns() - arrived_ns_)};
  return taken;
} catch (...) {
  connection_.reset();
  throw;
}

void ItemReceiver::attach(double timeout_s) {
  if (producer_ && producer_->alive()) return;
  if (producer_) {
    end_session();
    throw Error(Code::kClosed, kItemRelay, "the learner of '" + name_ + "' has ended");
  }
  producer_ = std::make_unique<Producer>(
      name_, ProducerOptions{.timeout_ns = static_cast<int64_t>(timeout_s * 1e9),
                             .always_wait = true,
                             .while_waiting = options_.while_waiting});
  session_ = std::max(now_ns(), session_ + 1);
  taken_ = items_ = 0;
  there_ = {};
}

void ItemReceiver::connect() {
  const auto shape = producer_->channel_shape();
  if (!shape) throw Error(Code::kClosed, kItemRelay, "the learner of '" + name_ + "' has ended");
  connection_ = net::connect(address_, options_);
  connection_->send(head_bytes(ItemQuestion{.kind = ItemKind::kOpen,
                                            .session = session_,
                                            .capacity = shape->capacity,
                                            .when_full = shape->when_full}));
  receive_counts(kItemsS);
}

// The learner has ended: the other host's producers are to notice that as this host's do.
void ItemReceiver::end_session() noexcept {
  producer_.reset();
  items_ = 0;
  try {
    if (!connection_) connection_ = net::connect(address_, options_);
    connection_->send(head_bytes(ItemQuestion{.kind = ItemKind::kEnd, .session = session_}));
  } catch (...) {  // NOLINT(bugprone-empty-catch): the next session ends this one
  }
}

// Receives a message in full. False: there are no items.
bool ItemReceiver::ask(double timeout_s) {
  const uint64_t most = item_bytes_ == 0 ? kFirstMessageItems : kMessageBytes / item_bytes_;
  connection_->send(
      head_bytes(ItemQuestion{.kind = ItemKind::kTake,
                              .session = session_,
                              .taken = taken_,
                              .most = std::clamp<uint64_t>(most, 1, kMaxMessageItems)}));
  const auto [items, bytes] = receive_counts(timeout_s);
  if (items == 0) return false;
  records_.resize(bytes / sizeof(uint64_t));
  connection_->receive_body(std::as_writable_bytes(std::span(records_)));
  arrived_ns_ = now_ns();
  ++taken_;
  items_ = items;
  item_bytes_ = bytes / items;
  at_ = 0;
  return true;
}

// The items of the next answer, and the bytes of its body.
std::pair<uint64_t, uint64_t> ItemReceiver::receive_counts(double timeout_s) {
  const auto message = connection_->receive(std::max(timeout_s, kItemsS));
  if (!message) throw Error(Code::kClosed, kItemRelay, address_ + " left");
  const auto head = item_head<ItemsHead>(*message);
  if (head.kind == ItemKind::kFailed) {
    std::string why(std::min<uint64_t>(message->body_bytes, 4096), '\0');
    connection_->receive_body(std::as_writable_bytes(std::span(why)));
    throw Error(Code::kSystem, kItemRelay, address_ + ": " + why);
  }
  const bool next = head.items == 0 || (head.number == taken_ + 1 && message->body_bytes != 0);
  if (head.kind != ItemKind::kItems || !next || message->body_bytes % kRecordUnit != 0) {
    throw Error(Code::kDataLoss, kItemRelay, "a message that was not asked for");
  }
  there_ = {.put = head.put,
            .got = head.got,
            .dropped = head.dropped,
            .refused = head.refused,
            .queued = head.queued};
  return {head.items, message->body_bytes};
}

// False: the channel is full.
bool ItemReceiver::put_rest(double timeout_s) {
  const Deadline end(timeout_s);
  const std::span<std::byte> all = std::as_writable_bytes(std::span(records_));
  while (at_ < all.size()) {
    try {
      at_ += put_one(all.subspan(at_), end.left_s());
    } catch (const Error& error) {
      if (error.code() == Code::kTimeout) return false;
      items_ = 0;
      if (error.code() == Code::kClosed) end_session();
      throw;
    }
  }
  return true;
}

// Returns the bytes of the first record.
uint64_t ItemReceiver::put_one(std::span<std::byte> records, double timeout_s) {
  ByteReader reader{records, Code::kDataLoss, kItemRelay};
  const auto header = reader.get<RecordHeader>();
  const auto spec_bytes = reader.take(header.spec_bytes);
  const uint64_t front = in_units(sizeof(header) + header.spec_bytes);
  if (header.bytes > records.size() || header.bytes < front || header.bytes % kRecordUnit != 0) {
    throw Error(Code::kDataLoss, kItemRelay, "a record has invalid sizes");
  }
  if (spec_ == nullptr || !std::ranges::equal(spec_->bytes(), spec_bytes)) {
    spec_ = std::make_shared<ElementSpec>(spec_bytes);
  }
  const auto block = records.subspan(front, header.bytes - front);
  // Checks what has arrived: the learner would disconnect this producer.
  const penstock::Block item(spec_, 1, block.data(), block.size(), nullptr);
  producer_->put(
      *spec_, block.size(),
      [&](std::byte* to) {
        if (!block.empty()) std::memcpy(to, block.data(), block.size());
      },
      static_cast<int64_t>(timeout_s * 1e9));
  return header.bytes;
}

}  // namespace penstock::train
