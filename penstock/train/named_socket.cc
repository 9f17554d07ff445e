#include "penstock/train/named_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>

#include "penstock/base/descriptor_message.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/net/socket.h"

namespace penstock::train {
namespace {

net::SocketAddress address_of(const std::string& kind, const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes || name.find('\0') != std::string::npos) {
    throw Error(
        Code::kInvalidArgument, kind,
        "a name has 1 to " + std::to_string(kMaxNameBytes) + " bytes and no zero among them");
  }
  return net::named_address(kind, name);
}

constexpr uint64_t kServerTag = UINT64_MAX;
constexpr uint64_t kStopTag = UINT64_MAX - 1;
constexpr uint64_t kTimerTag = UINT64_MAX - 2;
constexpr int kAcceptRetryMs = 10;  // pause before the next accept()
// Connections accepted before the lock is released: a flood of them must not delay a fork or a
// timer.
constexpr int kAcceptsAtATime = 16;

}  // namespace

net::SocketFile serve_name(const std::string& kind, const std::string& name) {
  return net::SocketFile(address_of(kind, name));
}

std::optional<Peer> connect_to_name(const std::string& kind, const std::string& name) {
  const net::SocketAddress address = address_of(kind, name);
  Peer peer{net::make_socket(address), 0};
  int result;
  do {
    result = connect(peer.fd.get(), address.get(), address.length);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    // EAGAIN: the server's backlog is full.
    if (errno == ECONNREFUSED || errno == ENOENT || errno == EAGAIN) return std::nullopt;
    throw Error::from_errno(errno, kind, "cannot connect to '" + name + "'");
  }
  const auto who = net::unix_peer(peer.fd.get());
  if (!who) return std::nullopt;
  if (who->user != geteuid()) {
    throw Error(Code::kInvalidArgument, kind,
                "the name '" + name + "' is served by process " + std::to_string(who->pid) +
                    " of another user, " + std::to_string(who->user) + ": it is not trusted");
  }
  peer.pid = who->pid;
  return peer;
}

