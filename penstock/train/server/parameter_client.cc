#include "penstock/train/server/parameter_client.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/train/gradient_parts.h"
#include "penstock/train/kernels.h"
#include "penstock/train/thread_group.h"

namespace penstock::train {
namespace {

constexpr double kMinTryS = 0.1;
constexpr double kCancelS = 1;
constexpr double kBeatS = 1;
constexpr double kLeaveS = 5;   // for all shards together
constexpr double kStallS = 60;  // upper limit, for any retry_s
constexpr auto kFirstPause = std::chrono::milliseconds(2);
constexpr auto kLongestPause = std::chrono::milliseconds(50);

constexpr size_t kMaxThreads = 16;  // of a call

// Set for the threads of a call: whether its caller still waits for them.
thread_local const std::atomic<bool>* caller_waits = nullptr;
struct CallerLeft {};

// Ends the waits of a call whose client is closed meanwhile.
struct ClientClosing {};

Error refuse(const char* operation, const std::string& why) {
  return Error(Code::kInvalidArgument, operation, why);
}

Error not_finite(const char* operation, const std::string& what) {
  return refuse(operation,
                "the gradient is not finite: " + what +
                    ". Nothing was sent. See non_finite of the server for other policies");
}

Error was_closed(const char* operation) {
  return Error(Code::kClosed, operation, "this client was closed");
}

// `into`: the slab of a push_pull(), else nullptr.
const char* push_operation(const Slab* into) { return into == nullptr ? "push" : "push_pull"; }

uint64_t random_number() {
  std::random_device device;
  uint64_t number = 0;
  while (number == 0) number = uint64_t{device()} << 32 | device();
  return number;
}

// Whether to retry: the connection or the shard is lost, or the shard does not know this worker.
bool is_retryable(const Error& error) {
  switch (error.code()) {
    case Code::kClosed:
    case Code::kDataLoss:
    case Code::kNotFound:
    case Code::kSystem:
    case Code::kTimeout:
      return true;
    default:
      return false;
  }
}

}  // namespace

ParameterClient::ParameterClient(const std::vector<std::string>& addresses, ClientOptions options)
    : ParameterClient(std::make_shared<FixedLocations>(addresses), std::move(options)) {}

ParameterClient::ParameterClient(std::shared_ptr<ShardResolver> resolver, ClientOptions options)
    : options_(std::move(options)),
      pid_(getpid()),
      worker_(options_.worker_id != 0 ? options_.worker_id : random_number()) {
  if (resolver->shards() == 0) throw refuse("connect", "no addresses");
  if (!(options_.top_k > 0 && options_.top_k <= 1)) {
    throw refuse("connect", "top_k is a fraction of the gradient, above 0 and at most 1");
  }
  if (options_.encoding == Encoding::kRuns) {
    throw refuse("connect", "kRuns is for rows and no option");
  }
  if (!(options_.retry_s >= 0)) throw refuse("connect", "retry is a number of seconds");
  if (options_.name.empty()) options_.name = std::to_string(pid_);
  if (options_.name.size() > wire::kMaxNameBytes) throw refuse("connect", "the name is too long");
  for (size_t i = 0; i < resolver->shards(); ++i) {
    links_.push_back(std::make_unique<ShardLink>(
        resolver, i,
        ShardLink::Worker{.id = worker_,
                          .chosen = options_.worker_id != 0,
                          .name = options_.name,
                          .secret = options_.secret,
                          .encrypt = options_.encrypt,
                          .stall_timeout_s = std::clamp(options_.retry_s, 1.0, kStallS),
                          .while_waiting = [this] { poll_caller(); }}));
  }
  try {
    call_all(
        "connect", 0, [](ShardLink&, size_t) {}, [](ShardLink&, size_t) {});
    check_shards();
    call_all(
        "connect", 0, [](ShardLink&, size_t) {},
        [](ShardLink& link, size_t) { link.send_ready(); });
  } catch (...) {  // otherwise shards would wait for this worker
    try {
      leave_all();
    } catch (...) {  // the first exception is thrown
    }
    throw;
  }
}

ParameterClient::~ParameterClient() {
  try {
    close();
  } catch (...) {  // a destructor does not throw
  }
}

// Called by all waits: it calls the caller's function, on the caller's thread alone.
void ParameterClient::poll_caller() const {
  if (caller_waits != nullptr) {
    if (!caller_waits->load()) throw CallerLeft();
    return;
  }
  if (cancel_deadline_ && cancel_deadline_->passed())
    throw Error(Code::kTimeout, "push", "no answer");
  if (options_.while_waiting) options_.while_waiting();
  // Pushes are still cancelled then, and the shards are left.
  if (closing_ && !closed_ && !cancel_deadline_) throw ClientClosing();
}

// Cancels pushes that shards may hold: a shard would apply them later, and on this host read the
// gradient from memory that the caller uses again. A shard drops the held push of a worker that
// says hello.
void ParameterClient::cancel_pushes(const std::vector<ShardLink*>& asked) noexcept {
  cancel_deadline_.emplace(kCancelS);
  for (ShardLink* link : asked) {
    try {
      if (!cancel_deadline_->passed()) link->connect(kCancelS);
    } catch (...) {  // try the next shard
    }
  }
  cancel_deadline_.reset();
}

// Checks that the links are all shards of one server, and sorts them.
void ParameterClient::check_shards() {
  std::ranges::sort(links_, {}, [](const auto& link) { return link->range().begin; });
  layout_ = links_[0]->layout();
  size_t next = 0;
  for (const auto& link : links_) {
    link->layout().require_equal(*layout_, "connect", "a shard");
    if (link->server().server != links_[0]->server().server) {
      throw refuse("connect", link->address() + " and " + links_[0]->address() +
                                  " are shards of different servers");
    }
    if (link->range().begin != next) {
      throw refuse("connect", next > link->range().begin
                                  ? link->address() + " was given twice"
                                  : "the shard before " + link->address() + " is missing");
    }
    next = link->range().end;
    require_reach(options_.encoding, link->range().size());
  }
  if (next != layout_->floats()) throw refuse("connect", "the last shard is missing");
  compensated_ = links_[0]->server().compensated != 0;
  lease_s_ = links_[0]->server().lease_s;
  non_finite_ = static_cast<NonFinite>(links_[0]->server().non_finite);
  encoded_.resize(links_.size());
  // A push begins when all shards have decided on the one before, so their numbers differ by at
  // most one. A shard that does not know the worker takes any number.
  uint64_t least = UINT64_MAX, most = 0;
  for (const auto& link : links_) {
    if (link->server().known == 0) continue;
    least = std::min(least, link->server().sequence);
    most = std::max(most, link->server().sequence);
  }
  if (most > 0) sequence_ = std::max(least, most - 1);
}

bool ParameterClient::local() const {
  return std::ranges::any_of(links_, [](const auto& link) { return link->local(); });
}

// The process id first: in a forked child a thread of the parent may hold the lock.
ParameterClient::Call ParameterClient::begin(const char* operation) {
  if (getpid() != pid_) {
    throw refuse(operation, "this client is the parent process's; connect in the forked child");
  }
  std::unique_lock lock(mutex_);
  if (closed_) throw was_closed(operation);
  return Call(*this, std::move(lock));
}

// Calls work(number, count) for every number below `count` at the same time, or work(0, 1) on this
// thread if it is one, or threads cannot be made. This thread polls the caller meanwhile; an
// exception of the caller's function ends the waits of the others by CallerLeft.
void ParameterClient::on_threads(size_t count,
                                 const std::function<void(size_t, size_t)>& work) const {
  std::optional<ThreadGroup> threads;
  if (count > 1) {
    try {
      threads.emplace(count, Threading{.while_waiting = [this] { poll_caller(); }});
    } catch (const std::system_error&) {
    }
  }
  if (!threads) return work(0, 1);
  std::atomic<bool> waits{true};
  threads->begin([&](size_t number) {
    os::block_all_signals();
    caller_waits = &waits;
    work(number, count);
  });
  try {
    if (const auto failure = threads->wait()) std::rethrow_exception(failure->error);
  } catch (...) {
    waits.store(false);
    threads.reset();  // waits for them
    throw;
  }
}

// Calls `ask` for all shards, then `take` for all answers. Retries lost shards until they are back,
// or retry_s has passed. If that moves many bytes over connections, several threads do it, each for
// its share of the shards: both functions are then called at the same time for different shards.
template <typename Ask, typename Take>
void ParameterClient::call_all(const char* operation, size_t bytes, Ask ask, Take take) {
  enum class State { kToConnect, kConnected, kAsked, kDone };
  struct Call {
    State state = State::kToConnect;
    bool was_asked = false;
  };
  std::vector<Call> calls(links_.size());
  struct Failures {
    std::optional<Deadline> end;  // set at the first loss
    std::optional<Error> refused;
    std::string lost;
  };
  Failures all;
  // On one link; a lost shard is asked again in the next pass.
  const auto attempt = [&](size_t i, Failures& failures, State next, auto what) {
    ShardLink& link = *links_[i];
    const Deadline patience(options_.retry_s);
    try {
      what(link);
      calls[i].state = next;
    } catch (const Error& error) {
      if (is_retryable(error)) {
        link.drop();
        // A shard that did not answer counts as lost since it was asked.
        const bool silent = error.code() == Code::kTimeout;
        if (!failures.end) failures.end = silent ? patience : Deadline(options_.retry_s);
        calls[i].state = State::kToConnect;
        failures.lost = error.what();
      } else {
        if (calls[i].state != State::kAsked) link.drop();  // the request may be incomplete
        calls[i].state = State::kDone;
        if (!failures.refused) failures.refused = error;
      }
    }
  };
  const auto exchange = [&](size_t first, size_t step, Failures& failures) {
    for (size_t i = first; i < links_.size(); i += step) {
      if (calls[i].state != State::kConnected) continue;
      if (failures.end && failures.end->passed()) break;  // the time is over for all shards
      attempt(i, failures, State::kAsked, [&](ShardLink& link) {
        if (failures.end) link.limit_wait(failures.end->left_s());
        calls[i].was_asked = true;
        ask(link, i);
      });
    }
    for (size_t i = first; i < links_.size(); i += step) {
      if (calls[i].state != State::kAsked) continue;
      attempt(i, failures, State::kDone, [&](ShardLink& link) {
        if (failures.end) link.limit_wait(failures.end->left_s());
        take(link, i);
      });
    }
  };
  const auto pass = [&] {
    for (size_t i = 0; i < links_.size(); ++i) {
      if (calls[i].state != State::kToConnect) continue;
      if (all.end && all.end->passed()) break;  // the time is over for all shards
      attempt(i, all, State::kConnected, [&](ShardLink& link) {
        if (all.end) poll_caller();
        link.connect(std::max(all.end ? all.end->left_s() : options_.retry_s, kMinTryS));
      });
    }
    const size_t threads =
        std::min({1 + bytes / options_.bytes_a_thread, links_.size(), kMaxThreads});
    std::vector<Failures> failures(threads, all);
    on_threads(threads, [&](size_t i, size_t count) { exchange(i, count, failures[i]); });
    for (Failures& each : failures) {
      if (!all.end || (each.end && each.end->left_s() < all.end->left_s())) all.end = each.end;
      if (!all.refused) all.refused = each.refused;
      if (!each.lost.empty()) all.lost = each.lost;
    }
  };
  const auto done = [](const Call& call) { return call.state == State::kDone; };
  auto pause = kFirstPause;
  try {
    for (;;) {
      pass();
      if (std::ranges::all_of(calls, done) || all.refused || all.end->passed()) break;
      poll_caller();
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  } catch (...) {  // of poll_caller(): the answers will not be read
    std::vector<ShardLink*> unanswered;
    for (size_t i = 0; i < links_.size(); ++i) {
      if (done(calls[i])) continue;
      links_[i]->drop();
      if (calls[i].was_asked) unanswered.push_back(links_[i].get());
    }
    cancel_pushes(unanswered);
    try {
      throw;
    } catch (const ClientClosing&) {
      leave();
      throw was_closed(operation);
    }
  }
  if (all.refused) throw *all.refused;
  if (!std::ranges::all_of(calls, done)) {
    throw Error(
        Code::kTimeout, operation,
        "a shard was unreachable for " + std::to_string(options_.retry_s) + " s: " + all.lost);
  }
}

// The bytes of the weights that come over connections.
size_t ParameterClient::bytes_from_others() const {
  size_t floats = 0;
  for (const auto& link : links_) floats += link->local() ? 0 : link->range().size();
  return floats * sizeof(float);
}

std::vector<uint64_t> ParameterClient::pull(const Slab& into) {
  const Call call = begin("pull");
  layout_->require_equal(into.layout(), "pull", "this slab");
  std::vector<uint64_t> versions(links_.size());
  call_all(
      "pull", bytes_from_others(), [](ShardLink& link, size_t) { link.begin_pull(); },
      [&](ShardLink& link, size_t i) {
        const Range range = link.range();
        versions[i] = link.end_pull(into.values().subspan(range.begin, range.size()));
      });
  keep_base(into);
  return versions;
}

// For delay compensation.
void ParameterClient::keep_base(const Slab& pulled) {
  if (!compensated_) return;
  if (!base_) base_ = Slab::make(*layout_, Slab::Kind::kShared);
  base_->copy_from(pulled);
}

// The gradients in memory that shards on this host can map.
const Slab& ParameterClient::as_shared(const Slab& gradients) {
  if (gradients.kind() == Slab::Kind::kShared || !local()) return gradients;
  if (!staging_) staging_ = Slab::make(*layout_, Slab::Kind::kShared);
  staging_->copy_from(gradients);
  return *staging_;
}

ParameterClient::Pushed ParameterClient::push(const Slab& gradients) {
  const Call call = begin("push");
  return push_all(gradients, nullptr);
}

ParameterClient::Pushed ParameterClient::push(std::span<const GradientPart> given) {
  const Call call = begin("push");
  return push_all(given, nullptr);
}

ParameterClient::Pushed ParameterClient::push_pull(const Slab& gradients, const Slab& into) {
  const Call call = begin("push_pull");
  layout_->require_equal(into.layout(), "push_pull", "this slab");
  if (into.shares_memory_with(gradients)) {
    throw refuse("push_pull",
                 "the weights would replace the gradients, which may be sent again; "
                 "give another slab");
  }
  return push_all(gradients, &into);
}

ParameterClient::Pushed ParameterClient::push_pull(std::span<const GradientPart> given,
                                                   const Slab& into) {
  const Call call = begin("push_pull");
  layout_->require_equal(into.layout(), "push_pull", "this slab");
  return push_all(given, &into);
}

ParameterClient::Pushed ParameterClient::push_all(const Slab& gradients, const Slab* into) {
  const char* const operation = push_operation(into);
  layout_->require_equal(gradients.layout(), operation, "the gradient");
  if (compensated_ && !base_)
    throw refuse(operation, "delay compensation needs a pull before the first push");
  double squares = kernels::sum_of_squares(gradients.values());
  if (!std::isfinite(squares) && non_finite_ == NonFinite::kRaise) {
    throw not_finite(operation, describe_not_finite(gradients));
  }
  const Encoding encoding = options_.encoding;
  const Slab& source = encoding == Encoding::kFloat32 ? as_shared(gradients) : gradients;
  const uint64_t number = names_.number_of(source);
  std::vector<ShardLink::Push> parts(links_.size());
  // A skipped gradient does not change the top-k residual.
  const bool skipped =
      encoding == Encoding::kTopK && non_finite_ == NonFinite::kSkip && !std::isfinite(squares);
  if (encoding != Encoding::kFloat32 && !skipped) squares = 0;
  for (size_t i = 0; i < links_.size(); ++i) {
    const Range range = links_[i]->range();
    const auto values = source.values().subspan(range.begin, range.size());
    if (encoding == Encoding::kFloat32) {
      if (links_[i]->local()) {
        parts[i].slab = &source;
        parts[i].slab_number = number;
      } else {
        parts[i].gradient = std::as_bytes(values);
      }
      continue;
    }
    if (skipped) {
      encoded_[i].clear();
      parts[i].gradient = encoded_[i];
      continue;
    }
    if (encoding == Encoding::kTopK) {
      if (!residual_) residual_ = Slab::make(*layout_);
      const double k = std::ceil(options_.top_k * static_cast<double>(range.size()));
      encoded_[i] = encode_top_k(values, residual_->values().subspan(range.begin, range.size()),
                                 static_cast<size_t>(k));
    } else {
      encoded_[i].resize(Gradient::bytes_of(encoding, range.size()));
      encode_half(encoding, values, encoded_[i]);
    }
    parts[i].gradient = encoded_[i];
    squares += sum_of_squares(Gradient(encoding, encoded_[i], range.size()));
  }
  if (!std::isfinite(squares) && non_finite_ == NonFinite::kRaise) {
    throw refuse(operation, "the gradient has numbers too large for float16");
  }
  return send_to_all(parts, encoding, squares, into);
}

ParameterClient::Pushed ParameterClient::push_all(std::span<const GradientPart> given,
                                                  const Slab* into) {
  const char* const operation = push_operation(into);
  parts_.set(operation, *layout_, given);
  if (into != nullptr) parts_.check_apart_from(operation, *into);
  if (options_.encoding != Encoding::kFloat32) {
    throw refuse(
        operation,
        "compression is for whole gradients only: give whole gradients, or connect without "
        "compress");
  }
  if (compensated_) {
    throw refuse(operation,
                 "delay compensation is for whole gradients only: give whole gradients, or serve "
                 "without delay_compensation");
  }
  const double squares = parts_.squares();
  if (!std::isfinite(squares) && non_finite_ == NonFinite::kRaise) {
    throw not_finite(operation, parts_.describe_not_finite());
  }
  if (local() && !staging_) staging_ = Slab::make(*layout_, Slab::Kind::kShared);
  const uint64_t number = staging_ ? names_.number_of(*staging_) : 0;
  std::vector<ShardLink::Push> parts(links_.size());
  for (size_t i = 0; i < links_.size(); ++i) {
    const Range range = links_[i]->range();
    require_reach(Encoding::kRuns, range.size());
    if (links_[i]->local()) {
      encoded_[i] =
          encode_runs(parts_, range, staging_->values().subspan(range.begin, range.size()));
      parts[i].slab = &*staging_;
      parts[i].slab_number = number;
    } else {
      encoded_[i] = encode_runs(parts_, range, {});
    }
    parts[i].gradient = encoded_[i];
  }
  return send_to_all(parts, Encoding::kRuns, squares, into);
}

// After an exception the staging slab is dropped: a shard may still hold the push and read from it.
ParameterClient::Pushed ParameterClient::send_to_all(std::vector<ShardLink::Push>& parts,
                                                     Encoding encoding, double squares,
                                                     const Slab* into) try {
  const uint64_t base_number = base_ ? names_.number_of(*base_) : 0;
  ++sequence_;
  size_t bytes = into == nullptr ? 0 : bytes_from_others();
  for (const ShardLink::Push& part : parts) bytes += part.gradient.size();
  std::vector<Shard::Answer> answers(links_.size());
  call_all(
      push_operation(into), bytes,
      [&](ShardLink& link, size_t i) {
        ShardLink::Push& part = parts[i];
        part.sequence = sequence_;
        part.squares = squares;
        part.encoding = encoding;
        if (part.slab != nullptr && !link.local()) {  // the shard has moved to another host
          const Range range = link.range();
          if (encoding == Encoding::kRuns) {
            encoded_[i] = encode_runs(parts_, range, {});
            part.gradient = encoded_[i];
          } else {
            part.gradient = std::as_bytes(part.slab->values().subspan(range.begin, range.size()));
          }
          part.slab = nullptr;
        }
        if (compensated_) {
          part.base = base_->values().subspan(link.range().begin, link.range().size());
          part.base_slab = link.local() ? &*base_ : nullptr;
          part.base_number = base_number;
        }
        link.send_push(part, into != nullptr);
      },
      [&](ShardLink& link, size_t i) {
        const Range range = link.range();
        answers[i] = into == nullptr
                         ? link.receive_push()
                         : link.receive_push(into->values().subspan(range.begin, range.size()));
      });
  Pushed pushed;
  for (const Shard::Answer& answer : answers) {
    pushed.versions.push_back(answer.version);
    pushed.applied = pushed.applied && answer.outcome == Outcome::kApplied;
    pushed.lapsed = pushed.lapsed || answer.outcome == Outcome::kLapsed;
  }
  if (into != nullptr) keep_base(*into);
  return pushed;
} catch (...) {
  staging_.reset();
  throw;
}

void ParameterClient::beat() {
  if (getpid() != pid_) throw refuse("beat", "this client is the parent process's");
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || closed_) return;
  const Call call(*this, std::move(lock));
  for (const auto& link : links_) {
    try {
      link->connect(kBeatS);
      link->send_alive();
    } catch (const Error& error) {
      if (!is_retryable(error)) continue;  // the next push or pull reports it
      link->drop();
    } catch (const ClientClosing&) {
      return leave();
    }
  }
}

std::string ParameterClient::stats() {
  const Call call = begin("stats");
  std::vector<std::string> said(links_.size());
  call_all(
      "stats", 0, [](ShardLink&, size_t) {},
      [&](ShardLink& link, size_t i) { said[i] = link.stats(); });
  std::string all = "[";
  for (const std::string& each : said) all += (all.size() == 1 ? "" : ",") + each;
  return all + "]";
}

void ParameterClient::close() {
  if (getpid() != pid_) return;
  closing_ = true;
  if (calling_ == std::this_thread::get_id()) return;
  const Call call(*this, std::unique_lock(mutex_));
  leave();
}

// REQUIRED: mutex_ is held.
void ParameterClient::leave() {
  if (std::exchange(closed_, true)) return;
  leave_all();
}

// After an exception of while_waiting() the other shards are still notified, without waiting for
// their answers.
void ParameterClient::leave_all() {
  const Deadline end(kLeaveS);
  std::exception_ptr enough;
  for (const auto& link : links_) {
    try {
      link->bye(enough ? 0 : end.left_s());
    } catch (...) {
      enough = std::current_exception();
    }
  }
  if (enough) std::rethrow_exception(enough);
}

}  // namespace penstock::train
