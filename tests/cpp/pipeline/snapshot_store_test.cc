#include "penstock/pipeline/cache/snapshot_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>
#include <thread>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "snapshot_folder.h"

namespace penstock {
namespace {

using testing::refusal_of;

class SnapshotStores : public testing::SnapshotFolder {
 protected:
  static void fill(SnapshotStore& store, uint64_t elements) {
    store.set_seed(0);
    const std::vector<std::byte> spec(8), block(64);
    uint64_t place = 0;
    for (uint64_t i = 0; i < elements; ++i) store.put(i, spec, place, block);
  }
};

TEST_F(SnapshotStores,
       what_a_killed_writer_left_goes_with_the_next_and_what_a_living_one_has_stays) {
  const std::string left = folder_ / ".file.1-0.filling",
                    of_another = folder_ / ".files.1-0.filling",
                    held = folder_ / ".file.1-1.filling";
  for (const std::string& name : {left, of_another, held}) std::ofstream(name) << "half";
  os::Fd living(open(held.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(os::lock_file(living.get()));
  fill(*std::make_shared<SnapshotStore>(path(), std::vector<std::string>{}, 3), 3);
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_TRUE(std::filesystem::exists(of_another));
  EXPECT_TRUE(std::filesystem::exists(held));
  EXPECT_EQ(files(), 3u);
}

TEST_F(SnapshotStores, many_threads_and_a_second_mapping_fill_one_file) {
  constexpr uint64_t kPositions = 2000;
  auto make = [&] {
    return std::make_shared<SnapshotStore>(path(), std::vector<std::string>{"numbers"}, kPositions);
  };
  auto store = make(), other = make();
  std::vector<os::Fd> fds;
  for (int fd : store->fds()) fds.emplace_back(dup(fd));
  other->attach(std::move(fds));
  store->set_seed(0);
  other->set_seed(0);
  const std::vector<std::byte> spec(40, std::byte{7});
  auto block_of = [](uint64_t position) {
    return std::vector<std::byte>(64 + position % 200, static_cast<std::byte>(position % 251));
  };
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      SnapshotStore& mine = t % 2 == 0 ? *store : *other;
      uint64_t spec_place = 0;
      for (uint64_t i = 0; i < kPositions; ++i) {
        const uint64_t position = (i * 7 + t * 500) % kPositions;
        mine.put(position, spec, spec_place, block_of(position));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(std::filesystem::exists(path()));
  SnapshotStore whole(path());
  EXPECT_EQ(whole.end(), kPositions);
  EXPECT_EQ(whole.spec(whole.only_spec().value_or(0)), spec);
  for (SnapshotStore* each : {store.get(), other.get(), &whole}) {
    for (uint64_t i = 0; i < kPositions; ++i) {
      const auto place = each->find(i);
      ASSERT_TRUE(place);
      std::vector<std::byte> record(place->bytes());
      const File::Segment segment{place->offset(), record.data(), record.size()};
      each->file()->read({&segment, 1});
      SnapshotRecordHeader head;
      std::memcpy(&head, record.data(), sizeof(head));
      const auto block = block_of(i);
      ASSERT_EQ(head.position, i);
      ASSERT_EQ(head.bytes, block.size());
      ASSERT_TRUE(std::equal(block.begin(), block.end(), record.begin() + sizeof(head)));
    }
  }
}

// A store of two elements, both made by a worker, whose words this test has to set.
class SnapshotStoresOfTwo : public SnapshotStores {
 protected:
  SnapshotStoresOfTwo() {
    store_->set_seed(0);
    places_ = std::make_unique<SnapshotPlaces>(os::Fd(dup(store_->fds()[0])));
    put(0);
  }
  void put(uint64_t position) {
    const std::vector<std::byte> spec(8), block(64);
    store_->put(position, spec, place_, block);
  }
  // As by a worker that was killed afterwards: it did not check whether all elements are there.
  void set_last_word() { places_->word(1)->store(places_->word(0)->load()); }
  bool whole() const { return std::filesystem::exists(path()) && SnapshotStore(path()).end() == 2; }

  std::shared_ptr<SnapshotStore> store_ =
      std::make_shared<SnapshotStore>(path(), std::vector<std::string>{}, 2);
  std::unique_ptr<SnapshotPlaces> places_;
  uint64_t place_ = 0;
};

TEST_F(SnapshotStoresOfTwo, a_worker_that_dies_before_it_finishes_leaves_that_to_the_owner) {
  set_last_word();
  EXPECT_FALSE(std::filesystem::exists(path()));
  store_.reset();
  EXPECT_TRUE(whole());
  EXPECT_EQ(files(), 1u);
}

TEST_F(SnapshotStoresOfTwo, the_file_is_there_when_a_pass_is_over_in_which_such_a_worker_died) {
  store_->end_pass();
  EXPECT_FALSE(std::filesystem::exists(path())) << "one element is there";
  set_last_word();
  store_->end_pass();
  EXPECT_TRUE(whole());
  store_->end_pass();
}

TEST_F(SnapshotStoresOfTwo, so_it_is_if_one_died_while_it_finished) {
  set_last_word();
  places_->header().finished = SnapshotPlaces::kFinishing;
  store_->end_pass();
  EXPECT_TRUE(whole());
}

TEST_F(SnapshotStoresOfTwo, the_end_of_a_pass_waits_for_who_finishes_it) {
  set_last_word();
  SnapshotPlaces::Header& header = places_->header();
  header.finished = SnapshotPlaces::kFinishing;
  std::atomic<bool> over{false};
  std::thread consumer([&] {
    store_->end_pass();
    over = true;
  });
  std::this_thread::sleep_for(SnapshotStore::kPatience / 10);
  EXPECT_FALSE(over);
  header.finished = SnapshotPlaces::kWhole;
  os::futex_wake(header.finished, 1, true);
  consumer.join();
  EXPECT_FALSE(std::filesystem::exists(path())) << "that was not the waiting one's to do";
}

TEST_F(SnapshotStores, a_worker_that_dies_behind_a_word_keeps_no_other_from_finishing) {
  auto store = std::make_shared<SnapshotStore>(path(), std::vector<std::string>{}, 4);
  store->set_seed(0);
  SnapshotPlaces places(os::Fd(dup(store->fds()[0])));
  const std::vector<std::byte> spec(8), block(64);
  uint64_t place = 0;
  store->put(2, spec, place, block);
  places.word(1)->store(places.word(2)->load());
  places.word(3)->store(places.word(2)->load());
  EXPECT_FALSE(std::filesystem::exists(path()));
  store->put(0, spec, place, block);
  EXPECT_EQ(SnapshotStore(path()).end(), 4u);
}

TEST_F(SnapshotStores, a_full_disk_is_an_error_and_leaves_nothing) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* handler = std::signal(SIGXFSZ, SIG_DFL);
  {
    auto store = std::make_shared<SnapshotStore>(path(), std::vector<std::string>{}, 100);
    store->set_seed(0);
    rlimit small = before;
    small.rlim_cur = 4096;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const std::vector<std::byte> spec(8), block(1000);
    uint64_t place = 0;
    const std::string why = refusal_of([&] {
      for (uint64_t i = 0; i < 100; ++i) store->put(i, spec, place, block);
    });
    EXPECT_NE(why.find("file: File too large"), std::string::npos) << why;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  }
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(files(), 0u);
}

TEST_F(SnapshotStores, one_that_could_not_be_begun_leaves_nothing) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  for (rlim_t left = 0; left < 5; ++left) {
    auto store = std::make_shared<SnapshotStore>(path(), std::vector<std::string>{}, 3);
    const int next = dup(0);  // the number that the next descriptor gets
    close(next);
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(next) + left;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const std::string why = refusal_of([&] { store->set_seed(0); });
    store.reset();
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(why.find("Too many open files") != std::string::npos, left < 4) << left << why;
    EXPECT_EQ(files(), 0u);
  }
}

TEST_F(SnapshotStores, any_titles_are_known_again) {
  const std::vector<std::string> plan{"map(\"\\\")", "", "\n\xc3\xa4"};
  fill(*std::make_shared<SnapshotStore>(path(), plan, 3), 3);
  EXPECT_EQ(SnapshotStore(path(), plan, 3).end(), 3u);
  EXPECT_NE(refusal_of([&] {
              SnapshotStore(path(), {"map", "", ""}, 3);
            }).find("stage 1"),
            std::string::npos);
}

}  // namespace
}  // namespace penstock
