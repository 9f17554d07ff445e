#include "penstock/train/tower_crew.h"

#include <utility>

namespace penstock::train {

TowerCrew::TowerCrew(size_t towers) : errors_(towers) {
  try {
    threads_.reserve(towers);
    for (size_t tower = 0; tower < towers; ++tower) {
      threads_.emplace_back([this, tower] { work(tower); });
    }
  } catch (...) {
    end();
    throw;
  }
}

TowerCrew::~TowerCrew() {
  wait();
  end();
}

void TowerCrew::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void TowerCrew::begin(Job job) {
  {
    const std::lock_guard lock(mutex_);
    job_ = std::move(job);
    working_ = size();
    ++jobs_;
  }
  begun_.notify_all();
}

std::optional<TowerCrew::Failure> TowerCrew::wait() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return working_ == 0; });
  job_ = nullptr;  // and what it holds
  std::optional<Failure> first;
  for (size_t tower = 0; tower < size(); ++tower) {
    std::exception_ptr error = std::exchange(errors_[tower], nullptr);
    if (error != nullptr && !first) first = Failure{tower, std::move(error)};
  }
  return first;
}

void TowerCrew::work(size_t tower) {
  uint64_t done = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [&] { return ending_ || jobs_ != done; });
    if (jobs_ == done) return;
    ++done;
    lock.unlock();
    std::exception_ptr error;
    try {
      job_(tower);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    errors_[tower] = std::move(error);
    error = nullptr;  // before another thread may look at it
    if (--working_ == 0) done_.notify_all();
  }
}

}  // namespace penstock::train