std::optional<Peer> accept_peer(int server, bool& failed) {
  failed = false;
  for (;;) {
    os::Fd fd(accept4(server, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      failed = errno != EAGAIN && errno != EWOULDBLOCK;
      return std::nullopt;
    }
    const auto who = net::unix_peer(fd.get());
    if (!who || who->user != geteuid()) return std::nullopt;
    return Peer{std::move(fd), who->pid};
  }
}

bool send_greeting(int fd, const Greeting& greeting, int descriptor) {
  auto bytes = std::as_bytes(std::span(&greeting, 1));
  return send_message(fd, bytes, descriptor, MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

GreetingReader::State GreetingReader::read(int fd) {
  auto bytes = std::as_writable_bytes(std::span(&greeting_, 1));
  const ssize_t got = receive_message(fd, bytes.subspan(got_), descriptor_, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? State::kMore : State::kEnded;
  if (got == 0) return got_ == 0 ? State::kEnded : State::kGarbage;
  got_ += static_cast<size_t>(got);
  const uint64_t magic = Greeting::kMagic;
  if (std::memcmp(bytes.data(), &magic, std::min(got_, sizeof(magic))) != 0) return State::kGarbage;
  if (got_ < sizeof(greeting_)) return State::kMore;
  const bool welcome = greeting_.answer == Greeting::Answer::kWelcome;
  if (welcome ? !descriptor_ : greeting_.answer != Greeting::Answer::kFull) return State::kGarbage;
  return State::kComplete;
}

NamedServer::NamedServer(const char* kind, const std::string& name, uint32_t max_peers,
                         Handler& handler)
    : handler_(handler), peers_(max_peers) {
  watch_forks();  // first: a child must not inherit a descriptor
  try {
    std::lock_guard lock(serving_);
    server_ = serve_name(kind, name);
    stop_ = os::event();
    timer_ = os::timer();
    poller_.emplace();
    poller_->add(server_.get(), kServerTag);
    poller_->add(stop_.get(), kStopTag);
    poller_->add(timer_.get(), kTimerTag);
    thread_ = std::make_unique<std::thread>([this] { serve(); });
  } catch (const std::system_error& error) {
    ignore_forks();
    throw Error::from_errno(error.code().value(), kind, "cannot start a thread");
  } catch (...) {
    ignore_forks();
    throw;
  }
}

NamedServer::~NamedServer() {
  ignore_forks();
  if (inherited_.load()) {
    (void)thread_.release();  // this process has no such thread
    return;
  }
  if (thread_ != nullptr) stop();
}

void NamedServer::stop() {
  os::signal_event(stop_.get());
  thread_->join();
  thread_.reset();
  std::lock_guard lock(serving_);
  server_.close();
  timer_.reset();
  poller_.reset();
  for (auto& peer : peers_) peer.reset();
}

size_t NamedServer::peers() const {
  std::lock_guard lock(serving_);
  return static_cast<size_t>(
      std::ranges::count_if(peers_, [](const auto& peer) { return peer.has_value(); }));
}

std::vector<std::optional<pid_t>> NamedServer::pids() const {
  std::lock_guard lock(serving_);
  std::vector<std::optional<pid_t>> pids;
  for (const auto& peer : peers_) {
    pids.push_back(peer ? std::optional<pid_t>(peer->pid) : std::nullopt);
  }
  return pids;
}

void NamedServer::call_later(int64_t after_ns) {
  if (!call_scheduled_.exchange(true)) os::set_timer(timer_.get(), after_ns);
}

void NamedServer::serve() noexcept {
  os::block_all_signals();
  std::array<uint64_t, 64> tags;
  for (;;) {
    size_t ready = 0;
    if (accept_failed_) {  // the server's socket stays readable meanwhile
      pollfd stop{stop_.get(), POLLIN, 0};
      poll(&stop, 1, kAcceptRetryMs);
    }
    try {
      ready = poller_->wait(-1, tags);
    } catch (const Error&) {
      return;  // impossible with these arguments
    }
    std::lock_guard lock(serving_);
    bool asked = false;
    for (size_t i = 0; i < ready; ++i) {
      if (tags[i] == kStopTag) return;
      if (tags[i] == kServerTag) {
        asked = true;
      } else if (tags[i] == kTimerTag) {
        os::clear_event(timer_.get());
        call_scheduled_.store(false);  // first: later calls of call_later() schedule another timer
        handler_.on_timer();
      } else {
        on_readable(static_cast<uint32_t>(tags[i]));
      }
    }
    if (!asked) continue;
    // After disconnects, so that their rows can be used.
    for (int i = 0; i < kAcceptsAtATime; ++i) {
      auto peer = accept_peer(server_.get(), accept_failed_);
      if (!peer) break;  // the poller reports connections that are left
      admit(std::move(*peer));
    }
  }
}

void NamedServer::admit(Peer peer) {
  uint32_t row = 0;
  while (row < peers_.size() && (peers_[row] || !handler_.is_available(row))) ++row;
  if (row == peers_.size()) {
    send_greeting(peer.fd.get(), {.answer = Greeting::Answer::kFull});
    return;
  }
  try {
    poller_->add(peer.fd.get(), row);
  } catch (const Error&) {
    return;  // the peer sees its connection closed
  }
  peers_[row] = std::move(peer);
  const int fd = peers_[row]->fd.get();
  const auto descriptor = handler_.on_connect(
      row, peers_[row]->pid);  // before the greeting, so before the peer uses its row
  if (descriptor && send_greeting(fd, {.row = row}, *descriptor)) return;
  if (!descriptor) send_greeting(fd, {.answer = Greeting::Answer::kFull});
  poller_->remove(fd);
  peers_[row].reset();
  if (descriptor) handler_.on_disconnect(row);
}

// Peers send nothing: this is the end of a connection, or data to ignore.
void NamedServer::on_readable(uint32_t row) {
  if (!peers_[row]) return;
  std::array<char, 256> ignored;
  const ssize_t got = recv(peers_[row]->fd.get(), ignored.data(), ignored.size(), MSG_DONTWAIT);
  if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))) return;
  poller_->remove(peers_[row]->fd.get());
  peers_[row].reset();
  handler_.on_disconnect(row);
}

void NamedServer::before_fork() noexcept { serving_.lock(); }
void NamedServer::after_fork_in_parent() noexcept { serving_.unlock(); }

// Otherwise the child would keep the name, and peers would not see the server's end.
void NamedServer::after_fork_in_child() noexcept {
  inherited_.store(true);
  server_.abandon();
  stop_.reset();
  timer_.reset();
  poller_.reset();
  for (auto& peer : peers_) {
    if (peer) peer->fd.reset();
  }
  serving_.unlock();
}

}  // namespace penstock::train
