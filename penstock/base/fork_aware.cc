#include "penstock/base/fork_aware.h"

#include <pthread.h>

#include <mutex>

#include "penstock/base/error.h"

namespace penstock {
namespace {

// Constant-initialised and never destroyed: objects may register as long as the process lives.
constinit std::mutex registry_mutex;
constinit ForkAware* registry_head = nullptr;
constinit bool handlers_installed = false;

}  // namespace

void ForkAware::watch_forks() {
  std::lock_guard lock(registry_mutex);
  if (!handlers_installed) {
    if (int error_number = pthread_atfork(on_prepare, on_parent, on_child)) {
      throw Error::from_errno(error_number, "watch_forks", "cannot install fork handlers");
    }
    handlers_installed = true;
  }
  watching_ = true;
  next_ = registry_head;
  if (next_ != nullptr) next_->previous_ = this;
  registry_head = this;
}

void ForkAware::ignore_forks() noexcept {
  std::lock_guard lock(registry_mutex);
  if (!watching_) return;
  watching_ = false;
  (previous_ != nullptr ? previous_->next_ : registry_head) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

void ForkAware::on_prepare() noexcept {
  registry_mutex.lock();
  for (ForkAware* each = registry_head; each != nullptr; each = each->next_) each->before_fork();
}

void ForkAware::on_parent() noexcept {
  for (ForkAware* each = registry_head; each != nullptr; each = each->next_) {
    each->after_fork_in_parent();
  }
  registry_mutex.unlock();
}

void ForkAware::on_child() noexcept {
  for (ForkAware* each = registry_head; each != nullptr; each = each->next_) {
    each->after_fork_in_child();
  }
  registry_mutex.unlock();
}

}  // namespace penstock
