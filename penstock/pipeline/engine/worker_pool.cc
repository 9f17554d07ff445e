#include "penstock/pipeline/engine/worker_pool.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock {

void WorkerPool::start(uint32_t workers, Work work) {
  std::lock_guard lock(shared_->mutex);
  if (started_ || closing_) return;
  started_ = true;
  work_ = std::move(work);
  shared_->places.resize(ring_.workers());
  shared_->free.emplace(workers, ring_.workers());
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
void WorkerPool::give_up(std::exception_ptr why) {
  if (fatal_ == nullptr) fatal_ = std::move(why);
  ring_.close();
}

bool WorkerPool::started() const {
  std::lock_guard lock(shared_->mutex);
  return started_;
}

bool WorkerPool::ended() const {
  std::lock_guard lock(shared_->mutex);
  return std::ranges::none_of(
      shared_->places, [](const Place& p) { return p.at == At::kBusy || p.at == At::kAbandoned; });
}

std::exception_ptr WorkerPool::fatal() const {
  std::lock_guard lock(shared_->mutex);
  return fatal_;
}

// With the lock.
void WorkerPool::start_at(uint32_t place) {
  Place& p = shared_->places[place];
  if (p.thread.joinable()) p.thread.join();  // the thread has only its last instructions left
  p.thread = std::thread([this, shared = shared_, work = work_, place]() mutable {
    os::block_all_signals();
    try {
      work(place);
    } catch (...) {  // it could not serve, for example for lack of memory
      std::lock_guard lock(shared->mutex);
      give_up(std::current_exception());  // `work` keeps the pool alive
    }
    work = nullptr;  // drops all that it keeps alive, before the place is marked as ended
    std::lock_guard lock(shared->mutex);
    shared->places[place].at = At::kEnded;
    shared->free->give_back(place);
    shared->ended.notify_all();
  });
  p.runs = p.thread.get_id();
  p.at = At::kBusy;
}

void WorkerPool::watch() {
  os::block_all_signals();
  for (;;) {
    Supervisor::Event event = supervisor_->wait();
    if (event.kind == Supervisor::Kind::kClosed) return;
    if (event.kind == Supervisor::Kind::kAbandoned) replace(event.worker);
  }
}

// The thread in `place` is stuck in user code: starts another one, in another place.
void WorkerPool::replace(uint32_t place) {
  std::lock_guard lock(shared_->mutex);
  if (closing_) return;
  Place& stuck = shared_->places[place];
  if (stuck.at == At::kBusy) stuck.at = At::kAbandoned;
  ring_.consumer().restarts.add();
  try {
    start_at(shared_->free->take());
  } catch (...) {
    give_up(std::current_exception());
  }
}

bool WorkerPool::close(int64_t timeout_ns) {
  std::unique_lock lock(shared_->mutex);
  const auto here = std::this_thread::get_id();
  auto all_ended = [&] {
    return std::ranges::none_of(
        shared_->places, [&](const Place& p) { return p.at == At::kBusy && p.runs != here; });
  };
  auto wait = [&](auto until) {
    if (timeout_ns < 0) {
      shared_->ended.wait(lock, until);
    } else {
      shared_->ended.wait_for(lock, std::chrono::nanoseconds(timeout_ns), until);
    }
  };
  const bool own = std::ranges::any_of(
      shared_->places, [&](const Place& p) { return p.at != At::kEnded && p.runs == here; });
  if (std::exchange(closing_, true)) {
    if (own) return false;
    shared_->ended.wait(lock, [&] { return closed_; });
    wait(all_ended);  // a thread of the pool may have closed it
    return true;
  }
  lock.unlock();
  if (supervisor_ != nullptr) {
    supervisor_->close(0);
  } else {
    ring_.close();
  }
  if (watcher_.joinable()) watcher_.join();
  lock.lock();
  work_ = nullptr;  // it keeps the pool's owner alive
  wait(all_ended);
  for (Place& p : shared_->places) {
    if (!p.thread.joinable()) continue;
    if (p.at == At::kEnded) {
      // The thread has released the lock and does not take it again.
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
