#include "penstock/pipeline/engine/loader_crew.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock {

void LoaderCrew::start(uint32_t workers, Work work) {
  std::lock_guard lock(shared_->mutex);
  if (started_ || closing_) return;
  started_ = true;
  work_ = std::move(work);
  shared_->places.resize(board_.workers());
  try {
    for (uint32_t place = 0; place < workers; ++place) start_at(place);
    if (supervisor_ != nullptr) {
      watcher_ = std::thread([this] { watch(); });
    }
  } catch (const std::system_error& error) {
    give_up(std::make_exception_ptr(
        Error(Code::kSystem, "Loader", std::string("start a worker thread: ") + error.what())));
    std::rethrow_exception(fatal_);
  } catch (...) {
    give_up(std::current_exception());
    throw;
  }
}

// With the lock.
void LoaderCrew::give_up(std::exception_ptr why) {
  if (fatal_ == nullptr) fatal_ = std::move(why);
  board_.close();
}

bool LoaderCrew::started() const {
  std::lock_guard lock(shared_->mutex);
  return started_;
}

bool LoaderCrew::ended() const {
  std::lock_guard lock(shared_->mutex);
  return std::ranges::none_of(
      shared_->places, [](const Place& p) { return p.at == At::kBusy || p.at == At::kAbandoned; });
}

std::exception_ptr LoaderCrew::fatal() const {
  std::lock_guard lock(shared_->mutex);
  return fatal_;
}

// With the lock.
void LoaderCrew::start_at(uint32_t place) {
  Place& p = shared_->places[place];
  if (p.thread.joinable()) p.thread.join();  // it has ended: only its last instructions are left
  p.thread = std::thread([this, shared = shared_, work = work_, place]() mutable {
    os::block_all_signals();
    try {
      work(place);
    } catch (...) {  // it has not served: there was no memory for what it works with, or the like
      std::lock_guard lock(shared->mutex);
      give_up(std::current_exception());  // `work` keeps us alive
    }
    work = nullptr;  // what it keeps alive goes before the crew may say that all is over
    std::lock_guard lock(shared->mutex);
    shared->places[place].at = At::kEnded;
    shared->ended.notify_all();
  });
  p.runs = p.thread.get_id();
  p.at = At::kBusy;
}

void LoaderCrew::watch() {
  os::block_all_signals();
  for (;;) {
    Supervisor::Event event = supervisor_->wait();
    if (event.kind == Supervisor::Kind::kClosed) return;
    if (event.kind == Supervisor::Kind::kAbandoned) replace(event.worker);
  }
}

// The thread in `place` is stuck in user code: another one takes over, in a place of its own.
void LoaderCrew::replace(uint32_t place) {
  std::lock_guard lock(shared_->mutex);
  if (closing_) return;
  auto& places = shared_->places;
  if (places[place].at == At::kBusy) places[place].at = At::kAbandoned;
  board_.consumer().restarts.add();
  try {
    for (uint32_t free = 0; free < places.size(); ++free) {
      if (places[free].at == At::kEmpty || places[free].at == At::kEnded) return start_at(free);
    }
    throw Error(Code::kTimeout, "Loader",
                std::to_string(places.size()) + " threads are stuck in the dataset");
  } catch (...) {
    give_up(std::current_exception());
  }
}

bool LoaderCrew::close(int64_t patience_ns) {
  std::unique_lock lock(shared_->mutex);
  const auto here = std::this_thread::get_id();
  auto all_ended = [&] {
    return std::ranges::none_of(
        shared_->places, [&](const Place& p) { return p.at == At::kBusy && p.runs != here; });
  };
  auto wait = [&](auto until) {
    if (patience_ns < 0) {
      shared_->ended.wait(lock, until);
    } else {
      shared_->ended.wait_for(lock, std::chrono::nanoseconds(patience_ns), until);
    }
  };
  const bool own = std::ranges::any_of(
      shared_->places, [&](const Place& p) { return p.at != At::kEnded && p.runs == here; });
  if (std::exchange(closing_, true)) {
    if (own) return false;
    shared_->ended.wait(lock, [&] { return closed_; });
    wait(all_ended);  // a thread of the crew may have closed it
    return true;
  }
  lock.unlock();
  if (supervisor_ != nullptr) {
    supervisor_->close(0);
  } else {
    board_.close();
  }
  if (watcher_.joinable()) watcher_.join();
  lock.lock();
  work_ = nullptr;  // it keeps alive whoever owns the crew
  wait(all_ended);
  for (Place& p : shared_->places) {
    if (!p.thread.joinable()) continue;
    if (p.at == At::kEnded) {
      // It still holds the lock's far end only: it cannot want the lock again.
      std::thread ended = std::move(p.thread);
      lock.unlock();
      ended.join();
      lock.lock();
    } else {
      p.thread.detach();
    }
  }
  closed_ = true;
  shared_->ended.notify_all();
  return !own;
}

}  // namespace penstock
