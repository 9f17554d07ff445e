#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/net/connection.h"
#include "penstock/workers/remote_messages.h"
#include "penstock/workers/ring_consumer.h"
#include "penstock/workers/ticket_runner.h"

namespace penstock {

// The packet of a result that is sent to another host, as a runner passes it to
// Slot::finish_object: the runner keeps the bytes until its next ticket.
struct RemotePacket {
  std::span<const std::byte> tree;
  std::vector<std::span<const std::byte>> tail;  // gaps between its parts included
};

// The turn to run a ticket, which the services of a process share: one ticket is run at a time,
// while the results of others are sent. Any thread.
class RemoteTurn {
 public:
  // `status`: a file that can hold a RemoteStatus. Error kSystem.
  explicit RemoteTurn(int status);
  ~RemoteTurn();
  RemoteTurn(const RemoteTurn&) = delete;
  RemoteTurn& operator=(const RemoteTurn&) = delete;

  std::mutex& mutex() { return mutex_; }
  RemoteStatus& status() { return *status_; }  // for the thread that holds the mutex

 private:
  std::mutex mutex_;
  RemoteStatus* status_;
};

// Serves the tickets of one connection, for a RemoteWorker on the consumer's host. Each ticket is
// posted in a ring of its own with one entry, and run as by any other worker.
//
// If the consumer is on the same host, over a Unix socket, batches are made in a shared region, and
// large results stay there until the consumer has returned their leases. The region's memory ends
// when the connection has ended and the consumer holds no lease any more.
//
// One thread.
class RemoteService {
 public:
  struct Shape {
    uint32_t workers = 1;  // places of the consumer's ring
    uint32_t rows = 1;     // of a ticket, at most
    // Of several consumers that the process serves, the one of this connection (RemoteStatus).
    uint32_t consumer = 0;
  };
  // `turn` outlives it.
  RemoteService(std::unique_ptr<net::Connection> connection, const Shape& shape, RemoteTurn& turn);
  ~RemoteService();

  TicketRing& ring() { return *ring_; }
  // Runs tickets until the connection ends. Error kDataLoss: what arrived is no ticket.
  void serve(TicketRunner& runner);

 private:
  static constexpr size_t kPieceBytes = size_t{16} << 20;

  void receive_body(uint64_t bytes, std::vector<std::byte>& into);
  void run(const RemoteTicket& ticket, std::span<const std::byte> body, TicketRunner& runner);
  void post(const RemoteTicket& ticket, std::span<const std::byte> input);
  // `mapped`: bytes of the region that the consumer's process has mapped.
  void send_result(const BatchEntry& entry, const Task& task, RemoteResult result, uint64_t mapped);
  Ref share(void* block, uint64_t mapped);
  Ref share_copy(std::span<const std::span<const std::byte>> parts, uint64_t bytes,
                 uint64_t mapped);
  void clear(uint64_t seq);

  std::unique_ptr<net::Connection> connection_;
  std::unique_ptr<TicketRing> ring_;
  Allocator arena_;  // shared with a consumer on the same host
  bool region_sent_ = false;
  LocalMemory memory_;
  RingConsumer consumer_;
  RemoteTurn& turn_;
  const uint32_t rows_, number_;
};

}  // namespace penstock
