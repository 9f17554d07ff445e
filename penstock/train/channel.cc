#include "penstock/train/channel.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"

namespace penstock::train {
namespace {

constexpr const char* kChannel = "channel";
constexpr int64_t kChannelPatienceNs = 100'000'000;  // between two calls of while_waiting
constexpr size_t kMostSpecs = 256;                   // that are remembered

}  // namespace

Channel::Channel(std::string name, ChannelOptions options)
    : name_(std::move(name)),
      while_waiting_(std::move(options.while_waiting)),
      memory_(ChannelMemory::make(options.capacity, options.when_full)),
      server_("channel", name_, kProducers, *this) {}

Channel::~Channel() { close(); }

void Channel::check() const {
  if (server_.inherited()) {
    throw Error(Code::kInvalidArgument, kChannel,
                "this process was forked from the one that has the channel '" + name_ +
                    "': take from it there, or make one of another name");
  }
}

Items Channel::get(uint64_t most, int64_t timeout_ns) {
  check();
  if (most == 0) throw Error(Code::kInvalidArgument, kChannel, "get() takes one item at least");
  const uint64_t begin = now_ns();
  ChannelHeader& header = memory_->header();
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) throw Error(Code::kClosed, kChannel, "the channel '" + name_ + "' was closed");
      if (complaint_)
        throw Error(Code::kDataLoss, kChannel, *std::exchange(complaint_, std::nullopt));
      Items items = take(most);
      if (!items.empty()) return items;
      if (complaint_) continue;
    }
    int64_t left = -1;
    if (timeout_ns >= 0) {
      left = timeout_ns - static_cast<int64_t>(now_ns() - begin);
      if (left <= 0) return {};
    }
    if (while_waiting_) {
      while_waiting_();
      left = left < 0 ? kChannelPatienceNs : std::min(left, kChannelPatienceNs);
    }
    // Sequentially consistent, as the producer's store of the tail and its look at `takers`: either
    // it sees this thread, or this thread sees its item.
    header.takers.fetch_add(1);
    const uint32_t seen = header.arrivals.load();
    if (!anything()) os::futex_wait(header.arrivals, seen, left, true);
    header.takers.fetch_sub(1);
  }
}

bool Channel::anything() const {
  std::lock_guard lock(mutex_);
  return closed_ || std::ranges::any_of(inlets_, [](const auto& inlet) {
           return !inlet->banished && inlet->ring.queued() > 0;
         });
}

// In turns: each ring gives its share of what is wanted before another has its turn again.
Items Channel::take(uint64_t most) {
  uint64_t queued = 0, bytes = 0, filled = 0;
  for (const auto& inlet : inlets_) {
    const uint64_t here = inlet->banished ? 0 : inlet->ring.queued();
    if (here == 0) continue;
    queued += here;
    bytes += inlet->ring.queued_bytes();
    ++filled;
  }
  if (queued == 0) return {};
  most = std::min(most, queued);
  Gathering gathering(most, bytes, batches_);
  const uint64_t share = std::max<uint64_t>(1, most / filled);
  size_t idle = 0;  // rings in a row that gave nothing
  try {
    while (gathering.room() > 0 && idle < inlets_.size()) {
      if (next_ >= inlets_.size()) next_ = 0;
      const uint64_t want = std::min(share, gathering.room());
      const uint64_t taken = take_from(*inlets_[next_++], want, gathering);
      idle = taken == 0 ? idle + 1 : 0;
    }
  } catch (const std::bad_alloc&) {  // what was taken is not to be lost
    if (gathering.room() == most) {
      throw Error(Code::kOutOfMemory, kChannel,
                  "no memory for a batch of " + std::to_string(most) + " items: take fewer");
    }
  }
  Items items = gathering.finish();
  bury();
  return items;
}

uint64_t Channel::take_from(Inlet& inlet, uint64_t most, Gathering& into) {
  uint64_t taken = 0;
  while (taken < most && !inlet.banished && take_one(inlet, into)) ++taken;
  if (taken > 0 && memory_->words(inlet.row).waiting.load() != 0) {
    memory_->wake_producer(inlet.row);
  }
  return taken;
}

// False: there is none, or no room for it.
bool Channel::take_one(Inlet& inlet, Gathering& into) {
  Ring::Record record;
  bool taken = false;
  while (inlet.ring.front(record)) {
    try {
      if (!record.sane) throw Error(Code::kDataLoss, kChannel, "a record's sizes cannot be");
      const SpecRef spec = spec_of(inlet, record);
      if (spec == nullptr) continue;
      if (!into.copy(inlet.ring, record, spec)) return false;
      taken = inlet.ring.take(record);
      if (!taken) continue;
      into.keep();
      ++inlet.got;
      return true;
    } catch (const Error& error) {
      if (!taken && !inlet.ring.still(record)) continue;  // it was written over meanwhile
      banish(inlet, error.what());
      return false;
    }
  }
  return false;
}

