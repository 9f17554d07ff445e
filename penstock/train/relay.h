#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "penstock/net/connection.h"
#include "penstock/net/listener.h"
#include "penstock/train/model.h"
#include "penstock/train/publisher.h"

// Published weights on other hosts: one process of a host receives each version once and publishes
// it there, so that all readers of that host read in place. docs/training.md, section 5.
namespace penstock::train {

// Sends the versions of a learner of this host to one RelayReceiver. One thread.
class RelaySender {
 public:
  struct Sent {
    uint64_t version = 0;  // the learner's number
    uint64_t skipped = 0;  // versions since the last one that were replaced before they were sent
    uint64_t bytes = 0;
    double seconds = 0;  // from the read here until it was published there
  };

  // `model` is attached to the learner. Connects in the first send(). For a receiver on another
  // host the options need a secret.
  RelaySender(std::shared_ptr<Model> model, std::string address, net::ConnectOptions options);

  // Sends the newest version, if it is not the last one sent, and returns when it is published.
  // nullopt: there was none for timeout_s. After an error the next call connects again. Errors:
  // those of Model::read() and net::connect(); kClosed, kTimeout, kDataLoss; those of the
  // receiver's Publisher.
  std::optional<Sent> send(double timeout_s);
  uint64_t newest() const { return model_->version(); }  // the learner's; any thread

 private:
  void connect();

  const std::shared_ptr<Model> model_;
  const std::string address_;
  const net::ConnectOptions options_;
  std::unique_ptr<net::Connection> connection_;
  std::optional<uint64_t> sent_;  // over this connection
};

// Publishes the weights that a RelaySender sends. The newest sender replaces an earlier one. One
// thread.
class RelayReceiver {
 public:
  struct Received {
    uint64_t version = 0;    // the learner's number
    uint64_t published = 0;  // the number here: the same, or above the last one if that is larger
  };

  // Errors of net::Listener. The name is reserved when the first layout has arrived.
  RelayReceiver(std::string name, const std::string& address, net::ListenOptions options);

  const std::string& address() const { return listener_.address(); }
  // Publishes the next version. nullopt: none came for timeout_s. After an error the sender
  // connects again. Errors of net::Connection and Publisher; kDataLoss: no message of a
  // RelaySender.
  std::optional<Received> receive(double timeout_s);
  size_t readers() const { return publisher_ ? publisher_->readers() : 0; }

 private:
  void take_layout(uint64_t bytes);
  Received take_version(uint64_t version, uint64_t bytes);

  const std::string name_;
  net::Listener listener_;
  std::unique_ptr<net::Connection> connection_;
  std::unique_ptr<Publisher> publisher_;  // keeps the weights readable between two senders
};

}  // namespace penstock::train
