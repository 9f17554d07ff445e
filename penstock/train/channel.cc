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
constexpr int64_t kChannelWaitSliceNs = 100'000'000;  // between two calls of while_waiting
constexpr size_t kMaxSpecs = 256;                     // remembered specs

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
                    "': use it there, or make a channel with another name");
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
      if (eviction_error_)
        throw Error(Code::kDataLoss, kChannel, *std::exchange(eviction_error_, std::nullopt));
      Items items = take(most);
      if (!items.empty()) return items;
      if (eviction_error_) continue;
    }
    int64_t left = -1;
    if (timeout_ns >= 0) {
      left = timeout_ns - static_cast<int64_t>(now_ns() - begin);
      if (left <= 0) return {};
    }
    if (while_waiting_) {
      while_waiting_();
      left = left < 0 ? kChannelWaitSliceNs : std::min(left, kChannelWaitSliceNs);
    }
    // Sequentially consistent, as are the producer's store of the tail and its load of `takers`:
    // either the producer sees this thread, or this thread sees the item.
    header.takers.fetch_add(1);
    const uint32_t seen = header.arrivals.load();
    if (!has_items()) os::futex_wait(header.arrivals, seen, left, true);
    header.takers.fetch_sub(1);
  }
}

bool Channel::has_items() const {
  std::lock_guard lock(mutex_);
  return closed_ || std::ranges::any_of(rings_, [](const auto& producer) {
           return !producer->evicted && producer->ring.queued() > 0;
         });
}

// Takes a share from each ring in turn.
Items Channel::take(uint64_t most) {
  uint64_t queued = 0, bytes = 0, filled = 0;
  for (const auto& producer : rings_) {
    const uint64_t here = producer->evicted ? 0 : producer->ring.queued();
    if (here == 0) continue;
    queued += here;
    bytes += producer->ring.queued_bytes();
    ++filled;
  }
  if (queued == 0) return {};
  most = std::min(most, queued);
  BatchAssembler assembler(most, bytes, batches_);
  const uint64_t share = std::max<uint64_t>(1, most / filled);
  size_t idle = 0;  // consecutive rings without an item
  try {
    while (assembler.space() > 0 && idle < rings_.size()) {
      if (next_ >= rings_.size()) next_ = 0;
      const uint64_t want = std::min(share, assembler.space());
      const uint64_t taken = take_from(*rings_[next_++], want, assembler);
      idle = taken == 0 ? idle + 1 : 0;
    }
  } catch (const std::bad_alloc&) {  // return the items taken so far
    if (assembler.space() == most) {
      throw Error(Code::kOutOfMemory, kChannel,
                  "no memory for a batch of " + std::to_string(most) + " items: take fewer");
    }
  }
  Items items = assembler.finish();
  reap();
  return items;
}

uint64_t Channel::take_from(ProducerRing& producer, uint64_t most, BatchAssembler& into) {
  uint64_t taken = 0;
  while (taken < most && !producer.evicted && take_one(producer, into)) ++taken;
  if (taken > 0 && memory_->words(producer.row).waiting.load() != 0) {
    memory_->wake_producer(producer.row);
  }
  return taken;
}

// False: the ring is empty, or the assembler is full.
bool Channel::take_one(ProducerRing& producer, BatchAssembler& into) {
  Ring::Record record;
  bool taken = false;
  while (producer.ring.front(record)) {
    try {
      if (!record.valid) throw Error(Code::kDataLoss, kChannel, "a record has invalid sizes");
      const SpecRef spec = spec_of(producer, record);
      if (spec == nullptr) continue;
      if (!into.copy(producer.ring, record, spec)) return false;
      taken = producer.ring.take(record);
      if (!taken) continue;
      into.keep();
      ++producer.got;
      return true;
    } catch (const Error& error) {
      if (!taken && !producer.ring.is_oldest(record))
        continue;  // overwritten meanwhile: not an error
      evict(producer, error.what());
      return false;
    }
  }
  return false;
}

// Its data is not trusted after an invalid item. Its row is reused only after it has disconnected.
void Channel::evict(ProducerRing& producer, const std::string& why) {
  producer.evicted = true;
  memory_->words(producer.row).evicted.store(1);
  memory_->wake_producer(producer.row);
  eviction_error_ = "process " + std::to_string(producer.pid) + " put an invalid item into '" +
                    name_ + "' and was disconnected: " + why;
}

