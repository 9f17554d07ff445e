#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "penstock/base/os.h"
#include "penstock/workers/board_layout.h"
#include "penstock/workers/lock_trial.h"

namespace penstock {

// The board: where tickets hang while they are in flight. One consumer posts tickets and takes
// results in; any number of workers, threads or processes, claim them. It is one block of memory
// without pointers, so it may be shared between processes, and any of them may be killed at any
// instruction: the single word of a unit says at all times whose the work is.
//
//   Post  one batch in flight. Posts form a ring; post `seq` lives at seq % posts.
//   Unit  one granule of a post: what a worker claims. A whole item has one.
//   Lane  a ring of posts with a consumer of its own. A board has one; or more, which the same
//         workers serve, where a Dataset makes elements for a stage that its batches wait for.
//
// States of a unit (all in Unit::word) and who moves them:
//
//   idle ──post──> open ──claim──> claimed ──begin_result──> writing ──finish──> done ──clear──>
//   idle
//     consumer        ^    worker      |          worker          |      worker         consumer
//                     └─ reopen: supervisor, when the worker died ┘
//                                      └── fail: supervisor, from claimed only ──> done
//
// Invariants
//  1. Only a compare-exchange leaves open, and only to one worker: no ticket is done twice at once.
//  2. The claim and the record of who claimed are one store: a death never loses a ticket.
//  3. The result's bytes are written between writing and done by one worker; the supervisor writes
//     them only after it took claimed away by compare-exchange.
//  4. posted() - head() <= posts: a post's place is reused only when its units are idle.
//  5. Whoever may sleep first says so (a sleeping bit, consumer_wants), then looks again; whoever
//     makes progress first makes it visible, then looks for sleepers (both sequentially
//     consistent).
//     A wake-up that reaches a worker which was parked meanwhile is passed on to an active one.
//  6. A unit's word never takes the same claimed value twice while somebody remembers the first
//     (every opening again counts `attempt` up), so a worker whose ticket was taken away can tell.
//  7. Nothing that a killed process leaves half done is counted on: `reopens` only ever grows, and
//     a wake-up that died with the one it was meant for is made up for by reopen().

class Board {
 public:
  struct Shape {
    uint32_t posts = 16;    // ring size; rounded up to a power of two
    uint32_t granules = 1;  // most granules of a post
    uint32_t workers = 1;
    uint32_t rows = kMaxGranuleRows;   // of a granule
    std::vector<uint32_t> inner = {};  // ring sizes of further lanes; a post there is one granule
  };
  // shared: in a memfd that other processes may open.
  static std::unique_ptr<Board> create(const Shape& shape, bool shared);
  static std::unique_ptr<Board> open(int fd);  // takes its own duplicate
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // A Board is one lane of what lies in that memory: the first, which owns it. Workers and their
  // places, sleeping, closing and the ledger are common to all lanes; everything else is each
  // lane's own. REQUIRED: lane < lanes(), and this is the first.
  uint32_t lanes() const { return static_cast<uint32_t>(inner_.size()) + 1; }
  Board& lane(uint32_t lane) { return lane == 0 ? *this : *inner_[lane - 1]; }
  uint32_t number() const { return lane_; }  // among the lanes

  int fd() const { return file_.get(); }  // -1: not shared
  uint32_t posts() const { return posts_; }
  uint32_t granules() const { return granules_; }
  uint32_t workers() const { return workers_; }
  WorkerPlace& place(uint32_t worker) { return places_[worker]; }
  Ledger ledger(uint32_t worker, uint32_t arena);  // of all workers' arenas
  // Of the arena by this number, which has the worker's place in the ledger. Keeps the board's
  // memory: leases may outlive the board.
  BlocksInUse in_use(uint32_t worker, uint32_t arena);
  // What the worker counted, and of a wait for a ticket that it is still in, the part up to the
  // last batch given out: the consumer's own figures end there. Any thread.
  WorkerFigures figures(uint32_t worker);
  ConsumerCounters& consumer();
  TraceRing& consumer_trace();

