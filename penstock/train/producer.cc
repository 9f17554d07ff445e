#include "penstock/train/producer.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/pipeline/element/example_rows.h"
#include "penstock/pipeline/element/row_block.h"

// Connecting, and noticing a learner's end, is producer_session.cc.
namespace penstock::train {
namespace {

constexpr const char* kPutting = "put";
constexpr uint64_t kBackedAtOnce = uint64_t{1} << 20;

uint64_t up_to(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

uint64_t header_bytes(const ElementSpec& spec) {
  return up_to(sizeof(RecordHeader) + spec.bytes().size(), kRecordUnit);
}

// Of a record. Error kInvalidArgument: it is larger than the ring.
uint64_t record_bytes(const ElementSpec& spec, uint64_t block_bytes, uint64_t capacity) {
  const uint64_t front = header_bytes(spec);
  if (block_bytes <= capacity && front + up_to(block_bytes, kRecordUnit) <= capacity) {
    return front + up_to(block_bytes, kRecordUnit);
  }
  throw Error(Code::kInvalidArgument, kPutting,
              "an item of " + std::to_string(block_bytes) + " bytes and " + std::to_string(front) +
                  " that describe it is larger than the channel's capacity, " +
                  std::to_string(capacity) +
                  ": put smaller ones, or let the learner make the "
                  "channel with a larger capacity");
}

// Makes pages present before they are written to: a full machine is an Error and no SIGBUS.
void back(const ChannelMemory& memory, uint32_t row, std::byte* data, uint64_t& backed,
          uint64_t end) {
  if (end <= backed) return;
  end = std::min(up_to(end, kBackedAtOnce), memory.capacity());
  const int error =
      os::populate_write(data + backed, end - backed, memory.fd(), memory.offset_of(row) + backed);
  if (error != 0) {
    throw Error(Code::kOutOfMemory, kPutting,
                "no memory for " + std::to_string(end - backed) +
                    " more bytes of the channel: " + std::strerror(error));
  }
  backed = end;
}

}  // namespace

// Taken, or not: waits for nobody.
class Producer::Turn {
 public:
  explicit Turn(Producer& producer) : producer_(producer) {
    uint32_t free = 0;
    taken_ = producer_.writing_.compare_exchange_strong(free, 1);
  }
  ~Turn() {
    if (!taken_) return;
    producer_.writing_.store(0);
    if (producer_.sleepers_.load() == 0) return;
    producer_.turns_.fetch_add(1);
    os::futex_wake(producer_.turns_, INT_MAX, false);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  explicit operator bool() const { return taken_; }

 private:
  Producer& producer_;
  bool taken_;
};

Producer::Attempt Producer::try_put(const ElementSpec& spec, uint64_t block_bytes,
                                    const Write& write) {
  const Turn turn(*this);
  if (!turn) return Attempt::kNotYet;
  const SessionRef mine = session();
  if (mine == nullptr) return Attempt::kNotYet;
  const ChannelMemory& memory = *mine->memory;
  Ring& ring = mine->ring;
  const uint64_t front = header_bytes(spec);
  const uint64_t bytes = record_bytes(spec, block_bytes, memory.capacity());
  if (!ring.contended() && !ring.has_room(bytes)) {
    if (memory.when_full() == WhenFull::kBlock) return Attempt::kNotYet;
    mine->words().refused.fetch_add(1);
    return Attempt::kRefused;
  }
  const uint64_t end = ring.tail().at + bytes;
  back(memory, mine->row, mine->mapping.data(), mine->backed, std::min(end, memory.capacity()));

  std::byte* to = ring.tail_data();
  if (ring.contended()) {
    staging_.resize(bytes / sizeof(uint64_t));
    to = reinterpret_cast<std::byte*>(staging_.data());
  }
  const RecordHeader header{bytes, spec.bytes().size()};
  std::memcpy(to, &header, sizeof(header));
  std::memcpy(to + sizeof(header), spec.bytes().data(), spec.bytes().size());
  write(to + front);
  if (ring.contended()) {
    ring.make_room(bytes);
    ring.write(to, bytes);
  }
  ring.put(bytes);
  memory.wake_takers();
  return Attempt::kPut;
}

void Producer::wait(const ElementSpec& spec, uint64_t block_bytes, uint64_t end_ns) {
  const SessionRef mine = session();
  if (mine == nullptr) return wait_for_learner(end_ns);
  const uint64_t bytes = record_bytes(spec, block_bytes, mine->memory->capacity());
  const int64_t left = patience(end_ns);
  // Both sleeps are announced before the look that they depend on, so no wake is lost.
  sleepers_.fetch_add(1);
  const uint32_t seen = turns_.load();
  const bool taken = writing_.load() != 0;
  if (taken && left != 0) os::futex_wait(turns_, seen, left, false);
  sleepers_.fetch_sub(1);
  if (taken && left != 0) return;
  if (left == 0) {
    throw Error(Code::kTimeout, kPutting,
                "the channel '" + name_ + "' is full: its learner, process " +
                    std::to_string(mine->learner.pid) + ", takes less than is put");
  }
  RingWords& words = mine->words();
  words.waiting.fetch_add(1);
  const uint32_t room = words.room.load();
  if (!mine->ring.has_room(bytes) && mine->memory->header().closed.load() == 0 &&
      words.banished.load() == 0) {
    os::futex_wait(words.room, room, left, true);
  }
  words.waiting.fetch_sub(1);
}

bool Producer::put(const ElementSpec& spec, uint64_t block_bytes, const Write& write,
                   int64_t timeout_ns) {
  const uint64_t end = timeout_ns < 0 ? UINT64_MAX : now_ns() + static_cast<uint64_t>(timeout_ns);
  for (;;) {
    switch (try_put(spec, block_bytes, write)) {
      case Attempt::kPut:
        return true;
      case Attempt::kRefused:
        return false;
      case Attempt::kNotYet:
        wait(spec, block_bytes, end);
    }
  }
}

bool Producer::put(const Chunk& in, uint32_t row, int64_t timeout_ns) {
  const BlockLayout layout = row_layout(in, row);
  return put(
      *in.spec(), layout.bytes(), [&](std::byte* to) { write_row(in, row, layout, to); },
      timeout_ns);
}

bool Producer::put(const Example& item, int64_t timeout_ns) {
  if (item.empty()) throw Error(Code::kInvalidArgument, kPutting, "the item is empty");
  Scratch scratch;
  Chunk chunk(scratch);
  chunk.reset(nullptr, 1);
  ExampleRows rows(kPutting);
  if (auto error = rows.give(std::make_shared<Example>(item), chunk, 0)) {
    std::rethrow_exception(error);
  }
  return put(chunk, 0, timeout_ns);
}

}  // namespace penstock::train
