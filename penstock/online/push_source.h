#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "penstock/online/message.h"

namespace penstock::online {

// A source for a program that receives its messages itself, for example in the callback of another
// library:
//
//   auto source = std::make_shared<PushSource>();
//   MessageQueue queue({.max_messages = 1000});
//   queue.start(source);
//   bus.on_message([&](std::string_view topic, std::span<const std::byte> payload) {
//     source->push({.topic = topic, .payload = payload});
//   });
//   while (!queue.finished()) {
//     const auto messages = queue.take(256);
//     ...  // predict and train
//     queue.trained(queue.next_offset());
//   }
//
// Threads: any. The order of the messages is that of the calls.
class PushSource final : public MessageSource {
 public:
  // Called with the tokens of messages that are safe, by any thread, without locks. It may push(),
  // but not stop() the queue or the source.
  using Acknowledged = std::function<void(std::span<const uint64_t>)>;

  explicit PushSource(Acknowledged acknowledged = nullptr)
      : acknowledged_(std::move(acknowledged)) {}

  // Copies the message into the queue; received_ns 0: now. If the queue is full, with kBlock, it
  // waits first. False: dropped by policy, and no acknowledgement will follow. Errors: kClosed (not
  // started, or stopped, also while it waits), kTimeout, kSystem (a write to the log has failed:
  // what was pushed before is in it, or was not acknowledged), those of MessageQueue::put().
  bool push(Message message, int64_t timeout_ns = -1);
  // No more messages will be pushed. `error`: why, for the consumer. Nothing, if not started.
  void end(const std::string& error = "");

  void start(MessageSink& sink) override;  // error kInvalidArgument: it is started
  void acknowledge(std::span<const uint64_t> tokens) override;
  void space() override;
  void stop() override;  // waits until no push() is in the queue
  std::string state() const override { return "{}"; }
  void publish(std::string_view topic, std::span<const std::byte> payload, int qos) override;

 private:
  class Use;

  const Acknowledged acknowledged_;
  std::mutex mutex_;  // not held while the sink or acknowledged_ is called
  std::condition_variable changed_;
  MessageSink* sink_ = nullptr;
  uint64_t uses_ = 0;    // calls of push() and end() that use the sink
  uint64_t spaces_ = 0;  // calls of space()
};

}  // namespace penstock::online
