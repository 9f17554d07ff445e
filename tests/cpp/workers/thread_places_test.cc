#include "penstock/workers/thread_places.h"

#include <gtest/gtest.h>

#include <set>

namespace penstock {
namespace {

TEST(ThreadPlaces, replacements_get_free_places_and_then_those_of_threads_that_ended) {
  ThreadPlaces places(2, 4);
  EXPECT_EQ((std::set{places.take(), places.take()}), (std::set{2u, 3u}));
  EXPECT_THROW(places.take(), Error);
  places.give_back(0);
  EXPECT_EQ(places.take(), 0u);
}

TEST(ThreadPlaces, when_threads_that_hang_have_all_places_it_is_a_timeout) {
  ThreadPlaces places(1, 1);
  try {
    places.take();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kTimeout);
    EXPECT_NE(std::string(error.what()).find("all threads, 1 by now"), std::string::npos);
  }
}

TEST(ThreadPlaces, a_ring_has_no_more_places_than_workers_can_have) {
  EXPECT_EQ(ThreadPlaces::needed(1), 11u);
  EXPECT_EQ(ThreadPlaces::needed(200), kMaxWorkers);
}

}  // namespace
}  // namespace penstock
