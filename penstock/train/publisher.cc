#include "penstock/train/publisher.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/train/weights_memory.h"

namespace penstock::train {
namespace {

uint64_t bit(uint32_t slot) { return uint64_t{1} << slot; }

constexpr const char* kPublish = "publish";

// Readers wake each other. If the next in the chain is stopped or killed, the server wakes the rest
// within this time, and checks this many times after the last version. The timer keeps running
// for that long because setting it costs publish() as much as a wake (25 us in a virtual machine).
constexpr int64_t kLateNs = 10'000'000;
constexpr uint32_t kLateWakes = 10;

}  // namespace

bool SlotWriter::publish(const Write& write, uint64_t version) {
  // Read after the current version was stored, so holders of every other version are seen.
  uint64_t held = memory_->held();
  if (const auto current = memory_->newest()) held |= bit(current->slot);
  const int chosen = choose(held);
  if (chosen < 0) return false;
  const auto slot = static_cast<uint32_t>(chosen);
  write(memory_->values(slot));
  sleepers_ = memory_->announce({version, slot});
  max_needed_ = std::max(max_needed_, static_cast<uint32_t>(std::popcount(held)) + 1);
  if (++published_ % kWindow == 0) {
    if (backed() > max_needed_) release(held | bit(slot), backed() - max_needed_);
    max_needed_ = 0;
  }
  return true;
}

uint32_t SlotWriter::backed() const { return static_cast<uint32_t>(std::popcount(backed_)); }

int SlotWriter::choose(uint64_t held) {
  // The lowest free slot, so that higher ones stay unused.
  if (const uint64_t free = backed_ & ~held; free != 0) return std::countr_zero(free);
  // A slot without memory may still have a count: a reader that is about to retry.
  const auto slot = static_cast<uint32_t>(std::countr_one(backed_));
  if (slot >= kSlots || !allocate(slot)) return -1;
  return static_cast<int>(slot);
}

bool SlotWriter::allocate(uint32_t slot) {
  const uint64_t offset = memory_->offset_of(slot);
  const size_t slot_bytes = memory_->slot_bytes(), bytes = memory_->layout().bytes();
  if (os::memory_headroom() < bytes) return false;
  try {
    if (offset + slot_bytes > file_end_) os::resize_file(memory_->fd(), offset + slot_bytes);
  } catch (const Error&) {
    return false;
  }
  file_end_ = std::max(file_end_, offset + slot_bytes);
  float* const first = memory_->values(slot).data();
  os::prefer_huge_pages(first, bytes, memory_->fd());
  if (os::populate_write(first, bytes, memory_->fd(), offset) != 0) {
    os::discard(memory_->fd(), nullptr, offset, slot_bytes);
    return false;
  }
  backed_ |= bit(slot);
  return true;
}

// A slot that is neither held nor current cannot become held before it is current again.
void SlotWriter::release(uint64_t held, uint32_t surplus) {
  for (uint64_t free = backed_ & ~held; free != 0 && surplus > 0; --surplus) {
    const auto slot = static_cast<uint32_t>(std::bit_width(free) - 1);
    os::discard(memory_->fd(), nullptr, memory_->offset_of(slot), memory_->slot_bytes());
    free &= ~bit(slot);
    backed_ &= ~bit(slot);
  }
}

Publisher::Publisher(std::string name, Layout layout)
    : name_(std::move(name)),
      memory_(WeightsMemory::make(std::move(layout))),
      writer_(memory_),
      taken_(kReaders),
      server_("weights", name_, kReaders, *this) {}

void Publisher::check_ours() const {
  if (!server_.inherited()) return;
  throw Error(Code::kInvalidArgument, kPublish,
              "this process was forked from the one that publishes '" + name_ +
                  "': publish there, or under another name");
}

uint64_t Publisher::publish(const Parameters& parameters) {
  check_ours();
  layout().require_equal(parameters.layout(), kPublish, "these parameters");
  // An ordinary copy, since readers use the data next; for large sizes the C library bypasses the
  // caches by itself.
  const std::span<const float> values = parameters.slab().values();
  const auto copy = [&](std::span<float> to) {
    std::memcpy(to.data(), values.data(), values.size_bytes());
  };
  return publish(copy, parameters.version());
}

uint64_t Publisher::publish(const SlotWriter::Write& write, uint64_t version) {
  check_ours();
  std::lock_guard lock(publishing_);
  if (last_ && version <= *last_) version = *last_ + 1;
  if (version > WeightsMemory::kMaxVersion) {
    throw Error(Code::kInvalidArgument, kPublish, "versions end at 2^57");
  }
  if (!writer_.publish(write, version)) {
    std::string who;
    for (pid_t pid : holders()) who += (who.empty() ? "" : ", ") + std::to_string(pid);
    throw Error(Code::kOutOfMemory, kPublish,
                "no space for one more version of " + std::to_string(layout().bytes()) +
                    " bytes beside " + std::to_string(writer_.backed()) + " versions; held by " +
                    (who.empty() ? "no process" : "process " + who + ", which must end a read()"));
  }
  if (writer_.sleepers() > 1) {
    late_wakes_left_.store(kLateWakes);
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

void Publisher::update_rows_used() {
  uint32_t used = kReaders;
  while (used > 0 && !taken_[used - 1]) --used;
  memory_->use_rows(used);
}

std::optional<int> Publisher::on_connect(uint32_t row, pid_t) {
  taken_[row] = true;
  update_rows_used();
  return memory_->fd();
}

// The row's reader has ended, so nothing can read or write the row any more.
void Publisher::on_disconnect(uint32_t row) {
  taken_[row] = false;
  memory_->clear(row);
  update_rows_used();
}

void Publisher::on_timer() {
  memory_->wake_late();
  const uint32_t left = late_wakes_left_.load();
  if (left == 0) return;
  late_wakes_left_.store(left - 1);
  server_.call_later(kLateNs);
}

}  // namespace penstock::train
