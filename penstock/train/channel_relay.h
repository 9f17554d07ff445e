#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/net/connection.h"
#include "penstock/net/listener.h"
#include "penstock/train/channel.h"
#include "penstock/train/producer.h"

// A channel that producers of other hosts put into, too: each of those hosts has a channel with the
// learner's capacity and policy, whose items are put into the learner's. docs/training.md,
// section 6.
//
// The learner's host asks for items, so an item leaves the other host's channel only when there is
// space for it. A message of items is numbered and kept until the next one is asked for: after a
// broken connection it is sent again, unless it had arrived. So no item is lost or put twice while
// both ends exist.
namespace penstock::train {

struct ItemQuestion;  // a message of ItemReceiver

// The end on a producers' host. One thread.
class ItemSender {
 public:
  // `name`: of the channel on this host, which exists while the learner's does. Errors of
  // net::Listener.
  ItemSender(std::string name, const std::string& address, net::ListenOptions options);

  const std::string& address() const { return listener_.address(); }
  // Answers one question of an ItemReceiver; the newest one replaces an earlier one. Returns the
  // number of items that were sent for the first time; 0 also if no question came for timeout_s.
  // After an error the receiver connects again. Errors of net::Connection and Channel; kDataLoss:
  // no question of an ItemReceiver.
  uint64_t answer(double timeout_s);

 private:
  std::optional<ItemQuestion> next(double timeout_s);
  void open(const ItemQuestion& question);
  uint64_t give(const ItemQuestion& question);
  void send_counts(std::span<const std::byte> records);
  void pack(const Items& items);

  const std::string name_;
  net::Listener listener_;
  std::unique_ptr<net::Connection> connection_;
  std::unique_ptr<Channel> channel_;
  uint64_t session_ = 0;  // of channel_
  // The last message: its number, and records as a ring has them (channel_memory.h).
  uint64_t number_ = 0;
  uint64_t items_ = 0;
  std::vector<uint64_t> records_;
};

// The end on the learner's host, one for each other host. One thread.
class ItemReceiver {
 public:
  struct Taken {
    uint64_t items = 0;
    uint64_t bytes = 0;  // of the message
    double seconds = 0;  // from its arrival until all its items were put
  };

  // `name`: of the learner's channel. Connects in the first take(). For a sender on another host
  // the options need a secret.
  ItemReceiver(std::string name, std::string address, net::ConnectOptions options);

  // Takes items from the other host and puts them into the channel. nullopt: none came, or not all
  // of them could be put within timeout_s, because the channel is full; the next call continues.
  // Errors: kTimeout (no learner), kClosed (the learner has ended: the other host's channel was
  // closed, and items in it are lost as those of this host's producers), kSystem (the name cannot
  // be used on the other host), those of net::connect() and net::Connection. After each of them the
  // next call connects again.
  std::optional<Taken> take(double timeout_s);

  // Of the channel on the other host, at the last message. `queued`: items that wait there.
  const ProducerCounts& there() const { return there_; }

 private:
  void attach(double timeout_s);
  void connect();
  bool ask(double timeout_s);
  std::pair<uint64_t, uint64_t> receive_counts(double timeout_s);
  bool put_rest(double timeout_s);
  uint64_t put_one(std::span<std::byte> records, double timeout_s);
  void end_session() noexcept;

  const std::string name_;
  const std::string address_;
  const net::ConnectOptions options_;
  std::unique_ptr<Producer> producer_;
  uint64_t session_ = 0;  // of producer_; the sender makes a channel for each
  std::unique_ptr<net::Connection> connection_;
  ProducerCounts there_;
  uint64_t taken_ = 0;  // number of the last message that has arrived

  // That message, and what is left of it.
  std::vector<uint64_t> records_;
  uint64_t items_ = 0;
  size_t at_ = 0;            // byte offset of the next record
  uint64_t item_bytes_ = 0;  // of a record, on average; 0: not known yet
  uint64_t arrived_ns_ = 0;
  SpecRef spec_;  // of the last item
};

}  // namespace penstock::train
