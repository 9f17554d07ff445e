#include "penstock/workers/supervisor.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <new>
#include <thread>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/workers/process_end.h"
#include "penstock/workers/worker.h"

namespace penstock {

namespace {
constexpr uint64_t kAlarmTag = UINT64_MAX;
constexpr uint64_t kLinkBit = uint64_t{1} << 32;
constexpr int64_t kRoomTickNs = 5'000'000;
constexpr std::chrono::milliseconds kLookForClosing{50};  // somebody else may close the board
constexpr std::chrono::milliseconds kLinksLookAgain{1};   // whether a full link was read from
}  // namespace

Supervisor::Supervisor(Board& board, Allocator& arena, const Policy& policy)
    : board_(board), arena_(arena), policy_(policy), alarm_(os::event()) {
  processes_.resize(board.workers());
  poller_.add(alarm_.get(), kAlarmTag);
}

Supervisor::~Supervisor() { close(0); }

void Supervisor::attach(uint32_t worker, os::Fd process, os::Fd link) {
  std::lock_guard lock(mutex_);
  if (closed_.load()) {  // too late: close() will not see it any more
    os::send_signal(process.get(), SIGKILL);
    return;
  }
  if (any_orphans_) drop_orphans();
  Process& p = processes_[worker];
  board_.place(worker).tickets.store(0, std::memory_order_relaxed);
  p.failed = false;
  p.ready = false;
  p.pidfd = std::move(process);
  p.link = std::move(link);
  poller_.add(p.link.get(), worker | kLinkBit);
  poller_.add(p.pidfd.get(), worker);
}

void Supervisor::send_update(uint64_t version, int descriptor) {
  for (uint32_t w = 0; w < processes_.size(); ++w) send_update_to(w, version, descriptor);
}

void Supervisor::send_update_to(uint32_t worker, uint64_t version, int descriptor) {
  for (LinkSent sent = LinkSent::kFull; sent == LinkSent::kFull && !closed_.load();) {
    {
      std::lock_guard lock(mutex_);
      Process& p = processes_[worker];
      // A worker that is gone needs none: its successor starts with the plan as it is then.
      if (!p.link) return;
      sent = link_try_send(p.link.get(), {LinkMessage::kUpdate, 0, version, 0}, descriptor);
    }
    // One that sleeps reads it now (Fulfiller::catch_up): the link does not hold all that may come
    // until there is a ticket for it.
    std::atomic<uint32_t>& event = board_.place(worker).event;
    event.fetch_add(1, std::memory_order_seq_cst);
    os::futex_wake(event, 1, board_.fd() >= 0);
    if (sent == LinkSent::kFull) std::this_thread::sleep_for(kLinksLookAgain);
  }
}

bool Supervisor::serve_all_rooms() {
  bool all = true;
  for (uint32_t l = 0; l < board_.lanes(); ++l) all = serve_room(board_.lane(l), arena_) && all;
  return all;
}

Supervisor::Event Supervisor::wait() {
  Event event;
  while (event.kind == Kind::kNothing) {
    if (closed_.load()) {
      event.kind = Kind::kClosed;
      break;
    }
    int64_t timeout = -1;
    if (room_pending_) timeout = kRoomTickNs;
    if (policy_.timeout_ns >= 0) {
      int64_t tick = std::clamp<int64_t>(policy_.timeout_ns / 8, 1'000'000, 50'000'000);
      timeout = timeout < 0 ? tick : std::min(timeout, tick);
    }
    uint64_t tags[16];
    size_t count = poller_.wait(timeout, tags);
    std::lock_guard hearing(hearing_);
    if (closed_.load()) continue;
    // Links before deaths: what a worker said before it died still counts.
    std::sort(tags, tags + count, std::greater<>());
    for (size_t i = 0; i < count && event.kind == Kind::kNothing; ++i) {
      if (tags[i] == kAlarmTag) {
        os::clear_event(alarm_.get());
      } else if ((tags[i] & kLinkBit) != 0) {
        hear(static_cast<uint32_t>(tags[i]), event);
      } else {
        bury(static_cast<uint32_t>(tags[i]), event);
      }
    }
    if (room_pending_) room_pending_ = !serve_all_rooms();
    if (event.kind == Kind::kNothing && policy_.timeout_ns >= 0) check_timeouts(event);
  }
  return event;
}

void Supervisor::hear(uint32_t worker, Event& event) {
  int link, process;
  {
    std::lock_guard lock(mutex_);
    link = processes_[worker].link.get();
    process = processes_[worker].pidfd.get();
  }
  if (link < 0 || !link_pending(link)) return;
  LinkHeader header;
  os::Fd descriptor;
  if (!link_receive(link, header, descriptor)) {
    std::lock_guard lock(mutex_);
    poller_.remove(link);
    processes_[worker].link.reset();
    return;
  }
  switch (header.message) {
    case LinkMessage::kArena: {
      auto region = Region::open(descriptor.get());
      const auto number = static_cast<uint32_t>(header.number);
      region->set_in_use_counter(board_.in_use(worker, number));
      std::lock_guard lock(mutex_);
      arenas_[number] = {std::move(region), worker};
      processes_[worker].ready = true;
      announced_.notify_all();
      break;
    }
    case LinkMessage::kRoom:
      room_pending_ = true;
      break;
    case LinkMessage::kPayload:
      receive_spill(worker, link, process, header);
      break;
    case LinkMessage::kFailed: {
      event.kind = Kind::kFailed;
      event.worker = worker;
      event.detail.resize(std::min<uint64_t>(header.bytes, 16 << 20));
      link_read(link, std::as_writable_bytes(std::span(event.detail)), process);
      std::lock_guard lock(mutex_);
      processes_[worker].failed = true;
      break;
    }
    case LinkMessage::kUpdate:
      break;
  }
}

void Supervisor::receive_spill(uint32_t worker, int link, int process, const LinkHeader& header) {
  auto spill = std::make_unique<Spill>();
  spill->size = header.bytes;
  spill->bytes.reset(new (std::nothrow) std::byte[header.bytes]);
  auto [lane, seq, granule] = board_.address_of(header.number);
  Unit& unit = lane.unit_at(seq, granule);
  if (spill->bytes == nullptr) {
    // Not even ordinary memory: read on, so that the link stays in step, and say so.
    std::byte waste[4096];
    for (uint64_t left = header.bytes; left > 0;) {
      size_t n = std::min<uint64_t>(left, sizeof(waste));
      if (!link_read(link, {waste, n}, process)) return;
      left -= n;
    }
  } else if (!link_read(link, {spill->bytes.get(), spill->size}, process)) {
    return;  // it died in the middle: its ticket will be opened again
  }
  uint64_t word = unit.word.load(std::memory_order_acquire);
  if (Unit::state_of(word) != UnitState::kClaimed || Unit::worker_of(word) != worker ||
      Unit::seq_of(word) != seq) {
    return;
  }
  Board::Claim claim = lane.claim_in(seq, granule, word);
  if (!lane.take_over(claim)) return;
  if (spill->bytes == nullptr) {
    unit.kind = ResultKind::kNoRoom;
    unit.length = 0;
  } else {
    unit.kind = static_cast<ResultKind>(header.detail);
    unit.bytes = spill->size;
    unit.length = sizeof(unit.packet) + 1;
    unit.block = {0, spill->size, 0, kSpilled};
    unit.object = reinterpret_cast<uint64_t>(spill.release());
  }
  lane.finish(claim);
}

void Supervisor::bury(uint32_t worker, Event& event) {
  {
    std::lock_guard lock(mutex_);
    Process& p = processes_[worker];
    if (!p.pidfd || !os::process_ended(p.pidfd.get())) return;
  }
  // What it said before it died still counts.
  for (;;) {
    int link;
    {
      std::lock_guard lock(mutex_);
      link = processes_[worker].link.get();
    }
    if (link < 0 || !link_pending(link)) break;
    hear(worker, event);
  }
  {
    std::lock_guard lock(mutex_);
    Process& p = processes_[worker];
    if (p.link) poller_.remove(p.link.get());
    p.link.reset();
    poller_.remove(p.pidfd.get());
    p.pidfd.reset();
    orphan_arenas(worker);
    if (p.failed) return;
    event.ready = p.ready;
  }
  WorkerPlace& place = board_.place(worker);
  event.kind = Kind::kDied;
  event.worker = worker;
  event.tickets = place.tickets.load(std::memory_order_relaxed);
  place.counters.deaths.add();
  for (uint32_t l = 0; l < board_.lanes(); ++l) {
    uint32_t lost =
        board_.lane(l).reopen(worker, policy_.most_losses, &Supervisor::too_often, this);
    board_.consumer().reissued.add(lost);
  }
  std::erase_if(just_poisoned_,
                [&](const auto& word) { return Unit::worker_of(word.second) == worker; });
}

// With mutex_ held, both.
void Supervisor::orphan_arenas(uint32_t worker) {
  for (auto& [number, arena] : arenas_) {
    if (arena.worker != worker || arena.orphan) continue;
    arena.orphan = any_orphans_ = true;
    for (uint32_t l = 0; l < board_.lanes(); ++l) arena.until[l] = board_.lane(l).posted();
  }
}

void Supervisor::drop_orphans() {
  any_orphans_ = false;
  for (auto& [number, arena] : arenas_) {
    if (!arena.orphan || arena.region == nullptr) continue;
    bool taken = true;
    for (uint32_t l = 0; l < board_.lanes(); ++l) {
      taken = taken && board_.lane(l).head() >= arena.until[l];
    }
    if (taken) {
      arena.region.reset();
    } else {
      any_orphans_ = true;
    }
  }
}

void Supervisor::forget_arenas() {
  std::lock_guard lock(mutex_);
  arenas_.clear();
}

bool Supervisor::knows(uint32_t number) {
  std::lock_guard lock(mutex_);
  return arenas_.contains(number);
}

std::shared_ptr<Region> Supervisor::region(uint32_t number) {
  std::unique_lock lock(mutex_);
  if (any_orphans_) drop_orphans();
  auto decided = [&] { return arenas_.contains(number) || closed_.load() || board_.closed(); };
  while (!announced_.wait_for(lock, kLookForClosing, decided)) {
  }
  auto found = arenas_.find(number);
  return found == arenas_.end() ? nullptr : found->second.region;
}

void Supervisor::close(int64_t grace_ns) {
  board_.close();
  {
    std::lock_guard lock(mutex_);
    closed_.store(true);
    announced_.notify_all();
    os::signal_event(alarm_.get());
    uint64_t until = now_ns() + static_cast<uint64_t>(std::max<int64_t>(grace_ns, 0));
    for (Process& p : processes_) {
      if (!p.pidfd) continue;
      uint64_t now = now_ns();
      if (ended_within(p.pidfd.get(), until > now ? static_cast<int64_t>(until - now) : 0))
        continue;
      os::send_signal(p.pidfd.get(), SIGKILL);
    }
    for (Process& p : processes_) {
      if (p.pidfd) ended_within(p.pidfd.get(), kKillNs);
    }
  }
  // The thread in wait() may be reading from a link: that ends now that its process has ended.
  std::lock_guard hearing(hearing_);
  std::lock_guard lock(mutex_);
  for (Process& p : processes_) {
    if (p.pidfd) poller_.remove(p.pidfd.get());
    p.pidfd.reset();
    if (p.link) poller_.remove(p.link.get());
    p.link.reset();
  }
}

}  // namespace penstock
