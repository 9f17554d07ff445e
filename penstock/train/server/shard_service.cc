#include "penstock/train/server/shard_service.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/train/server/shard_messages.h"
#include "penstock/train/slab.h"

namespace penstock::train {
namespace {

constexpr size_t kMaxSlabs = 64;  // kept for a connection: the last registered

// Gradients that are received at a time, unless the mode may hold pushes until others arrive. A
// shard applies them one after the other.
constexpr size_t kGradients = 8;
constexpr double kGradientPatienceS = 1;

// Whether the mode may hold pushes for any time.
bool holds(const ServerMode& mode) { return mode.staleness.has_value() || mode.workers > 1; }

Error damaged(const std::string& why) { return Error(Code::kDataLoss, "shard", why); }

void refuse_over(net::Connection& connection, const Error& error) {
  std::vector<std::byte> bytes;
  wire::append(bytes, wire::AnswerHead{.status = 1 + static_cast<uint32_t>(error.code())});
  wire::append(bytes, std::string(error.what()).substr(0, 4096));
  connection.send(bytes);
}

// A worker sends nothing before it has its answer, so readable data means that the connection has
// ended.
Error gone() { return damaged("the worker hung up before the answer"); }

}  // namespace

// Serves one connection. One thread.
class ShardService::Session {
 public:
  Session(ShardService& service, net::Connection& connection)
      : service_(service), connection_(connection) {}
  ~Session() {
    if (goodbye_sent_ || worker_ == 0) return;
    if (made_worker_) {
      service_.shard_->undo_join(worker_, hello_);
    } else {
      service_.shard_->on_disconnect(worker_, hello_);
    }
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Until the peer disconnects or sends an invalid message.
  void run() {
    while (auto message = connection_.receive(kForEver)) {
      try {
        answer(*message);
      } catch (const Error& error) {
        if (connection_.closed()) return;
        refuse(error);
        if (error.code() == Code::kDataLoss) return;
      }
      if (goodbye_sent_) return;
    }
  }

 private:
  using Parts = std::vector<std::span<const std::byte>>;

  void answer(net::Received& message) {
    const bool made_worker = std::exchange(made_worker_, false);
    ByteReader head = wire::reader(message.head, "shard");
    const auto ask = head.get<wire::AskHead>();
    if (ask.magic != wire::AskHead::kMagic) throw damaged("no message to a shard");
    const bool pushes = ask.ask == wire::Ask::kPush || ask.ask == wire::Ask::kPushPull;
    if (!pushes && message.body_bytes > 0) throw damaged("an unexpected body");
    switch (ask.ask) {
      case wire::Ask::kHello:
        return hello(head);
      case wire::Ask::kSlab:
        return register_slab(head, std::move(message.descriptor));
      case wire::Ask::kPush:
      case wire::Ask::kPushPull:
        return push(head, message.body_bytes, ask.ask == wire::Ask::kPushPull);
      case wire::Ask::kPull:
        return pull(head);
      case wire::Ask::kStats:
        end(head);
        return send(ok(), text_of(service_.shard_->stats()));
      case wire::Ask::kBye:
        end(head);
        goodbye_sent_ = true;
        if (worker_ != 0) service_.shard_->leave(worker_, hello_);
        return send(ok(), {});
      case wire::Ask::kReady:
        end(head);
        require_worker();
        if (!connection_.idle()) {  // the worker gave up connecting meanwhile
          made_worker_ = made_worker;
          throw gone();
        }
        service_.shard_->ready(worker_);
        return send(ok(), {});
      case wire::Ask::kAlive:
        end(head);
        require_worker();
        service_.shard_->alive(worker_);
        return send(ok(), {});
      case wire::Ask::kFollow:
        return follow(head);
    }
    throw damaged("no such message");
  }

  void hello(ByteReader& head) {
    const auto hello = head.get<wire::HelloHead>();
    if (hello.name_bytes > wire::kMaxNameBytes) throw damaged("the name is too long");
    const std::string name = head.text(hello.name_bytes);
    end(head);
    if (!connection_.idle()) {
      service_.shard_->cancel_push(hello.worker);
      throw gone();
    }
    const uint64_t epoch = service_.epoch();
    if (hello.epoch > epoch) {
      throw Error(Code::kClosed, "shard",
                  "epoch " + std::to_string(hello.epoch) + " has replaced this shard with epoch " +
                      std::to_string(epoch));
    }
    wire::ServerHead server;
    server.epoch = epoch;
    server.lease_s = service_.mode_.lease_s;
    server.server = service_.place_.server;
    wire::AnswerHead answer = ok();
    const auto known = service_.shard_->join({.id = hello.worker,
                                              .name = name,
                                              .address = connection_.peer(),
                                              .chosen = hello.chosen != 0,
                                              .decided = hello.decided,
                                              .in_doubt = hello.in_doubt,
                                              .evictions = hello.evictions,
                                              .incarnation = hello.incarnation});
    worker_ = hello.worker;
    hello_ = known.hello;
    made_worker_ = known.is_new;
    server.sequence = known.sequence;
    server.known = !known.is_new;
    server.evictions = known.evictions;
    server.incarnation = known.incarnation;
    answer.outcome = known.outcome;
    server.begin = service_.place_.range.begin;
    server.end = service_.place_.range.end;
    server.compensated = service_.mode_.compensation > 0;
    server.non_finite = static_cast<uint32_t>(service_.mode_.non_finite);
    server.holds = holds(service_.mode_);
    std::vector<std::byte> bytes;
    wire::append(bytes, answer);
    wire::append(bytes, server);
    os::Fd memory;
    if (connection_.local()) memory = service_.view_->read_only();
    const Parts body = text_of(service_.place_.layout.to_json());
    connection_.send(bytes, body, memory.get());
  }

  // Until the follower is lost.
  void follow(ByteReader& head) {
    const auto follow = head.get<wire::FollowHead>();
    end(head);
    const auto& replicas = service_.place_.replicas;
    const ShardMemory::Shape& shape = service_.view_->shape();
    if (!replicas || worker_ != 0 || follow.follower == 0) throw damaged("it has no follower");
    if (follow.floats != shape.floats || follow.states != shape.states) {
      throw Error(Code::kInvalidArgument, "shard", "the follower is of another shard");
    }
    replicas->serve(connection_, follow.follower, follow.server,
                    [this](const auto& at) { return service_.shard_->copy(at); });
  }

  void register_slab(ByteReader& head, os::Fd descriptor) {
    const auto slab = head.get<wire::SlabHead>();
    end(head);
    require_worker();
    if (!descriptor) throw damaged("a slab without a descriptor");
    Slab opened = Slab::open(descriptor.get(), service_.place_.layout);
    std::erase_if(slabs_, [&](const auto& each) { return each.first == slab.slab; });
    if (slabs_.size() == kMaxSlabs) slabs_.erase(slabs_.begin());
    slabs_.emplace_back(slab.slab, std::move(opened));
    send(ok(), {});
  }

  void push(ByteReader& head, uint64_t body_bytes, bool pulls) {
    const auto push = head.get<wire::PushHead>();
    end(head);
    require_worker();
    const size_t floats = service_.place_.range.size();
    if (push.encoding >= kEncodings || push.has_base > 1) throw damaged("no such push");
    const auto encoding = static_cast<Encoding>(push.encoding);
    const bool in_slab = push.slab != wire::PushHead::kInBody;
    const bool base_in_body = push.has_base == 1 && push.base_slab == wire::PushHead::kInBody;
    const uint64_t base_bytes = base_in_body ? floats * sizeof(float) : 0;
    const bool runs = encoding == Encoding::kRuns;  // whose positions are in the body
    const uint64_t most = in_slab && !runs ? 0 : Gradient::bytes_of(encoding, floats);
    if (body_bytes < base_bytes || body_bytes - base_bytes > most ||
        (in_slab && encoding != Encoding::kFloat32 && !runs) || (runs && push.has_base == 1)) {
      throw damaged("a push with a body of " + std::to_string(body_bytes) + " bytes");
    }
    // The base comes first, so that the rest begins at a whole float.
    std::optional<GradientPool::Buffer> buffer;
    std::span<float> carried;
    if (body_bytes > 0) {
      buffer.emplace(*service_.gradients_, (body_bytes + sizeof(float) - 1) / sizeof(float));
      carried = buffer->floats();
    }
    const auto body = std::as_writable_bytes(carried).first(body_bytes);
    connection_.receive_body(body);
    if (!connection_.idle()) throw gone();  // its memory may no longer hold that push

    Shard::Push given;
    given.worker = worker_;
    given.sequence = push.sequence;
    given.hello = hello_;
    given.squares = push.squares;
    given.base = push.base;
    given.pulls = push.pulls;
    if (connection_.local()) given.pulled_ns = push.pulled_ns;  // comparable on the same host only
    const std::span<const std::byte> came = body.subspan(base_bytes);
    if (!in_slab) {
      given.gradient = Gradient(encoding, came, floats);
    } else if (runs) {
      given.gradient = Gradient(came, values_of(push.slab), floats);
    } else {
      given.gradient = Gradient(encoding, std::as_bytes(values_of(push.slab)), floats);
    }
    const size_t beside = !in_slab ? 0 : runs ? given.gradient.carried() : floats;
    given.bytes = body_bytes + beside * sizeof(float);
    given.in_place = in_slab || (push.has_base == 1 && !base_in_body);
    if (base_in_body) given.base_weights = carried.first(floats);
    if (push.has_base == 1 && !base_in_body) given.base_weights = values_of(push.base_slab);
    given.is_connected = [this] { return connection_.idle(); };
    const Shard::Answer answer = service_.shard_->push(given);
    wire::AnswerHead decided = ok();
    decided.outcome = answer.outcome;
    decided.version = answer.version;
    if (!pulls) return send(decided, {});
    buffer.reset();  // for other workers, while the weights are sent
    send_weights(decided);
  }

  void pull(ByteReader& head) {
    end(head);
    require_worker();
    send_weights({});
  }

  void send_weights(wire::AnswerHead answer) {
    answer.version = ok().version;  // read before the floats
    const auto weights = std::as_bytes(service_.view_->weights(service_.view_->current().copy));
    service_.shard_->pulled(worker_, weights.size());
    send(answer, {weights});
  }

  std::span<const float> values_of(uint64_t slab) const {
    const auto found =
        std::ranges::find_if(slabs_, [&](const auto& each) { return each.first == slab; });
    if (found == slabs_.end()) {
      throw Error(Code::kNotFound, "push", "no slab with number " + std::to_string(slab));
    }
    const Range range = service_.place_.range;
    return found->second.values().subspan(range.begin, range.size());
  }

  void require_worker() const {
    if (worker_ == 0) throw damaged("a worker must say hello first");
  }
  static void end(const ByteReader& head) {
    if (head.left() != 0) throw damaged("the head is too long");
  }
  wire::AnswerHead ok() const { return {.version = service_.view_->current().version}; }
  static Parts text_of(std::string_view text) { return {std::as_bytes(std::span(text))}; }

  void send(const wire::AnswerHead& answer, const Parts& body) {
    connection_.send(std::as_bytes(std::span(&answer, 1)), body);
  }
  void refuse(const Error& error) { refuse_over(connection_, error); }

  ShardService& service_;
  net::Connection& connection_;
  uint64_t worker_ = 0;
  uint64_t hello_ = 0;        // number of its hello
  bool made_worker_ = false;  // its hello made it a worker, and nothing was received since
  std::vector<std::pair<uint64_t, Slab>> slabs_;  // by the worker's numbers
  bool goodbye_sent_ = false;
};

ShardService::ShardService(std::shared_ptr<Shard> shard, ShardPlace place, ServerMode mode,
                           const std::vector<std::string>& addresses, const std::string& secret,
                           std::optional<bool> encrypt, size_t max_connections)
    : shard_(std::move(shard)),
      view_(ShardMemory::open(shard_->memory()->fd(), ShardMemory::Access::kRead)),
      place_(std::move(place)),
      mode_(mode),
      max_connections_(max_connections),
      gradients_(std::make_unique<GradientPool>(holds(mode) ? 0 : kGradients, kGradientPatienceS)) {
  net::ListenOptions options;
  options.secret = secret;
  options.encrypt = encrypt;
  options.max_body_bytes = 12 * static_cast<uint64_t>(place_.range.size());
  for (const std::string& address : addresses) {
    listeners_.push_back(std::make_unique<net::Listener>(address, options));
  }
  watch_forks();
  try {
    for (const auto& listener : listeners_) {
      accepting_.emplace_back([this, &listener = *listener] { listen(listener); });
    }
  } catch (const std::system_error& error) {
    close();
    ignore_forks();
    throw Error::from_errno(error.code().value(), "shard", "cannot start a thread");
  }
}

ShardService::~ShardService() {
  close();
  ignore_forks();
}

std::vector<std::string> ShardService::addresses() const {
  std::vector<std::string> addresses;
  for (const auto& listener : listeners_) addresses.push_back(listener->address());
  return addresses;
}

void ShardService::close() {
  if (inherited_.load()) {
    // This process has no such threads: the objects are leaked.
    (void)new std::vector<std::thread>(std::move(accepting_));
    (void)new std::list<std::unique_ptr<Client>>(std::move(clients_));
    (void)gradients_.release();
    return;
  }
  for (const auto& listener : listeners_) listener->close();
  for (std::thread& thread : accepting_) thread.join();
  accepting_.clear();
  shard_->close();
  std::list<std::unique_ptr<Client>> clients;
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    clients.swap(clients_);
  }
  for (const auto& client : clients) client->connection->close();
  for (const auto& client : clients) client->thread.join();
}

void ShardService::listen(net::Listener& listener) noexcept {
  os::block_all_signals();
  while (!listener.closed()) {
    try {
      if (auto connection = listener.accept(kForEver)) admit(std::move(connection));
      reap_ended();
    } catch (const std::exception&) {
      // Out of descriptors or threads: the peer waits or is disconnected; other connections go on.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

void ShardService::admit(std::unique_ptr<net::Connection> connection) {
  auto client = std::make_unique<Client>();
  Client& its = *client;
  its.connection = std::move(connection);
  reap_ended();
  std::lock_guard lock(mutex_);
  if (closing_) return;
  if (clients_.size() >= max_connections_) {
    return refuse_over(*its.connection,
                       Error(Code::kClosed, "shard",
                             "it has " + std::to_string(max_connections_) +
                                 " connections, the maximum; close some, or serve more shards"));
  }
  clients_.push_back(std::move(client));
  try {
    its.thread = std::thread([this, &its] {
      os::block_all_signals();
      try {
        Session(*this, *its.connection).run();
      } catch (const std::exception&) {
        // The connection is unusable; the worker will make another.
      }
      its.connection->close();
      its.ended.store(true);
    });
  } catch (...) {
    clients_.pop_back();
    throw;
  }
}

void ShardService::reap_ended() {
  std::list<std::unique_ptr<Client>> ended;
  {
    std::lock_guard lock(mutex_);
    for (auto client = clients_.begin(); client != clients_.end();) {
      const auto next = std::next(client);
      if ((*client)->ended.load()) ended.splice(ended.end(), clients_, client);
      client = next;
    }
  }
  for (const auto& client : ended) client->thread.join();
}

void ShardService::after_fork_in_child() noexcept { inherited_.store(true); }

}  // namespace penstock::train