// Null: the record was overwritten.
SpecRef Channel::spec_of(ProducerRing& producer, const Ring::Record& record) {
  spec_bytes_.resize(record.spec_bytes);
  producer.ring.copy(record, sizeof(RecordHeader), spec_bytes_.data(), record.spec_bytes);
  if (producer.spec != nullptr && std::ranges::equal(producer.spec->bytes(), spec_bytes_)) {
    return producer.spec;
  }
  if (!producer.ring.is_oldest(record)) return nullptr;
  std::string key(reinterpret_cast<const char*>(spec_bytes_.data()), spec_bytes_.size());
  if (auto known = specs_.find(key); known != specs_.end()) return producer.spec = known->second;
  if (specs_.size() >= kMaxSpecs) specs_.clear();
  auto made = std::make_shared<ElementSpec>(std::span<const std::byte>(spec_bytes_));
  return producer.spec = specs_[std::move(key)] = std::move(made);
}

ProducerCounts Channel::counts(const ProducerRing& producer) const {
  const uint64_t head = producer.ring.head().count;  // first: see Ring::queued()
  const Ring::Place tail = producer.ring.tail();
  const uint64_t queued = (tail.count - head) & Ring::kCountMask;
  const uint64_t put = producer.ring.put_before(tail);
  const uint64_t known = queued + producer.got;
  return {.pid = producer.pid,
          .alive = producer.alive,
          .put = put,
          .got = producer.got,
          .dropped = put - std::min(put, known),  // the producer's words may be corrupt
          .refused = memory_->words(producer.row).refused.load(),
          .queued = queued};
}

std::vector<ProducerCounts> Channel::stats() const {
  check();  // before the lock: in a forked child a thread of the parent may hold it
  std::lock_guard lock(mutex_);
  std::vector<ProducerCounts> all;
  if (older_counts_.put + older_counts_.refused > 0) all.push_back(older_counts_);
  for (const ProducerCounts& each : past_counts_) all.push_back(each);
  for (const auto& producer : rings_) all.push_back(counts(*producer));
  return all;
}

// Removes rings whose producer has disconnected and whose items were all taken.
void Channel::reap() {
  for (size_t i = 0; i < rings_.size();) {
    ProducerRing& producer = *rings_[i];
    if (producer.alive || (!producer.evicted && producer.ring.queued() > 0)) {
      ++i;
      continue;
    }
    past_counts_.push_back(counts(producer));
    const uint32_t row = producer.row;
    rings_.erase(rings_.begin() + static_cast<ptrdiff_t>(i));
    if (next_ > i) --next_;
    memory_->clear_row(row);
    if (past_counts_.size() <= kProducers) continue;
    older_counts_.put += past_counts_[0].put;
    older_counts_.got += past_counts_[0].got;
    older_counts_.dropped += past_counts_[0].dropped;
    older_counts_.refused += past_counts_[0].refused;
    past_counts_.pop_front();
  }
}

std::optional<int> Channel::on_connect(uint32_t row, pid_t pid) {
  std::lock_guard lock(mutex_);
  try {
    memory_->open_row(row);
    RingMapping mapping = memory_->map_ring(row);
    const Ring ring(&memory_->words(row), mapping.data(), memory_->capacity(),
                    memory_->when_full() == WhenFull::kDropOldest);
    rings_.push_back(std::make_unique<ProducerRing>(row, pid, std::move(mapping), ring));
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return memory_->fd();
}

void Channel::on_disconnect(uint32_t row) {
  {
    std::lock_guard lock(mutex_);
    for (const auto& producer : rings_) {
      if (producer->row == row) producer->alive = false;
    }
    reap();
  }
  // The producer may have died between putting an item and waking the learner.
  memory_->wake_all_takers();
}

// A row is not reused while the last producer's items are in it.
bool Channel::is_available(uint32_t row) {
  std::lock_guard lock(mutex_);
  return !closed_ &&
         std::ranges::none_of(rings_, [&](const auto& producer) { return producer->row == row; });
}

void Channel::close() {
  if (server_.inherited()) return;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    memory_->header().closed.store(1);
    for (const auto& producer : rings_) {
      producer->alive = false;
      memory_->wake_producer(producer->row);
    }
  }
  memory_->wake_all_takers();
  server_.stop();
}

}  // namespace penstock::train
