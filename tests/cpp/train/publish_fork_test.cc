#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <vector>

#include "penstock/base/error.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/train/publishing.h"

// Learners and readers that fork. Everything runs in children of this process, which has one
// thread; the thread sanitizer does not support forks of processes with several threads.
namespace penstock::train {
namespace {

using penstock::testing::Gate;
using penstock::testing::start_child;
using penstock::testing::status_of;
using testing::a_name;
using testing::eventually;
using testing::is_whole;
using testing::publish;
using testing::two_blocks;

class PublishFork : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the thread sanitizer does not run processes that fork with threads";
#endif
  }
};

TEST_F(PublishFork, a_readers_child_reads_for_itself) {
  const std::string name = a_name();
  Gate forked, held, go;
  const pid_t reader = start_child([&] {
    Model model(name);
    Reading mine = model.read(100);
    const pid_t child = start_child([&] {
      const Reading own = model.read();
      const bool good = is_whole(own) && is_whole(mine);
      mine = own;  // releases the parent's reading, which the parent still holds
      held.send(getpid());
      int word;
      return go.receive(word) && good && model.wait(1000) && is_whole(model.read()) &&
             model.alive();
    });
    forked.send(child);
    const bool well = status_of(child) == 0;
    return well && is_whole(mine) && mine.version() == 1 && model.read().version() >= 1000;
  });
  Parameters parameters(two_blocks());
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  pid_t child, same;
  ASSERT_TRUE(forked.receive(child));
  ASSERT_TRUE(held.receive(same));
  std::vector<pid_t> both{reader, child};
  std::ranges::sort(both);
  EXPECT_EQ(publisher.holders(), both);
  EXPECT_EQ(publisher.readers(), 2u);
  for (uint64_t version = 2; version < 1000; ++version) publish(publisher, parameters, version);
  go.send(1);
  publish(publisher, parameters, 1000);
  EXPECT_EQ(status_of(reader), 0);
  EXPECT_TRUE(eventually([&] { return publisher.readers() == 0; }));
}

TEST_F(PublishFork, a_readers_child_keeps_nothing_of_its_dead_parent) {
  const std::string name = a_name();
  Gate forked;
  const pid_t reader = start_child([&] {
    Model model(name);
    const Reading mine = model.read();
    const pid_t child = start_child([] {
      for (;;) pause();
      return true;
    });
    forked.send(child);
    for (;;) pause();
    return is_whole(mine);
  });
  Parameters parameters(two_blocks());
  Publisher publisher(name, parameters.layout());
  publish(publisher, parameters, 1);
  pid_t child;
  ASSERT_TRUE(forked.receive(child));
  EXPECT_EQ(publisher.readers(), 1u);
  kill(reader, SIGKILL);
  status_of(reader);
  EXPECT_TRUE(eventually([&] { return publisher.readers() == 0; }));
  kill(child, SIGKILL);
}

TEST_F(PublishFork, a_learners_child_keeps_neither_name_nor_readers) {
  const std::string name = a_name();
  Gate forked;
  const pid_t learner = start_child([&] {
    Parameters parameters(two_blocks());
    Publisher publisher(name, parameters.layout());
    publish(publisher, parameters, 1);
    if (!eventually([&] { return publisher.readers() == 1; })) return false;
    Gate refused;
    const pid_t child = start_child([&] {
      try {
        publish(publisher, parameters, 2);
      } catch (const Error& error) {
        refused.send(error.code() == Code::kInvalidArgument);
      }
      for (;;) pause();
      return true;
    });
    bool right;
    if (!refused.receive(right) || !right) return false;
    forked.send(child);
    for (;;) pause();
    return true;
  });
  Model model(name);
  pid_t child;
  ASSERT_TRUE(forked.receive(child));
  EXPECT_TRUE(model.alive());
  kill(learner, SIGKILL);
  status_of(learner);
  EXPECT_TRUE(eventually([&] { return !model.alive(); }));
  Parameters parameters(two_blocks());
  Publisher next(name, parameters.layout());
  publish(next, parameters, 5);
  EXPECT_TRUE(model.wait(5));
  kill(child, SIGKILL);
}

TEST_F(PublishFork, ends_well_in_children_that_do_nothing_with_it) {
  const std::string name = a_name();
  EXPECT_EQ(status_of(start_child([&] {
              Parameters parameters(two_blocks());
              auto publisher = std::make_unique<Publisher>(name, parameters.layout());
              publish(*publisher, parameters, 1);
              auto model = std::make_unique<Model>(name);
              const Reading reading = model->read(3);
              for (int i = 0; i < 20; ++i) {
                const bool well = status_of(start_child([&] {
                                    model.reset();
                                    publisher.reset();
                                    return true;
                                  })) == 0;
                if (!well || model->read().version() != 1) return false;
              }
              return publisher->readers() == 1;
            })),
            0);
}

}  // namespace
}  // namespace penstock::train
