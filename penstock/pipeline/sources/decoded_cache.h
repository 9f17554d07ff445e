#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace penstock {

// Decoded pieces of files by number. A piece that several threads need at once is decoded by one of
// them. The last piece stays, whatever its size. Any thread.
//
// Where space is needed, a piece whose rows were all used goes first, of these the one that was
// used up last: its memory is still in the CPU's cache, and in the next epoch those used up before
// come before it. So a pass through more data than fits finds a part of it again in the next pass.
// If no piece is used up, the least recently used one goes.
template <class T>
class DecodedCache {
 public:
  using Piece = std::shared_ptr<T>;
  struct Decoded {
    Piece piece = nullptr;
    uint64_t bytes = 0;
    uint64_t rows = 0;  // it is used up when as many were used
  };
  using Decode = std::function<Decoded()>;

  explicit DecodedCache(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // The piece with this number. `decode` makes it if it is not there; its exception goes to its
  // caller, and the other threads try again.
  Piece get(uint64_t number, const Decode& decode) { return find(number, decode, true); }
  // The same, but nullptr if another thread is decoding the piece.
  Piece try_get(uint64_t number, const Decode& decode) { return find(number, decode, false); }

  // The caller uses `rows` rows of the piece, and will not ask for them again in this epoch.
  void used(uint64_t number, uint64_t rows) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(number);
    if (found == entries_.end() || found->second.piece == nullptr) return;
    Entry& entry = found->second;
    if (entry.left == 0) {  // of the epoch before
      entry.left = entry.rows;
      used_up_bytes_ -= entry.bytes;
      recent_.splice(recent_.begin(), used_up_, entry.place);
    }
    entry.left -= std::min(rows, entry.left);
    if (entry.left > 0) return;
    used_up_bytes_ += entry.bytes;
    used_up_.splice(used_up_.begin(), recent_, entry.place);
  }

  // The piece is there, is being decoded, or would not take the place of another.
  bool takes(uint64_t number, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    return entries_.contains(number) || bytes_ + decoding_ + bytes <= max_bytes_;
  }

  enum class Ahead { kThere, kDecoded, kNoRoom };
  // Decodes a piece of about `bytes` that will be needed later, unless it is there, is being
  // decoded, or would take the place of another that is not used up. Errors of `decode`.
  Ahead ahead(uint64_t number, uint64_t bytes, const Decode& decode) {
    std::unique_lock lock(mutex_);
    if (entries_.contains(number)) return Ahead::kThere;
    if (bytes_ - used_up_bytes_ + decoding_ + bytes > max_bytes_) return Ahead::kNoRoom;
    make(number, bytes, decode, lock);
    return Ahead::kDecoded;
  }

 private:
  struct Entry {
    Piece piece = nullptr;  // null: a thread is decoding it
    uint64_t bytes = 0;
    uint64_t rows = 0, left = 0;               // left 0: it is used up
    std::list<uint64_t>::iterator place = {};  // in recent_ or used_up_
  };

  Piece find(uint64_t number, const Decode& decode, bool wait) {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto found = entries_.find(number);
      if (found == entries_.end()) return make(number, 0, decode, lock);
      Entry& entry = found->second;
      if (entry.piece != nullptr) {
        if (entry.left > 0) recent_.splice(recent_.begin(), recent_, entry.place);
        return entry.piece;
      }
      if (!wait) return nullptr;
      decoded_.wait(lock);
    }
  }

  Piece make(uint64_t number, uint64_t expected, const Decode& decode,
             std::unique_lock<std::mutex>& lock) {
    entries_.emplace(number, Entry{});
    decoding_ += expected;
    lock.unlock();
    Decoded made;
    try {
      made = decode();
    } catch (...) {
      lock.lock();
      decoding_ -= expected;
      entries_.erase(number);
      decoded_.notify_all();
      throw;
    }
    std::list<Piece> dropped;  // destroyed without the lock
    lock.lock();
    decoding_ -= expected;
    recent_.push_front(number);
    const uint64_t rows = std::max<uint64_t>(made.rows, 1);
    entries_[number] = {made.piece, made.bytes, rows, rows, recent_.begin()};
    bytes_ += made.bytes;
    while (bytes_ > max_bytes_ && recent_.size() + used_up_.size() > 1) {
      std::list<uint64_t>& from = used_up_.empty() ? recent_ : used_up_;
      const auto place = used_up_.empty() ? std::prev(recent_.end()) : used_up_.begin();
      const auto victim = entries_.find(*place);
      bytes_ -= victim->second.bytes;
      if (!used_up_.empty()) used_up_bytes_ -= victim->second.bytes;
      dropped.push_back(std::move(victim->second.piece));
      entries_.erase(victim);
      from.erase(place);
    }
    decoded_.notify_all();
    lock.unlock();
    return std::move(made.piece);
  }

  const uint64_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable decoded_;
  std::unordered_map<uint64_t, Entry> entries_;
  // Numbers of the pieces that are there: those with rows that were not used, the most recently
  // used first; and those used up, the last one first.
  std::list<uint64_t> recent_, used_up_;
  uint64_t bytes_ = 0, used_up_bytes_ = 0;  // of all; of those used up
  uint64_t decoding_ = 0;                   // bytes of the pieces that are being decoded ahead
};

}  // namespace penstock
