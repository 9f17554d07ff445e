#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "penstock/train/model.h"
#include "penstock/train/weights_layout.h"

// A Model's thread: looks for who serves the name, attaches to it, and notices its end.
namespace penstock::train {
namespace {

constexpr const char* kAttach = "attach";
constexpr int kRetryMs = 50;

}  // namespace

void Model::run() noexcept {
  os::block_all_signals();
  for (;;) {
    try {
      visit();
    } catch (const Error& error) {
      std::lock_guard lock(mutex_);
      refuse(error);
    } catch (const std::exception& error) {
      std::lock_guard lock(mutex_);
      refuse(Error(Code::kOutOfMemory, kAttach, error.what()));
    }
    pollfd stop{stop_.get(), POLLIN, 0};
    if (poll(&stop, 1, kRetryMs) > 0) return;
  }
}

// One learner from beginning to end.
void Model::visit() {
  int fd;
  {
    std::lock_guard lock(mutex_);  // so that no fork takes the connection along
    peer_ = connect_to_name("weights", name_);
    if (!peer_) {
      const bool known = std::exchange(looked_, true);
      if (std::exchange(refused_, std::nullopt) || !known) notify();
      return;
    }
    fd = peer_->fd.get();
  }
  GreetingReader reader;
  if (!greet(fd, reader)) {
    std::lock_guard lock(mutex_);
    peer_.reset();
    looked_ = true;
    notify();
    return;
  }
  auto mine = std::make_shared<Attachment>(WeightsMemory::open(reader.take_descriptor()),
                                           reader.greeting().row);
  Trash trash;
  {
    std::lock_guard lock(mutex_);
    mine->keep(std::move(peer_->fd));
    peer_.reset();
    looked_ = true;
    try {
      check_layout(mine->memory().layout());
      refused_.reset();
      alive_ = !closed_;
      if (!closed_) next_ = mine;
    } catch (const Error& error) {
      refuse(error);  // for as long as that learner has the name
    }
    notify();
  }
  std::array<char, 256> ignored;
  while (readable(fd)) {
    const ssize_t got = recv(fd, ignored.data(), ignored.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) break;
  }
  std::lock_guard lock(mutex_);
  alive_ = false;
  newest(trash);
  if (next_ == mine) trash.next.swap(next_);
  trash.mine = std::move(mine);
  refused_.reset();
  notify();
}

// False: it ended before it was complete, or this is to end.
bool Model::greet(int fd, GreetingReader& reader) {
  auto garbage = [&] {
    std::lock_guard lock(mutex_);
    return Error(Code::kInvalidArgument, kAttach,
                 "process " + std::to_string(peer_->pid) + ", which has the name '" + name_ +
                     "', is no learner, or one of another version of penstock");
  };
  for (;;) {
    if (!readable(fd)) return false;
    switch (reader.read(fd)) {
      case GreetingReader::State::kMore:
        continue;
      case GreetingReader::State::kEnded:
        return false;
      case GreetingReader::State::kGarbage:
        throw garbage();
      case GreetingReader::State::kComplete:
        break;
    }
    if (reader.greeting().answer == Greeting::Answer::kFull) {
      throw Error(Code::kOutOfMemory, kAttach,
                  "'" + name_ + "' has " + std::to_string(kReaders) +
                      " readers already, as many as it can have: close some");
    }
    if (reader.greeting().row >= kReaders) throw garbage();
    return true;
  }
}

// mutex_ is held.
void Model::check_layout(const Layout& layout) {
  if (layout_) {
    layout_->require_equal(layout, kAttach, "what is published");
  } else {
    layout_ = layout;
  }
}

// False: this is to end.
bool Model::readable(int fd) const {
  pollfd both[2] = {{fd, POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  for (;;) {
    const int ready = poll(both, 2, -1);
    if (ready > 0) return both[1].revents == 0;
    if (ready < 0 && errno != EINTR) return false;
  }
}

void Model::refuse(const Error& error) {
  peer_.reset();
  refused_ = {error.code(), std::string(error.what()).substr(error.operation().size() + 2)};
  notify();
}

}  // namespace penstock::train
