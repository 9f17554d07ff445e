#include "penstock/pipeline/engine/worker_pool.h"

#include <gtest/gtest.h>

#include <new>
#include <thread>

namespace penstock {
namespace {

TEST(WorkerPool, a_thread_whose_work_throws_ends_the_pool_and_not_the_process) {
  auto ring = TicketRing::create({.workers = 2}, false);
  WorkerPool pool(*ring, nullptr);
  pool.start(2, [](uint32_t place) {
    if (place == 1) throw std::bad_alloc();
  });
  while (!ring->closed()) std::this_thread::yield();
  EXPECT_TRUE(pool.close(-1));
  EXPECT_THROW(std::rethrow_exception(pool.fatal()), std::bad_alloc);
}

}  // namespace
}  // namespace penstock
