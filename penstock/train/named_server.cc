#include "penstock/train/named_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock::train {
namespace {

constexpr uint64_t kServerTag = UINT64_MAX;
constexpr uint64_t kStopTag = UINT64_MAX - 1;
constexpr uint64_t kTimerTag = UINT64_MAX - 2;
constexpr int kNoDescriptorsMs = 10;  // before it tries to accept again

}  // namespace

NamedServer::NamedServer(const char* kind, const std::string& name, uint32_t most, Rows& rows)
    : rows_(rows), peers_(most) {
  watch_forks();  // first: no descriptor may slip into a child
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
    (void)thread_.release();  // there is no such thread in this process
    return;
  }
  if (thread_ != nullptr) stop();
}

void NamedServer::stop() {
  os::signal_event(stop_.get());
  thread_->join();
  thread_.reset();
  std::lock_guard lock(serving_);
  server_.reset();
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
  if (!call_to_come_.exchange(true)) os::set_timer(timer_.get(), after_ns);
}

void NamedServer::serve() noexcept {
  os::block_all_signals();
  std::array<uint64_t, 64> tags;
  for (;;) {
    size_t ready = 0;
    if (cannot_accept_) {  // the server is readable all the while
      pollfd stop{stop_.get(), POLLIN, 0};
      poll(&stop, 1, kNoDescriptorsMs);
    }
    try {
      ready = poller_->wait(-1, tags);
    } catch (const Error&) {
      return;  // not from these arguments
    }
    std::lock_guard lock(serving_);
    bool asked = false;
    for (size_t i = 0; i < ready; ++i) {
      if (tags[i] == kStopTag) return;
      if (tags[i] == kServerTag) {
        asked = true;
      } else if (tags[i] == kTimerTag) {
        os::clear_event(timer_.get());
        call_to_come_.store(false);  // first: who calls later from now on is called again
        rows_.due();
      } else {
        listen_to(static_cast<uint32_t>(tags[i]));
      }
    }
    if (!asked) continue;
    // After those who left.
    while (auto peer = accept_peer(server_.get(), cannot_accept_)) welcome(std::move(*peer));
  }
}

void NamedServer::welcome(Peer peer) {
  uint32_t row = 0;
  while (row < peers_.size() && (peers_[row] || !rows_.may_have(row))) ++row;
  if (row == peers_.size()) {
    send_greeting(peer.fd.get(), {.answer = Greeting::Answer::kFull});
    return;
  }
  try {
    poller_->add(peer.fd.get(), row);
  } catch (const Error&) {
    return;  // its end of the connection says so
  }
  peers_[row] = std::move(peer);
  const int fd = peers_[row]->fd.get();
  const auto descriptor = rows_.came(row, peers_[row]->pid);  // before the peer can use its row
  if (descriptor && send_greeting(fd, {.row = row}, *descriptor)) return;
  if (!descriptor) send_greeting(fd, {.answer = Greeting::Answer::kFull});
  poller_->remove(fd);
  peers_[row].reset();
  if (descriptor) rows_.left(row);
}

// Peers say nothing: this is the end of a connection, or to be ignored.
void NamedServer::listen_to(uint32_t row) {
  if (!peers_[row]) return;
  std::array<char, 256> ignored;
  const ssize_t got = recv(peers_[row]->fd.get(), ignored.data(), ignored.size(), MSG_DONTWAIT);
  if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))) return;
  poller_->remove(peers_[row]->fd.get());
  peers_[row].reset();
  rows_.left(row);
}

void NamedServer::before_fork() noexcept { serving_.lock(); }
void NamedServer::after_fork_in_parent() noexcept { serving_.unlock(); }

// A child that kept these open would keep the name, and peers from seeing the server's end.
void NamedServer::after_fork_in_child() noexcept {
  inherited_.store(true);
  server_.reset();
  stop_.reset();
  timer_.reset();
  poller_.reset();
  for (auto& peer : peers_) {
    if (peer) peer->fd.reset();
  }
  serving_.unlock();
}

}  // namespace penstock::train