// Nothing of it can be trusted any more. Its ring is not given to another before it let go of it.
void Channel::banish(Inlet& inlet, const std::string& why) {
  inlet.banished = true;
  memory_->words(inlet.row).banished.store(1);
  memory_->wake_producer(inlet.row);
  complaint_ = "process " + std::to_string(inlet.pid) + " put what is no item into '" + name_ +
               "' and was sent away: " + why;
}

// Null: the record was written over.
SpecRef Channel::spec_of(Inlet& inlet, const Ring::Record& record) {
  spec_bytes_.resize(record.spec_bytes);
  inlet.ring.copy(record, sizeof(RecordHeader), spec_bytes_.data(), record.spec_bytes);
  if (inlet.spec != nullptr && std::ranges::equal(inlet.spec->bytes(), spec_bytes_)) {
    return inlet.spec;
  }
  if (!inlet.ring.still(record)) return nullptr;
  std::string key(reinterpret_cast<const char*>(spec_bytes_.data()), spec_bytes_.size());
  if (auto known = specs_.find(key); known != specs_.end()) return inlet.spec = known->second;
  if (specs_.size() >= kMostSpecs) specs_.clear();
  auto made = std::make_shared<ElementSpec>(std::span<const std::byte>(spec_bytes_));
  return inlet.spec = specs_[std::move(key)] = std::move(made);
}

ProducerCounts Channel::counts(Inlet& inlet) const {
  // Counts in the ring wrap around; this is called often enough to see each time.
  const uint64_t head = inlet.ring.head().count;
  inlet.passed += (head - inlet.passed) & Ring::kCountMask;
  const uint64_t queued = (inlet.ring.tail().count - head) & Ring::kCountMask;
  return {.pid = inlet.pid,
          .alive = inlet.alive,
          .put = inlet.passed + queued,
          .got = inlet.got,
          .dropped = inlet.passed - inlet.got,
          .refused = memory_->words(inlet.row).refused.load(),
          .queued = queued};
}

std::vector<ProducerCounts> Channel::stats() const {
  check();  // before the lock: its holder may be a thread of the parent's
  std::lock_guard lock(mutex_);
  std::vector<ProducerCounts> all;
  if (long_gone_.put + long_gone_.refused > 0) all.push_back(long_gone_);
  for (const ProducerCounts& each : gone_) all.push_back(each);
  for (const auto& inlet : inlets_) all.push_back(counts(*inlet));
  return all;
}

// Those that are gone, and of which nothing is to be taken any more.
void Channel::bury() {
  for (size_t i = 0; i < inlets_.size();) {
    Inlet& inlet = *inlets_[i];
    if (inlet.alive || (!inlet.banished && inlet.ring.queued() > 0)) {
      ++i;
      continue;
    }
    gone_.push_back(counts(inlet));
    const uint32_t row = inlet.row;
    inlets_.erase(inlets_.begin() + static_cast<ptrdiff_t>(i));
    if (next_ > i) --next_;
    memory_->clear_row(row);
    if (gone_.size() <= kProducers) continue;
    long_gone_.put += gone_[0].put;
    long_gone_.got += gone_[0].got;
    long_gone_.dropped += gone_[0].dropped;
    long_gone_.refused += gone_[0].refused;
    gone_.pop_front();
  }
}

std::optional<int> Channel::came(uint32_t row, pid_t pid) {
  std::lock_guard lock(mutex_);
  try {
    memory_->open_row(row);
    RingMapping mapping = memory_->map_ring(row);
    const Ring ring(&memory_->words(row), mapping.data(), memory_->capacity(),
                    memory_->when_full() == WhenFull::kDropOldest);
    inlets_.push_back(std::make_unique<Inlet>(row, pid, std::move(mapping), ring));
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return memory_->fd();
}

void Channel::left(uint32_t row) {
  {
    std::lock_guard lock(mutex_);
    for (const auto& inlet : inlets_) {
      if (inlet->row == row) inlet->alive = false;
    }
    bury();
  }
  // It may have died between putting an item and saying so.
  memory_->wake_all_takers();
}

// What a producer left behind is still to be taken.
bool Channel::may_have(uint32_t row) {
  std::lock_guard lock(mutex_);
  return !closed_ &&
         std::ranges::none_of(inlets_, [&](const auto& inlet) { return inlet->row == row; });
}

void Channel::close() {
  if (server_.inherited()) return;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    memory_->header().closed.store(1);
    for (const auto& inlet : inlets_) {
      inlet->alive = false;
      memory_->wake_producer(inlet->row);
    }
  }
  memory_->wake_all_takers();
  server_.stop();
}

}  // namespace penstock::train
