#include "penstock/pipeline/engine/loader_crew.h"

#include <gtest/gtest.h>

#include <new>
#include <thread>

namespace penstock {
namespace {

TEST(LoaderCrew, a_thread_whose_work_throws_ends_the_crew_and_not_the_process) {
  auto board = Board::create({.workers = 2}, false);
  LoaderCrew crew(*board, nullptr);
  crew.start(2, [](uint32_t place) {
    if (place == 1) throw std::bad_alloc();
  });
  while (!board->closed()) std::this_thread::yield();
  EXPECT_TRUE(crew.close(-1));
  EXPECT_THROW(std::rethrow_exception(crew.fatal()), std::bad_alloc);
}

}  // namespace
}  // namespace penstock
