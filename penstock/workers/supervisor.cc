#include "penstock/workers/supervisor.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/workers/ticket_runner.h"

namespace penstock {

namespace {
constexpr uint64_t kAlarmTag = UINT64_MAX;
constexpr uint64_t kLinkBit = uint64_t{1} << 32;
constexpr int64_t kSpaceTickNs = 5'000'000;
constexpr std::chrono::milliseconds kLinksLookAgain{1};  // until a full link is tried again
constexpr int64_t kKillNs = 2'000'000'000;  // that a process may take to die of SIGKILL

// Uses a poller of its own, because another poller may hold this descriptor, too.
bool ended_within(int pidfd, int64_t timeout_ns) {
  os::Poller ended;
  ended.add(pidfd, 0);
  uint64_t tag;
  return ended.wait(timeout_ns, {&tag, 1}) != 0;
}
}  // namespace

Supervisor::Supervisor(TicketRing& ring, Allocator& arena, const Policy& policy)
    : ring_(ring),
      arena_(arena),
      arenas_(ring),
      alarm_(os::event()),
      failures_(ring, policy, [this](uint32_t worker, bool wait) { return kill(worker, wait); }) {
  processes_.resize(ring.workers());
  poller_.add(alarm_.get(), kAlarmTag);
}

Supervisor::~Supervisor() { close(0); }

void Supervisor::attach(uint32_t worker, os::Fd process, os::Fd link) {
  std::lock_guard lock(mutex_);
  if (closed_.load()) {  // close() does not see this process any more
    os::send_signal(process.get(), SIGKILL);
    return;
  }
  arenas_.drop_orphans();
  Process& p = processes_[worker];
  ring_.place(worker).tickets.store(0, std::memory_order_relaxed);
  p.failed = false;
  p.ready = false;
  p.pidfd = std::move(process);
  p.link = std::move(link);
  poller_.add(p.link.get(), worker | kLinkBit);
  poller_.add(p.pidfd.get(), worker);
}

void Supervisor::attach_remote(uint32_t worker, std::function<void()> cut) {
  std::lock_guard lock(mutex_);
  if (closed_.load()) {  // close() does not see this worker any more
    cut();
    return;
  }
  ring_.place(worker).tickets.store(0, std::memory_order_relaxed);
  processes_[worker].cut = std::move(cut);
}

void Supervisor::remote_ended(uint32_t worker, bool charged) {
  {
    std::lock_guard lock(mutex_);
    processes_[worker].cut = nullptr;
  }
  std::lock_guard failing(failing_);
  if (charged) ring_.place(worker).counters.deaths.add();
  ring_.consumer().reissued.add(failures_.reopen(worker, charged));
}

void Supervisor::send_update(uint64_t version, int descriptor) {
  for (uint32_t w = 0; w < processes_.size(); ++w) send_update_to(w, version, descriptor);
}

void Supervisor::send_update_to(uint32_t worker, uint64_t version, int descriptor) {
  for (LinkSent sent = LinkSent::kFull; sent == LinkSent::kFull && !closed_.load();) {
    {
      std::lock_guard lock(mutex_);
      Process& p = processes_[worker];
      // A dead worker needs no update: its replacement starts with the current plan.
      if (!p.link) return;
      sent = link_try_send(p.link.get(), {LinkMessage::kUpdate, 0, version, 0}, descriptor);
    }
    // A sleeping worker reads the message now (TicketRunner::catch_up). Otherwise the link might be
    // full before the next ticket wakes the worker.
    ring_.sleepers().rouse(worker);
    if (sent == LinkSent::kFull) std::this_thread::sleep_for(kLinksLookAgain);
  }
}

bool Supervisor::serve_all_space_requests() {
  bool all = true;
  for (uint32_t l = 0; l < ring_.lanes(); ++l)
    all = serve_space_requests(ring_.lane(l), arena_) && all;
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
    if (space_pending_) timeout = kSpaceTickNs;
    if (const int64_t tick = failures_.tick_ns(); tick >= 0) {
      timeout = timeout < 0 ? tick : std::min(timeout, tick);
    }
    uint64_t tags[16];
    size_t count = poller_.wait(timeout, tags);
    std::lock_guard reading(reading_);
    if (closed_.load()) continue;
    // Links before deaths: messages that a worker sent before it died still count.
    std::sort(tags, tags + count, std::greater<>());
    for (size_t i = 0; i < count && event.kind == Kind::kNothing; ++i) {
      if (tags[i] == kAlarmTag) {
        os::clear_event(alarm_.get());
      } else if ((tags[i] & kLinkBit) != 0) {
        on_message(static_cast<uint32_t>(tags[i]), event);
      } else {
        reap(static_cast<uint32_t>(tags[i]), event);
      }
    }
    if (space_pending_) space_pending_ = !serve_all_space_requests();
    if (event.kind != Kind::kNothing) break;
    std::lock_guard failing(failing_);
    if (const auto abandoned = failures_.check()) {
      event.kind = Kind::kAbandoned;
      event.worker = *abandoned;
    }
  }
  return event;
}

