#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "penstock/memory/allocator.h"
#include "penstock/net/connection.h"
#include "penstock/workers/remote_messages.h"
#include "penstock/workers/ticket_runner.h"

namespace penstock {

// Runs tickets on another host, over a connection to a RemoteService: sends the ticket, and reads
// the result into the batch's memory. One ticket at a time; a worker on the other host has several
// connections, so that it makes the next batch while the last one is sent.
//
// If the service is on this host, over a Unix socket, large results lie in its shared region: a
// batch is copied from there, a packet is leased in place. Leases outlive the connection and the
// service's process.
//
// States:
//
//   - connected -> retired: retire(). It runs no more tickets; serve() returns after the current
//     one.
//   - connected, retired -> ended: the connection ended, by cut() or by the other host. The ticket
//     in hand is left to the supervisor (Supervisor::remote_ended), which opens it again.
//
// run() belongs to one thread; all others may be called from any.
class RemoteWorker : public TicketRunner {
 public:
  // `ring` and `arena` (of the batches) outlive it.
  RemoteWorker(TicketRing& ring, Allocator& arena, std::unique_ptr<net::Connection> connection)
      : ring_(ring), arena_(arena), connection_(std::move(connection)) {}

  void run(const Ticket& ticket, Slot& slot) override;
  bool ended() const override { return ended_.load() || retired_.load(); }

  // The caller wakes the worker then (SleepingWorkers::rouse).
  void retire() { retired_.store(true); }
  void cut() {
    ended_.store(true);
    connection_->close();
  }
  // After serve(): the connection ended, and why.
  bool lost() const { return ended_.load(); }
  const std::string& why() const { return why_; }
  // Whether the connection ended while the other host may have had a ticket.
  bool lost_ticket() const { return sent_; }

 private:
  void send(const Ticket& ticket, Slot& slot);
  void receive(Slot& slot);
  // Maps the service's region. If that fails, results come through the connection.
  void map(int region);
  // An empty Lease if `ref` has no bytes.
  Lease leased(const Ref& ref, uint64_t bytes) const;
  void take_batch(const RemoteResult& result, const Lease& shared,
                  std::span<const std::byte> layout, Slot& slot);
  void take_packet(const RemoteResult& result, const Lease& shared, Slot& slot);
  std::shared_ptr<std::byte[]> space_for(uint64_t bytes);

  TicketRing& ring_;
  Allocator& arena_;
  std::unique_ptr<net::Connection> connection_;
  std::shared_ptr<Region> region_;  // the service's; null: not mapped
  std::atomic<bool> ended_{false}, retired_{false};
  bool sent_ = false;
  std::string why_;
};

}  // namespace penstock
