#include "penstock/pipeline/snapshot_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <thread>

#include "penstock/base/error.h"
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
      SnapshotHead head;
      std::memcpy(&head, record.data(), sizeof(head));
      const auto block = block_of(i);
      ASSERT_EQ(head.position, i);
      ASSERT_EQ(head.bytes, block.size());
      ASSERT_TRUE(std::equal(block.begin(), block.end(), record.begin() + sizeof(head)));
    }
  }
}

TEST_F(SnapshotStores, a_worker_that_dies_while_it_finishes_leaves_that_to_the_owner) {
  auto store = std::make_shared<SnapshotStore>(path(), std::vector<std::string>{}, 2);
  store->set_seed(0);
  std::vector<os::Fd> fds;
  for (int fd : store->fds()) fds.emplace_back(dup(fd));
  const std::vector<std::byte> spec(8), block(64);
  uint64_t place = 0;
  store->put(0, spec, place, block);
  {
    // The last word is set, and nobody counted it.
    SnapshotPlaces places(std::move(fds[0]));
    places.word(1)->store(places.word(0)->load());
  }
  EXPECT_FALSE(std::filesystem::exists(path()));
  store.reset();
  EXPECT_EQ(SnapshotStore(path()).end(), 2u);
  EXPECT_EQ(files(), 1u);
}

TEST_F(SnapshotStores, a_full_disk_is_an_error_and_leaves_nothing) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
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

}  // namespace
}  // namespace penstock
