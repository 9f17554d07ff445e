#include "penstock/train/ring.h"

#include <algorithm>
#include <cstring>

namespace penstock::train {
namespace {

// 28 bits of units: 2^28 * 64 bytes are above kMaxBytes.
static_assert(Ring::kMaxBytes / kRecordUnit <= uint64_t{1} << (64 - Ring::kCountBits));

using Word = std::atomic_ref<uint64_t>;

uint64_t load_word(const std::byte* from) {
  // atomic_ref of const comes only after C++20.
  return Word(*reinterpret_cast<uint64_t*>(const_cast<std::byte*>(from)))
      .load(std::memory_order_acquire);
}

}  // namespace

Ring::Place Ring::after(Place place, uint64_t bytes) const {
  place.at += bytes;
  if (place.at >= capacity_) place.at -= capacity_;
  place.count = (place.count + 1) & kCountMask;
  return place;
}

Ring::Place Ring::tail() const {
  Place place = unpack(words_->tail.load());
  if (place.at >= capacity_) place.at = 0;
  return place;
}

uint64_t Ring::used(Place head, Place tail) const {
  if (head.count == tail.count) return 0;
  const uint64_t bytes = tail.at > head.at ? tail.at - head.at : tail.at + capacity_ - head.at;
  return std::min(bytes, capacity_);  // also for corrupt words
}

uint64_t Ring::queued() const {
  const Place first = head();  // read head first: it is never past the tail that is read next
  return (tail().count - first.count) & kCountMask;
}

uint64_t Ring::queued_bytes() const {
  const Place first = head();
  return used(first, tail());
}

bool Ring::has_space(uint64_t bytes) const {
  const Place last = tail();
  return capacity_ - used(head(), last) >= bytes;
}

void Ring::make_space(uint64_t bytes) {
  const Place last = tail();
  uint64_t word = words_->head.load();
  for (;;) {
    const Place first = unpack(word);
    if (capacity_ - used(first, last) >= bytes) return;
    // Written by this producer only, unless the memory is damaged.
    const uint64_t size = first.at < capacity_ ? load_word(data_ + first.at) : 0;
    const bool valid = size >= kRecordUnit && size <= capacity_ && size % kRecordUnit == 0;
    const Place next = valid ? after(first, size) : last;
    if (words_->head.compare_exchange_strong(word, pack(next))) {
      word = words_->head.load();
    }
  }
}

void Ring::write(const std::byte* record, uint64_t bytes) {
  std::byte* to = tail_data();
  for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    uint64_t value;
    std::memcpy(&value, record + at, sizeof(value));
    Word(*reinterpret_cast<uint64_t*>(to + at)).store(value, std::memory_order_release);
  }
}

void Ring::put(uint64_t bytes) {
  words_->put.store(words_->put.load(std::memory_order_relaxed) + 1);
  words_->tail.store(pack(after(tail(), bytes)));
}

uint64_t Ring::put_before(Place tail) const {
  const uint64_t put = words_->put.load();
  const uint64_t ahead = (put - tail.count) & kCountMask;
  const uint64_t behind = (tail.count - put) & kCountMask;
  return ahead <= behind ? put - std::min(ahead, put) : put + behind;
}

bool Ring::front(Record& record) const {
  for (;;) {
    record.place = head();
    const Place last = tail();
    if (record.place.count == last.count) return false;
    record.valid = record.place.at < capacity_;
    if (!record.valid) return true;  // corrupt words
    record.data = data_ + record.place.at;
    RecordHeader sizes;
    copy(record, 0, &sizes, sizeof(sizes));
    record.bytes = sizes.bytes;
    record.spec_bytes = sizes.spec_bytes;
    if (!is_oldest(record)) continue;
    record.valid = sizes.bytes % kRecordUnit == 0 && sizes.bytes >= kRecordUnit &&
                   sizes.bytes <= used(record.place, last) &&
                   sizes.spec_bytes <= sizes.bytes - sizeof(sizes);
    return true;
  }
}

void Ring::copy(const Record& record, uint64_t from, void* to, uint64_t bytes) const {
  if (bytes == 0) return;
  const std::byte* first = record.data + from;
  if (!contended_) {
    std::memcpy(to, first, bytes);
    return;
  }
  auto* out = static_cast<std::byte*>(to);
  uint64_t at = 0;
  for (; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
    const uint64_t value = load_word(first + at);
    std::memcpy(out + at, &value, sizeof(value));
  }
  if (at < bytes) {  // a partial word: records end at whole words
    const uint64_t value = load_word(first + at);
    std::memcpy(out + at, &value, bytes - at);
  }
}

bool Ring::is_oldest(const Record& record) const {
  return words_->head.load() == pack(record.place);
}

bool Ring::take(const Record& record) {
  uint64_t expected = pack(record.place);
  return words_->head.compare_exchange_strong(expected, pack(after(record.place, record.bytes)));
}

}  // namespace penstock::train
