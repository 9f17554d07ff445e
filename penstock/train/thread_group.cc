#include "penstock/train/thread_group.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

namespace penstock::train {
namespace {

using Clock = std::chrono::steady_clock;

std::function<void()> start_engine_thread(size_t, std::function<void()> body) {
  const auto thread = std::make_shared<std::thread>(std::move(body));
  return [thread] { thread->join(); };
}

}  // namespace

ThreadGroup::ThreadGroup(size_t count, Threading threading)
    : threading_(std::move(threading)), errors_(count) {
  try {
    joins_.reserve(count);
    const auto& start = threading_.start;
    for (size_t number = 0; number < count; ++number) {
      const auto body = [this, number] { work(number); };
      joins_.push_back(start ? start(number, body) : start_engine_thread(number, body));
    }
  } catch (...) {
    end();
    throw;
  }
}

ThreadGroup::~ThreadGroup() {
  {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return working_ == 0; });
  }
  end();
}

void ThreadGroup::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  begun_.notify_all();
  for (const auto& join : joins_) join();
}

void ThreadGroup::begin(Job job) {
  {
    const std::lock_guard lock(mutex_);
    job_ = std::move(job);
    working_ = size();
    ++jobs_;
  }
  begun_.notify_all();
}

bool ThreadGroup::wait_until(Clock::time_point time) {
  std::unique_lock lock(mutex_);
  const auto idle = [&] { return working_ == 0; };
  if (!threading_.while_waiting) return done_.wait_until(lock, time, idle);
  while (
      !done_.wait_until(lock, std::min(time, Clock::now() + std::chrono::milliseconds(50)), idle)) {
    lock.unlock();
    threading_.while_waiting();
    if (Clock::now() >= time) return false;
    lock.lock();
  }
  return true;
}

std::optional<ThreadGroup::Failure> ThreadGroup::wait() {
  while (!wait_until(Clock::now() + std::chrono::hours(24))) {
  }
  job_ = nullptr;  // releases the objects that the job holds
  std::optional<Failure> first;
  for (size_t number = 0; number < size(); ++number) {
    std::exception_ptr error = std::exchange(errors_[number], nullptr);
    if (error != nullptr && !first) first = Failure{number, std::move(error)};
  }
  return first;
}

void ThreadGroup::work(size_t number) {
  uint64_t done = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [&] { return ending_ || jobs_ != done; });
    if (jobs_ == done) return;
    ++done;
    lock.unlock();
    std::exception_ptr error;
    try {
      job_(number);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    errors_[number] = std::move(error);
    error = nullptr;  // before another thread can read it
    if (--working_ == 0) done_.notify_all();
  }
}

}  // namespace penstock::train
