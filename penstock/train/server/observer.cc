#include "penstock/train/server/observer.h"

#include "penstock/base/error.h"
#include "penstock/net/connection.h"
#include "penstock/train/server/shard_messages.h"

namespace penstock::train {
namespace {

constexpr char kOperation[] = "shard_stats";

}  // namespace

std::string shard_stats(const std::string& address, const std::string& secret, bool encrypt,
                        double timeout_s, const std::function<void()>& while_waiting) {
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
  if (!received) throw Error(Code::kClosed, kOperation, address + " left without an answer");
  ByteReader head = wire::reader(received->head, kOperation);
  const auto answer = head.get<wire::AnswerHead>();
  if (answer.magic != wire::AskHead::kMagic || answer.status != wire::AnswerHead::kOk) {
    throw Error(Code::kDataLoss, kOperation, address + " is no shard of this kind");
  }
  std::string text(received->body_bytes, '\0');
  connection->receive_body(std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace penstock::train
