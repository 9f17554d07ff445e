#include "penstock/train/server/parameter_client.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <random>
#include <thread>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/train/gradient_checks.h"
#include "penstock/train/kernels.h"

namespace penstock::train {
namespace {

constexpr double kLeastTryS = 0.1;
constexpr double kTakeBackS = 1;
constexpr double kGoodbyeS = 5;  // of all shards together
constexpr double kStallS = 60;   // at most, however long one that is gone is looked for
constexpr auto kFirstPause = std::chrono::milliseconds(2);
constexpr auto kLongestPause = std::chrono::milliseconds(50);

Error refuse(const char* operation, const std::string& why) {
  return Error(Code::kInvalidArgument, operation, why);
}

Error not_finite(const std::string& what) {
  return refuse("push", "the gradient is not finite: " + what +
                            ". Nothing was sent. See non_finite of the server for other policies");
}

uint64_t random_number() {
  std::random_device device;
  uint64_t number = 0;
  while (number == 0) number = uint64_t{device()} << 32 | device();
  return number;
}

// Whether another try may do better: the line or the shard is gone, or the shard does not know this
// worker any more.
bool passes(const Error& error) {
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
    : options_(std::move(options)), pid_(getpid()), worker_(random_number()) {
  if (addresses.empty()) throw refuse("connect", "no addresses");
  if (!(options_.top_k > 0 && options_.top_k <= 1)) {
    throw refuse("connect", "top_k is a part of the gradient, above 0 and up to 1");
  }
  if (options_.encoding == Encoding::kRuns) {
    throw refuse("connect", "runs are what rows are sent as, and no option");
  }
  if (!(options_.retry_s >= 0)) throw refuse("connect", "retry is a number of seconds");
  if (options_.name.empty()) options_.name = std::to_string(pid_);
  if (options_.name.size() > wire::kMostName) throw refuse("connect", "a name that is too long");
  for (const std::string& address : addresses) {
    links_.push_back(std::make_unique<ShardLink>(
        address, ShardLink::Worker{.id = worker_,
                                   .name = options_.name,
                                   .secret = options_.secret,
                                   .encrypt = options_.encrypt,
                                   .stall_timeout_s = std::clamp(options_.retry_s, 1.0, kStallS),
                                   .while_waiting = [this] { look_around(); }}));
  }
  try {
    converse(
        "connect", [](ShardLink&, size_t) {}, [](ShardLink&, size_t) {});
    arrange();
    converse(
        "connect", [](ShardLink&, size_t) {}, [](ShardLink& link, size_t) { link.say_ready(); });
  } catch (...) {  // else shards would wait for a worker that is none
    try {
      say_goodbye();
    } catch (...) {  // NOLINT: what failed first is what is told
    }
    throw;
  }
}

ParameterClient::~ParameterClient() {
  try {
    close();
  } catch (...) {  // NOLINT: nobody is there to be told
  }
}

void ParameterClient::look_around() const {
  if (enough_ && enough_->passed()) throw Error(Code::kTimeout, "push", "no answer");
  if (options_.while_waiting) options_.while_waiting();
}

// A push that was given up may be held by shards, which would apply it later, and on this host read
// it where it lies, which is the caller's again. A shard gives up what it holds for a worker who
// says hello.
void ParameterClient::take_back(const std::vector<ShardLink*>& asked) noexcept {
  enough_.emplace(kTakeBackS);
  for (ShardLink* link : asked) {
    try {
      if (!enough_->passed()) link->connect(kTakeBackS);
    } catch (...) {  // NOLINT: the next one may be there
    }
  }
  enough_.reset();
}

// That the shards are those of one server, and all of them.
void ParameterClient::arrange() {
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
  }
  if (next != layout_->floats()) throw refuse("connect", "the last shard is missing");
  compensated_ = links_[0]->server().compensated != 0;
  non_finite_ = static_cast<NonFinite>(links_[0]->server().non_finite);
  encoded_.resize(links_.size());
}

bool ParameterClient::local() const {
  return std::ranges::any_of(links_, [](const auto& link) { return link->local(); });
}

// The process first: in a forked child the lock's holder may be a thread that there is not.
std::unique_lock<std::mutex> ParameterClient::begin(const char* operation) {
  if (getpid() != pid_) {
    throw refuse(operation, "this client is the parent process's; connect in the forked child");
  }
  std::unique_lock lock(mutex_);
  if (closed_) throw Error(Code::kClosed, operation, "this client was closed");
  return lock;
}

// Asks all shards, then takes all answers; goes on with those who were lost until they are back.
template <typename Ask, typename Take>
void ParameterClient::converse(const char* operation, Ask ask, Take take) {
  enum class State { kToAsk, kAsked, kDone };
  std::vector<State> states(links_.size(), State::kToAsk);
  std::optional<Deadline> end;  // from the first loss on
  std::optional<Error> refused;
  std::string lost;
  std::vector<bool> asked(links_.size());  // once at least
  auto give_up = [&] {
    std::vector<ShardLink*> unanswered;
    for (size_t i = 0; i < links_.size(); ++i) {
      if (states[i] == State::kDone) continue;
      links_[i]->drop();
      if (asked[i]) unanswered.push_back(links_[i].get());
    }
    take_back(unanswered);
  };
  auto attempt = [&](size_t i, State next, auto what) {
    ShardLink& link = *links_[i];
    const Deadline patience(options_.retry_s);
    try {
      what(link);
      states[i] = next;
    } catch (const Error& error) {
      if (passes(error)) {
        link.drop();
        // Who did not answer was gone all the while.
        const bool silent = error.code() == Code::kTimeout;
        if (!end) end = silent ? patience : Deadline(options_.retry_s);
        states[i] = State::kToAsk;
        lost = error.what();
      } else {
        if (states[i] == State::kToAsk) link.drop();  // it may have asked half of it
        states[i] = State::kDone;
        if (!refused) refused = error;
      }
    } catch (...) {  // while_waiting() had enough: nobody will take these answers
      give_up();
      throw;
    }
  };
  auto pause = kFirstPause;
  for (;;) {
    for (size_t i = 0; i < links_.size(); ++i) {
      if (states[i] != State::kToAsk) continue;
      if (end && end->passed()) break;  // for all of them
      attempt(i, State::kAsked, [&](ShardLink& link) {
        if (end) look_around();
        link.connect(std::max(end ? end->left_s() : options_.retry_s, kLeastTryS));
        asked[i] = true;
        ask(link, i);
      });
    }
    for (size_t i = 0; i < links_.size(); ++i) {
      if (states[i] != State::kAsked) continue;
      attempt(i, State::kDone, [&](ShardLink& link) {
        if (end) link.wait_no_longer_than(end->left_s());
        take(link, i);
      });
    }
    if (std::ranges::all_of(states, [](State state) { return state == State::kDone; })) break;
    if (refused) break;
    if (end->passed()) {
      throw Error(Code::kTimeout, operation,
                  "no shard where one was for " + std::to_string(options_.retry_s) + " s: " + lost);
    }
    try {
      look_around();
    } catch (...) {
      give_up();
      throw;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  if (refused) throw *refused;
}

std::vector<uint64_t> ParameterClient::pull(const Slab& into) {
  const auto lock = begin("pull");
  layout_->require_equal(into.layout(), "pull", "this slab");
  std::vector<uint64_t> versions(links_.size());
  converse(
      "pull", [](ShardLink& link, size_t) { link.begin_pull(); },
      [&](ShardLink& link, size_t i) {
        const Range range = link.range();
        versions[i] = link.end_pull(into.values().subspan(range.begin, range.size()));
      });
  if (compensated_) {
    if (!base_) base_ = Slab::make(*layout_, Slab::Kind::kShared);
    base_->copy_from(into);
  }
  return versions;
}

// In memory that shards on this host can map.
const Slab& ParameterClient::sendable(const Slab& gradients) {
  if (gradients.kind() == Slab::Kind::kShared || !local()) return gradients;
  if (!staging_) staging_ = Slab::make(*layout_, Slab::Kind::kShared);
  staging_->copy_from(gradients);
  return *staging_;
}

ParameterClient::Pushed ParameterClient::push(const Slab& gradients) {
  const auto lock = begin("push");
  layout_->require_equal(gradients.layout(), "push", "the gradient");
  if (compensated_ && !base_)
    throw refuse("push", "delay compensation: pull before the first push");
  double squares = kernels::sum_of_squares(gradients.values());
  if (!std::isfinite(squares) && non_finite_ == NonFinite::kRaise) {
    throw not_finite(describe_not_finite(gradients));
  }
  const Encoding encoding = options_.encoding;
  const Slab& source = encoding == Encoding::kFloat32 ? sendable(gradients) : gradients;
  const uint64_t number = names_.number_of(source);
  std::vector<ShardLink::Push> parts(links_.size());
  // What is skipped leaves nothing behind in what top-k has not sent yet.
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
    throw refuse("push", "the gradient has numbers that are too large for float16");
  }
  return deliver(parts, encoding, squares);
}

ParameterClient::Pushed ParameterClient::push(std::span<const GradientPart> given) {
  const auto lock = begin("push");
  parts_.set("push", *layout_, given);
  if (options_.encoding != Encoding::kFloat32) {
    throw refuse("push",
                 "this client compresses, which is for whole gradients; give those, or "
                 "connect without compress");
  }
  if (compensated_) {
    throw refuse("push",
                 "the server compensates for delay, which takes whole gradients; give "
                 "those, or serve without delay_compensation");
  }
  const double squares = parts_.squares();
  if (!std::isfinite(squares) && non_finite_ == NonFinite::kRaise) {
    throw not_finite(parts_.describe_not_finite());
  }
  if (local() && !staging_) staging_ = Slab::make(*layout_, Slab::Kind::kShared);
  const uint64_t number = staging_ ? names_.number_of(*staging_) : 0;
  std::vector<ShardLink::Push> parts(links_.size());
  for (size_t i = 0; i < links_.size(); ++i) {
    const Range range = links_[i]->range();
    if (range.size() > UINT32_MAX) {
      throw refuse("push", "rows take shards of up to 2^32 floats; serve with more shards");
    }
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
  return deliver(parts, Encoding::kRuns, squares);
}

// A push that is given up may still be held by a shard, which reads its gradient when it applies
// it.
ParameterClient::Pushed ParameterClient::deliver(std::vector<ShardLink::Push>& parts,
                                                 Encoding encoding, double squares) try {
  const uint64_t base_number = base_ ? names_.number_of(*base_) : 0;
  ++sequence_;
  Pushed pushed;
  pushed.versions.resize(links_.size());
  converse(
      "push",
      [&](ShardLink& link, size_t i) {
        ShardLink::Push& part = parts[i];
        part.sequence = sequence_;
        part.squares = squares;
        part.encoding = encoding;
        if (compensated_) {
          part.base = base_->values().subspan(link.range().begin, link.range().size());
          part.base_slab = link.local() ? &*base_ : nullptr;
          part.base_number = base_number;
        }
        link.send_push(part);
      },
      [&](ShardLink& link, size_t i) {
        const Shard::Answer answer = link.receive_push();
        pushed.versions[i] = answer.version;
        pushed.applied = pushed.applied && answer.outcome == Outcome::kApplied;
        pushed.lapsed = pushed.lapsed || answer.outcome == Outcome::kLapsed;
      });
  return pushed;
} catch (...) {
  staging_.reset();
  throw;
}

std::string ParameterClient::stats() {
  const auto lock = begin("stats");
  std::vector<std::string> said(links_.size());
  converse(
      "stats", [](ShardLink&, size_t) {},
      [&](ShardLink& link, size_t i) { said[i] = link.stats(); });
  std::string all = "[";
  for (const std::string& each : said) all += (all.size() == 1 ? "" : ",") + each;
  return all + "]";
}

void ParameterClient::close() {
  if (getpid() != pid_) return;
  std::lock_guard lock(mutex_);
  if (closed_) return;
  closed_ = true;
  say_goodbye();
}

// Who has had enough while one shard is silent waits for no other: they are told, all the same.
void ParameterClient::say_goodbye() {
  const Deadline end(kGoodbyeS);
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
