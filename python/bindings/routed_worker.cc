#include "routed_worker.h"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "gil.h"
#include "penstock/base/error.h"

namespace nb = nanobind;

namespace penstock::python {

namespace {

template <class... Arguments>
nb::object call(const nb::object& function, Arguments&&... arguments) {
  StayWhenEnded stay;
  nb::object result = function(std::forward<Arguments>(arguments)...);
  stay.returned();
  return result;
}

}  // namespace

void RoutedWorker::run(const Ticket& ticket, Slot& slot) {
  const std::shared_ptr<RemoteWorker> worker = routed(ticket);
  in_use_->set(worker);
  try {
    worker->run(ticket, slot);
  } catch (const Error&) {
    worker->cut();  // the rest of the result was not read
    lost_ = worker;
    in_use_->set(nullptr);
    throw;
  }
  in_use_->set(nullptr);
  if (worker->lost()) {
    lost_ = worker;
    return;
  }
  const WithGil gil;
  call(done_, place_);
}

std::shared_ptr<RemoteWorker> RoutedWorker::routed(const Ticket& ticket) {
  const WithGil gil;
  const nb::object line = call(route_, place_, indices_of(ticket));
  if (line.is_none()) throw Error(Code::kClosed, "Loader", "it was closed");
  std::string why;
  if (nb::try_cast(line, why)) throw Error(Code::kNotFound, "Loader", why);
  return nb::cast<RemoteLine&>(line).worker;
}

nb::list RoutedWorker::indices_of(const Ticket& ticket) const {
  nb::list indices;
  for (uint32_t row = ticket.begin; row < ticket.end; ++row) {
    indices.append(plan_.index_of(ticket.epoch, ticket.base, ticket.step, row));
  }
  return indices;
}

void LineInUse::set(std::shared_ptr<RemoteWorker> worker) {
  std::lock_guard lock(mutex_);
  worker_ = std::move(worker);
  if (cut_ && worker_ != nullptr) worker_->cut();
}

void LineInUse::cut() {
  std::lock_guard lock(mutex_);
  cut_ = true;
  if (worker_ != nullptr) worker_->cut();
}

}  // namespace penstock::python
