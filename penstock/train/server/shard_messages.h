#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/base/byte_reader.h"
#include "penstock/net/connection.h"
#include "penstock/train/server/replica_log.h"
#include "penstock/train/server/shard_memory.h"

// Heads of the messages between workers and shards, over penstock/net. A worker asks and the shard
// answers, in turns. Numbers are little-endian. A message that cannot be parsed is DataLoss and
// ends the connection.
namespace penstock::train::wire {

enum class Ask : uint32_t {
  kHello = 1,  // HelloHead, name                       -> ServerHead; body: layout as JSON
  kSlab = 2,   // SlabHead, descriptor                  -> nothing more
  kPush = 3,   // PushHead; body: gradient, weights     -> nothing more
  kPull = 4,   // nothing more                          -> body: weights
  kStats = 5,  // nothing more                          -> body: JSON
  kBye = 6,    // nothing more                          -> nothing more
  kReady = 7,  // nothing more                          -> nothing more; see Shard::ready()
  kAlive = 8,  // nothing more                          -> nothing more; see Shard::alive()
  // FollowHead -> StateHead; body: record, weights, optimizer state. From then on the shard sends
  // entries (EntryHead, rows, PartHeads; body: the parts), and gets an EntryAck for each message.
  kFollow = 9,
  kPushPull = 10,  // as kPush                          -> body: weights that have the push
};

struct AskHead {
  static constexpr uint32_t kMagic = 0x32535350;  // "PSS2"
  uint32_t magic = kMagic;
  Ask ask = Ask::kStats;
};

struct HelloHead {
  uint64_t worker = 0;
  uint32_t name_bytes = 0;
  uint32_t chosen = 0;  // Shard::Worker has the meaning of these
  uint64_t decided = 0;
  uint64_t in_doubt = 0;
  uint64_t evictions = 0;
  uint32_t incarnation = 0;
  uint32_t reserved = 0;
  uint64_t epoch = 0;  // the highest epoch of this shard that the worker has seen
};

struct SlabHead {
  uint64_t slab = 0;  // the worker's number for it, on this connection
};

struct PushHead {
  static constexpr uint64_t kInBody = 0;

  uint64_t sequence = 0;
  double squares = 0;
  uint64_t base = 0;             // version
  uint64_t slab = kInBody;       // the slab with the gradient
  uint64_t base_slab = kInBody;  // the slab with the base weights, for delay compensation
  uint64_t pulls = 0;
  uint64_t pulled_ns = 0;  // on the same host: now_ns() at the last of these pulls
  uint32_t encoding = 0;
  uint32_t has_base = 0;
};

// Begins the head of an answer; the text of an error follows.
struct AnswerHead {
  static constexpr uint32_t kOk = 0;  // else 1 + Code

  uint32_t magic = AskHead::kMagic;
  uint32_t status = kOk;
  Outcome outcome = Outcome::kApplied;
  uint32_t reserved = 0;
  uint64_t version = 0;
};

// Follows AnswerHead in the answer to kHello; on the same host the message carries the descriptor
// of the shard's memory.
struct ServerHead {
  uint64_t server = 0;    // the same for all shards of one server
  uint64_t sequence = 0;  // number of this worker's last decided push; AnswerHead has its outcome
  uint64_t begin = 0;     // the shard's floats of the slab
  uint64_t end = 0;
  uint32_t compensated = 0;
  uint32_t non_finite = 0;
  uint32_t holds = 0;  // whether the mode may hold pushes for any time
  uint32_t known = 0;  // whether the shard knew this worker
  uint64_t evictions = 0;
  uint32_t incarnation = 0;
  uint32_t reserved = 0;
  uint64_t epoch = 0;  // see ShardPlace
  double lease_s = 0;  // see ServerMode
};

// A process that will be the shard's follower.
struct FollowHead {
  uint64_t follower = 0;  // its id
  uint64_t server = 0;
  uint64_t floats = 0;  // of the shard's range
  uint32_t states = 0;  // slabs of optimizer state
  uint32_t reserved = 0;
};

// Follows AnswerHead: the state after change `number` comes in the body.
struct StateHead {
  uint64_t number = 0;
  uint64_t epoch = 0;
};

// One change. `rows` times an index (4 bytes) and a LedgerRow follow, then `parts` PartHeads. A
// beat is a sign of life and no change.
struct EntryHead {
  uint32_t magic = AskHead::kMagic;
  uint32_t beat = 0;
  uint64_t number = 0;
  ReplicaNumbers record = {};
  uint32_t rows = 0;
  uint32_t parts = 0;
};

// Its part of the body: base weights, if any, then the gradient.
struct PartHead {
  double squares = 0;
  uint64_t bytes = 0;  // of the gradient
  uint32_t encoding = 0;
  uint32_t has_base = 0;
};
static_assert(sizeof(EntryHead) +
                  kMaxWorkers * (sizeof(uint32_t) + sizeof(LedgerRow) + sizeof(PartHead)) <=
              net::kMaxHeadBytes);

struct EntryAck {
  uint32_t magic = AskHead::kMagic;
  uint32_t reserved = 0;
  uint64_t number = 0;  // of the last change that the follower has made
};

inline constexpr uint32_t kMaxNameBytes = 256;

template <typename T>
void append(std::vector<std::byte>& head, const T& value) {
  const auto* first = reinterpret_cast<const std::byte*>(&value);
  head.insert(head.end(), first, first + sizeof value);
}
inline void append(std::vector<std::byte>& head, const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  head.insert(head.end(), first, first + text.size());
}

inline ByteReader reader(std::span<const std::byte> head, const char* operation) {
  return {head, Code::kDataLoss, operation};
}

}  // namespace penstock::train::wire
