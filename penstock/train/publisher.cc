#include "penstock/train/publisher.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/train/weights_layout.h"

namespace penstock::train {
namespace {

constexpr const char* kPublish = "publish";

// Readers wake each other; where one that was to do so is stopped or killed, the server does it
// within this time. It looks again so many times after the last version: setting the timer costs
// publish() as much as waking somebody (25 us in a virtual machine), so it is left running.
constexpr int64_t kLateNs = 10'000'000;
constexpr uint32_t kLooks = 10;

}  // namespace

Publisher::Publisher(std::string name, Layout layout)
    : name_(std::move(name)),
      memory_(WeightsMemory::make(std::move(layout))),
      writer_(memory_),
      taken_(kReaders),
      server_("weights", name_, kReaders, *this) {}

uint64_t Publisher::publish(const Parameters& parameters) {
  if (server_.inherited()) {
    throw Error(Code::kInvalidArgument, kPublish,
                "this process was forked from the one that publishes '" + name_ +
                    "': publish there, or under another name");
  }
  layout().require_equal(parameters.layout(), kPublish, "these parameters");
  std::lock_guard lock(publishing_);
  uint64_t version = parameters.version();
  if (last_ && version <= *last_) version = *last_ + 1;
  if (version > WeightsMemory::kMostVersion) {
    throw Error(Code::kInvalidArgument, kPublish, "versions end at 2^57");
  }
  if (!writer_.publish(parameters.slab().values(), version)) {
    std::string who;
    for (pid_t pid : holders()) who += (who.empty() ? "" : ", ") + std::to_string(pid);
    throw Error(Code::kOutOfMemory, kPublish,
                "no room for one more version of " + std::to_string(layout().bytes()) +
                    " bytes beside the " + std::to_string(writer_.backed()) +
                    " there are; versions are held by " +
                    (who.empty() ? "nobody" : "process " + who));
  }
  if (writer_.sleepers() > 1) {
    looks_left_.store(kLooks);
    server_.call_later(kLateNs);
  }
  last_ = version;
  return version;
}

size_t Publisher::readers() const { return server_.peers(); }

std::vector<pid_t> Publisher::holders() const {
  std::vector<pid_t> pids;
  const auto readers = server_.pids();
  for (uint32_t row = 0; row < kReaders; ++row) {
    if (readers[row] && memory_->holds_any(row)) pids.push_back(*readers[row]);
  }
  std::ranges::sort(pids);
  pids.erase(std::ranges::unique(pids).begin(), pids.end());
  return pids;
}

uint32_t Publisher::slots() const {
  if (server_.inherited()) return 0;
  std::lock_guard lock(publishing_);
  return writer_.backed();
}

void Publisher::count_rows() {
  uint32_t used = kReaders;
  while (used > 0 && !taken_[used - 1]) --used;
  memory_->use_rows(used);
}

std::optional<int> Publisher::came(uint32_t row, pid_t) {
  taken_[row] = true;
  count_rows();
  return memory_->fd();
}

// Whoever had the row is gone, and with it all who could still read or write it.
void Publisher::left(uint32_t row) {
  taken_[row] = false;
  memory_->clear(row);
  count_rows();
}

void Publisher::due() {
  memory_->wake_late();
  const uint32_t left = looks_left_.load();
  if (left == 0) return;
  looks_left_.store(left - 1);
  server_.call_later(kLateNs);
}

}  // namespace penstock::train