  // ---- the consumer (one thread at a time) ----
  uint64_t head() const;    // lowest post not yet cleared
  uint64_t posted() const;  // one past the newest
  bool can_post() const;    // room in the ring, and its place is idle
  // Where the next post goes; fill it in, then publish it.
  Post& next_post();
  void publish(Post& post);
  Post& post_at(uint64_t seq) { return post_ring_[seq & (posts_ - 1)]; }
  uint32_t granules_at(uint64_t seq) const {
    return post_ring_[seq & (posts_ - 1)].granules.load(std::memory_order_relaxed);
  }
  Unit& unit_at(uint64_t seq, uint32_t granule) {
    return unit_ring_[(seq & (posts_ - 1)) * granules_ + granule];
  }
  bool ready(uint64_t seq);  // all of its units are done
  bool idle(uint64_t seq);   // all of its units are idle
  // Done units become idle again. advance_head moves past the posts that were cleared.
  void clear(uint64_t seq);
  // Nobody gives the post memory any more; what it has is final. Waits while room is being found.
  void close_layout(uint64_t seq);
  void advance_head(uint64_t head);
  // Takes a post back that nobody should do any more: open units become idle. True when all of its
  // units are idle or done now; claimed ones are left to their workers.
  bool withdraw(uint64_t seq);
  // Sleeps until post `seq` may be ready (kAnySeq: any of the lowest post's epoch, or the next
  // place in the ring got free). Up to 0.1 ms longer, until several batches are ready, if those are
  // made in microseconds and whoever waits was woken just before.
  static constexpr uint64_t kAnySeq = UINT64_MAX - 1;
  // `also`: something else that ends the wait; whoever makes it true calls nudge_consumer() then.
  void consumer_wait(uint64_t seq, int64_t timeout_ns, const std::function<bool()>& also = {});
  // Sleeps until the withdrawn post `seq` may be at rest.
  void consumer_wait_at_rest(uint64_t seq, int64_t timeout_ns);
  // Wakes workers for what was posted. A window of small tickets is left to fill up first, unless
  // the consumer is about to wait.
  void wake_workers(bool consumer_waits);
  // Workers hold a common lock while they work (threads that run Python): for tickets of
  // microseconds one is woken, since several would only hand the lock to and fro.
  void set_exclusive(bool exclusive);
  // Workers from `count` on are parked: each finishes what it has, then claims nothing of any lane
  // and sleeps, without a sleeping bit, until it is active again or the board closes. At least one
  // is active. REQUIRED: no post has an owner.
  void set_active(uint32_t count);
  // Whose turn it is to be woken: the one that made the batch just taken, since the memory of that
  // batch comes back to its arena and to nobody else's.
  void wake_first(uint32_t worker) { wake_first_.store(worker, std::memory_order_relaxed); }

  // Workers' arenas may hold this much together, though not all of it was ever in use at once.
  void expect_in_use(uint64_t bytes);

  // ---- a worker ----
  struct Claim {
    Post* post = nullptr;
    Unit* unit = nullptr;
    uint64_t seq = 0;
    uint32_t granule = 0;
    uint32_t worker = 0;
    uint32_t losses = 0;
    uint64_t word = 0;  // of the unit, as claimed
    uint32_t lane = 0;
  };
  // `cursor` is the worker's own memory of where to look; starts at 0.
  bool claim(uint32_t worker, uint64_t& cursor, Claim& out);
  // A particular post's open unit: the consumer working in line.
  bool claim_of(uint32_t worker, uint64_t seq, Claim& out);
  // False: the supervisor took the ticket away (it timed out). From then on for ever.
  bool holds(const Claim& claim) const {
    return claim.unit->word.load(std::memory_order_seq_cst) == claim.word;
  }
  // Of a call that is not to be tried again: who had it in hand, and whether it took too long
  // (kTimeout) or cost the worker (kLost).
  struct Ending {
    uint32_t worker;
    ResultKind kind;
  };
  std::optional<Ending> ending(const Claim& claim, const Call& call) const;
  bool any_poisoned(const Claim& claim) const {
    return claim.unit->poisoned.load(std::memory_order_acquire) != 0;
  }
  // False: the ticket was taken away; drop the result.
  bool begin_result(const Claim& claim);
  void finish(const Claim& claim);
  // Sleeps until there may be work in any lane, or the board closes. `cursor` of all of them. Of
  // the first lane only. `since`, in ns: from when on it waits for a ticket, to be counted while it
  // sleeps (see figures), unless it is parked or spare; 0: nothing is.
  void wait_for_work(uint32_t worker, uint64_t& cursor, uint64_t since = 0);
  // Whether there is nothing for it though work is open: tiny tickets under one lock, which one
  // worker does sooner alone (LockTrial). Of the first lane.
  bool spare(uint32_t worker) const;
  bool one_does() const;  // all the work, at present; the others are spare
  // It sleeps, or is about to and will look once more before it does.
  bool asleep(uint32_t worker) const;

