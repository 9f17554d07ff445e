#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace penstock {

// Decoded pieces of files by number, least recently used first out. A piece that several threads
// need at once is decoded by one of them. The last piece stays, whatever its size. Any thread.
template <class T>
class DecodedCache {
 public:
  using Piece = std::shared_ptr<T>;
  struct Decoded {
    Piece piece = nullptr;
    uint64_t bytes = 0;
  };
  using Decode = std::function<Decoded()>;

  explicit DecodedCache(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // The piece with this number. `decode` makes it if it is not there; its exception goes to its
  // caller, and the other threads try again.
  Piece get(uint64_t number, const Decode& decode) { return find(number, decode, true); }
  // The same, but nullptr if another thread is decoding the piece.
  Piece try_get(uint64_t number, const Decode& decode) { return find(number, decode, false); }

  // The piece is there, is being decoded, or would not take the place of another.
  bool takes(uint64_t number, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    return entries_.contains(number) || bytes_ + decoding_ + bytes <= max_bytes_;
  }

  enum class Ahead { kThere, kDecoded, kNoRoom };
  // Decodes a piece of about `bytes` that will be needed later, unless it is there, is being
  // decoded, or would take the place of another. Errors of `decode`.
  Ahead ahead(uint64_t number, uint64_t bytes, const Decode& decode) {
    std::unique_lock lock(mutex_);
    if (entries_.contains(number)) return Ahead::kThere;
    if (bytes_ + decoding_ + bytes > max_bytes_) return Ahead::kNoRoom;
    make(number, bytes, decode, lock);
    return Ahead::kDecoded;
  }

 private:
  struct Entry {
    Piece piece = nullptr;  // null: a thread is decoding it
    uint64_t bytes = 0;
    std::list<uint64_t>::iterator place = {};  // in used_
  };

  Piece find(uint64_t number, const Decode& decode, bool wait) {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto found = entries_.find(number);
      if (found == entries_.end()) return make(number, 0, decode, lock);
      Entry& entry = found->second;
      if (entry.piece != nullptr) {
        used_.splice(used_.begin(), used_, entry.place);
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
    used_.push_front(number);
    entries_[number] = {made.piece, made.bytes, used_.begin()};
    bytes_ += made.bytes;
    while (bytes_ > max_bytes_ && used_.size() > 1) {
      const auto oldest = entries_.find(used_.back());
      bytes_ -= oldest->second.bytes;
      dropped.push_back(std::move(oldest->second.piece));
      entries_.erase(oldest);
      used_.pop_back();
    }
    decoded_.notify_all();
    lock.unlock();
    return std::move(made.piece);
  }

  const uint64_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable decoded_;
  std::unordered_map<uint64_t, Entry> entries_;
  std::list<uint64_t> used_;  // numbers of the pieces that are there, most recently used first
  uint64_t bytes_ = 0;        // of these
  uint64_t decoding_ = 0;     // bytes of the pieces that are being decoded ahead
};

}  // namespace penstock