void Supervisor::on_message(uint32_t worker, Event& event) {
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
      region->set_in_use_counter(ring_.in_use(worker, number));
      {
        std::lock_guard lock(mutex_);
        processes_[worker].ready = true;
      }
      arenas_.add(worker, number, std::move(region));
      break;
    }
    case LinkMessage::kSpace:
      space_pending_ = true;
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
    case LinkMessage::kAddress:
      break;
  }
}

void Supervisor::receive_spill(uint32_t worker, int link, int process, const LinkHeader& header) {
  auto spill = std::make_unique<Spill>();
  spill->size = header.bytes;
  if (header.bytes <= os::memory_limit()) {
    spill->bytes.reset(new (std::nothrow) std::byte[header.bytes]);
  }
  auto [lane, seq, granule] = ring_.address_of(header.number);
  Task& task = lane.task_at(seq, granule);
  if (spill->bytes == nullptr) {
    // No ordinary memory either: skip the payload, so that the link stays usable, and report that.
    std::byte waste[4096];
    for (uint64_t left = header.bytes; left > 0;) {
      size_t n = std::min<uint64_t>(left, sizeof(waste));
      if (!link_read(link, {waste, n}, process)) return;
      left -= n;
    }
  } else if (!link_read(link, {spill->bytes.get(), spill->size}, process)) {
    return;  // the worker died in the middle: its ticket will be reopened
  }
  uint64_t word = task.word.load(std::memory_order_acquire);
  if (Task::state_of(word) != TaskState::kClaimed || Task::worker_of(word) != worker ||
      Task::seq_of(word) != seq) {
    return;
  }
  TicketRing::Claim claim = lane.claim_in(seq, granule, word);
  if (!RingSupervisor(lane).take_over(claim)) return;
  if (spill->bytes == nullptr) {
    task.kind = ResultKind::kNoSpace;
    task.length = 0;
  } else {
    const uint64_t size = spill->size;
    write_spill(task, static_cast<ResultKind>(header.detail), size, std::move(spill));
  }
  lane.finish(claim);
}

void Supervisor::reap(uint32_t worker, Event& event) {
  {
    std::lock_guard lock(mutex_);
    Process& p = processes_[worker];
    if (!p.pidfd || !os::process_ended(p.pidfd.get())) return;
  }
  // Messages that the worker sent before it died still count.
  for (;;) {
    int link;
    {
      std::lock_guard lock(mutex_);
      link = processes_[worker].link.get();
    }
    if (link < 0 || !link_pending(link)) break;
    on_message(worker, event);
  }
  {
    std::lock_guard lock(mutex_);
    Process& p = processes_[worker];
    if (p.link) poller_.remove(p.link.get());
    p.link.reset();
    poller_.remove(p.pidfd.get());
    p.pidfd.reset();
    arenas_.orphan(worker);
    if (p.failed) return;
    event.ready = p.ready;
  }
  WorkerPlace& place = ring_.place(worker);
  event.kind = Kind::kDied;
  event.worker = worker;
  event.tickets = place.tickets.load(std::memory_order_relaxed);
  place.counters.deaths.add();
  std::lock_guard failing(failing_);
  ring_.consumer().reissued.add(failures_.reopen(worker));
}

// The thread of a remote worker may still be reading into the batch.
bool Supervisor::kill(uint32_t worker, bool wait) {
  std::lock_guard lock(mutex_);
  if (const auto& cut = processes_[worker].cut) {
    cut();
    return !wait;
  }
  const os::Fd& pidfd = processes_[worker].pidfd;
  if (!pidfd) return true;
  os::send_signal(pidfd.get(), SIGKILL);
  return !wait || ended_within(pidfd.get(), kKillNs);
}

void Supervisor::close(int64_t grace_ns) {
  ring_.close();
  {
    std::lock_guard lock(mutex_);
    closed_.store(true);
    arenas_.close();
    os::signal_event(alarm_.get());
    uint64_t until = now_ns() + static_cast<uint64_t>(std::max<int64_t>(grace_ns, 0));
    for (Process& p : processes_) {
      if (const auto cut = std::exchange(p.cut, nullptr)) cut();
    }
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
  // The thread in wait() may be reading from a link. That ends, because the process has ended.
  std::lock_guard reading(reading_);
  std::lock_guard lock(mutex_);
  for (Process& p : processes_) {
    if (p.pidfd) poller_.remove(p.pidfd.get());
    p.pidfd.reset();
    if (p.link) poller_.remove(p.link.get());
    p.link.reset();
  }
}

}  // namespace penstock