  // ---- the supervisor ----
  // Opens again what `worker`, which is dead, had claimed; returns how many. Calls too_often(claim)
  // for a unit lost `most` times before, which then is the caller's to fail (see take_over). What
  // was withdrawn meanwhile is just done.
  uint32_t reopen(uint32_t worker, uint32_t most, void (*too_often)(void*, const Claim&), void* of);
  // A unit of any lane as one number, for messages. Of the first lane.
  uint64_t number_of(const Claim& claim) {
    return uint64_t{claim.lane} << 56 | (claim.seq * lane(claim.lane).granules_ + claim.granule);
  }
  struct Address {
    Board& lane;
    uint64_t seq;
    uint32_t granule;
  };
  Address address_of(uint64_t number) {
    Board& of = lane(std::min<uint32_t>(static_cast<uint32_t>(number >> 56), lanes() - 1));
    const uint64_t unit = number & ((uint64_t{1} << 56) - 1);
    return {of, unit / of.granules_, static_cast<uint32_t>(unit % of.granules_)};
  }
  // The claim that a claimed or writing unit's word speaks of.
  Claim claim_in(uint64_t seq, uint32_t granule, uint64_t word);
  // Takes a claimed unit from its worker. After this the caller writes the result and calls finish.
  bool take_over(const Claim& claim);
  void reopen_unit(const Claim& claim, uint32_t losses);
  // The call is not to be tried again: it timed out, or killed its worker. False: it was poisoned
  // before, or there is no room for more of them. `kind`: kTimeout or kLost.
  bool poison(const Claim& claim, const Call& call, ResultKind kind);
  // The ring's oldest post that may not be at rest; withdrawn ones are older than head().
  uint64_t oldest() const;

  // ---- anybody ----
  uint32_t active() const;  // workers
  // Of the worker that has been quickest of late; UINT64_MAX: nobody knows yet.
  uint64_t typical_ticket_ns() const;
  void close();  // all lanes; of the first one
  bool closed() const;
  // Wakes the consumer whatever it waits for.
  void nudge_consumer();

  // Post::layout_state: lap << 18 | proposer << 8 | state. The ring's lap tells a worker that it
  // comes too late: the place is another post's now.
  uint32_t layout_word(uint64_t seq, LayoutState state, uint32_t proposer = 0) const {
    return static_cast<uint32_t>(seq / posts_) << 18 | proposer << 8 | static_cast<uint32_t>(state);
  }

 private:
  struct Header;
  Board() = default;
  void lay_out(std::byte* base);
  std::span<Poisoned> poisoned_of(const Claim& claim) const;
  size_t lay_out_rings(std::byte* base, size_t at);
  void shape_lanes(std::span<const uint32_t> inner);
  void populate();
  bool there(void* from, size_t bytes);
  void map();
  bool try_claim(Unit& unit, uint64_t word, uint32_t worker, uint64_t seq, uint32_t granule,
                 Claim& out);
  bool progress();
  bool open_for(uint32_t worker);
  bool awake(uint32_t worker) const;
  template <class There>
  bool sleep_until(uint64_t wants, int64_t timeout_ns, There there);
  uint64_t worth_waiting_for(uint64_t seq) const;
  void look_at_lock();
  uint64_t open_units(uint64_t posted, uint64_t hint) const;
  bool wake_one(uint32_t worker);
  void wake_some(uint64_t count);

  os::Fd file_;
  uint32_t lane_ = 0;
  std::vector<std::unique_ptr<Board>> inner_;
  std::shared_ptr<std::byte> base_;
  size_t bytes_ = 0;
  uint32_t posts_ = 0, granules_ = 0, workers_ = 0;
  uint32_t most_poisoned_ = kMaxGranuleRows;  // calls of a unit
  Header* header_ = nullptr;
  Header* common_ = nullptr;  // the first lane's
  WorkerPlace* places_ = nullptr;
  Post* post_ring_ = nullptr;
  Unit* unit_ring_ = nullptr;
  Poisoned* poisoned_ring_ = nullptr;
  std::atomic<bool> exclusive_{false};
  std::atomic<uint32_t> wake_first_{0};  // this process's, which wakes workers
  std::atomic<bool> all_hands_{true};    // what lock_trial_ said last; false: most are spare
  LockTrial lock_trial_;                 // the consumer's, as is the next
  uint64_t waited_until_ns_ = 0;         // when it was last woken
};

}  // namespace penstock
