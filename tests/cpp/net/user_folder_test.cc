#include "penstock/net/user_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/net/connection.h"
#include "penstock/net/listener.h"
#include "tests/cpp/memory/child.h"
#include "tests/cpp/net/line.h"
#include "tests/cpp/temporary_folder.h"

namespace penstock::net {
namespace {

using penstock::testing::Gate;
using penstock::testing::kill_child;
using penstock::testing::start_child;
using penstock::testing::status_of;
using testing::code_of;
using testing::Line;

// Each test has a runtime directory of its own.
class UserFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* before = std::getenv("XDG_RUNTIME_DIR")) before_ = before;
    setenv("XDG_RUNTIME_DIR", directory_.c_str(), 1);
  }
  void TearDown() override {
    if (before_) {
      setenv("XDG_RUNTIME_DIR", before_->c_str(), 1);
    } else {
      unsetenv("XDG_RUNTIME_DIR");
    }
  }
  std::string folder() const { return directory_ / "penstock"; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& each : std::filesystem::directory_iterator(folder())) {
      names.push_back(each.path().filename());
    }
    return names;
  }
  // Says what is wrong, and what to do.
  void expect_refused(const std::string& remedy) const {
    try {
      user_folder();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      const std::string text = error.what();
      EXPECT_NE(text.find(folder()), std::string::npos) << text;
      EXPECT_NE(text.find(remedy), std::string::npos) << text;
    }
    EXPECT_EQ(code_of([] { Listener listener("unix:@x"); }), Code::kInvalidArgument);
    EXPECT_EQ(code_of([] { connect("unix:@x"); }), Code::kInvalidArgument);
    EXPECT_EQ(code_of([] { Listener listener; }), Code::kInvalidArgument);
  }

  const penstock::testing::TemporaryFolder temporary_;
  const std::filesystem::path directory_ = temporary_.path();
  std::optional<std::string> before_;
};

TEST_F(UserFolder, is_made_for_this_user_only) {
  EXPECT_EQ(user_folder(), folder());
  struct stat is {};
  ASSERT_EQ(lstat(folder().c_str(), &is), 0);
  EXPECT_EQ(is.st_mode & 07777, 0700u);
  EXPECT_EQ(user_folder(), folder());
}

TEST_F(UserFolder, is_elsewhere_if_there_is_no_runtime_directory_of_this_user) {
  const std::string user = std::to_string(geteuid());
  std::vector<std::string> unusable{directory_ / "missing", "relative", ""};
  if (geteuid() == 0) {  // as sudo passes it on
    std::filesystem::create_directory(directory_ / "theirs");
    ASSERT_EQ(chown((directory_ / "theirs").c_str(), 65534, 65534), 0);
    unusable.push_back(directory_ / "theirs");
  }
  for (const std::string& each : unusable) {
    setenv("XDG_RUNTIME_DIR", each.c_str(), 1);
    const std::string elsewhere = user_folder();
    EXPECT_TRUE(elsewhere == "/tmp/penstock-" + user ||
                elsewhere == "/run/user/" + user + "/penstock")
        << elsewhere;
  }
}

TEST_F(UserFolder, that_others_may_enter_is_refused) {
  std::filesystem::create_directory(folder());
  chmod(folder().c_str(), 0710);
  expect_refused("chmod 700");
}

TEST_F(UserFolder, that_is_a_link_is_refused) {
  std::filesystem::create_directory(directory_ / "elsewhere");
  chmod((directory_ / "elsewhere").c_str(), 0700);
  std::filesystem::create_symlink("elsewhere", folder());
  expect_refused("remove it");
}

TEST_F(UserFolder, of_another_user_is_refused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  std::filesystem::create_directory(folder());
  chmod(folder().c_str(), 0700);
  ASSERT_EQ(chown(folder().c_str(), 65534, 65534), 0);
  expect_refused("belongs to user 65534");
}

TEST_F(UserFolder, with_too_long_a_path_says_so) {
  const auto deep = directory_ / std::string(100, 'x');
  std::filesystem::create_directory(deep);
  setenv("XDG_RUNTIME_DIR", deep.c_str(), 1);
  EXPECT_EQ(code_of([] { Listener listener("unix:@x"); }), Code::kInvalidArgument);
}

TEST_F(UserFolder, the_secret_is_one_for_all_processes) {
  const std::string secret = host_secret();
  EXPECT_EQ(secret.size(), 64u);
  EXPECT_EQ(status_of(start_child([&] { return host_secret() == secret; })), 0);
  struct stat is {};
  ASSERT_EQ(lstat((folder() + "/secret").c_str(), &is), 0);
  EXPECT_EQ(is.st_mode & 0777, 0600u);
  std::filesystem::resize_file(folder() + "/secret", 10);
  EXPECT_NE(host_secret(), secret);
  EXPECT_EQ(host_secret(), host_secret());
}

TEST_F(UserFolder, processes_that_need_the_secret_at_once_agree) {
  Gate go;
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    children.push_back(start_child([&] {
      int word;
      if (!go.receive(word)) return false;
      std::ofstream(directory_ / std::to_string(word)) << host_secret();
      return true;
    }));
  }
  for (int i = 0; i < 8; ++i) go.send(i);
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);
  for (int i = 0; i < 8; ++i) {
    std::ifstream file(directory_ / std::to_string(i));
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), host_secret());
  }
}

TEST_F(UserFolder, names_of_any_bytes_and_length_are_found) {
  for (const std::string& name :
       {std::string("a b/c%\n~"), std::string(".."), std::string(300, 'n')}) {
    Line line("unix:@" + name);
    EXPECT_EQ(line.listener.address(), "unix:@" + name);
    EXPECT_EQ(files().size(), 1u);
    EXPECT_TRUE(resolve("unix:@" + name).front().file().starts_with(folder() + "/net-"));
  }
  EXPECT_TRUE(files().empty());
}

TEST_F(UserFolder, what_killed_processes_left_is_removed_by_the_next) {
  Gate ready;
  const pid_t killed = start_child([&] {
    Listener one("unix:@one"), other("unix:@other");
    ready.send(1);
    pause();
    return true;
  });
  int there;
  ASSERT_TRUE(ready.receive(there));
  EXPECT_EQ(code_of([] { Listener listener("unix:@one"); }), Code::kInvalidArgument);
  { Listener third("unix:@third"); }
  EXPECT_EQ(files().size(), 2u);  // sockets that are in use stay
  kill_child(killed);
  EXPECT_EQ(files().size(), 2u);
  {
    Line line("unix:@one");
    EXPECT_EQ(files(), std::vector<std::string>{"net-one"});
  }
  EXPECT_TRUE(files().empty());
}

TEST_F(UserFolder, one_of_many_takes_over_from_a_killed_process) {
  constexpr int kProcesses = 6, kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_EQ(status_of(start_child([] {
                static Listener left("unix:@x");
                _exit(0);
                return true;
              })),
              0);
    Gate go, done, leave;
    std::vector<pid_t> children;
    for (int i = 0; i < kProcesses; ++i) {
      children.push_back(start_child([&] {
        int word;
        if (!go.receive(word)) return false;
        std::optional<Listener> listener;
        try {
          listener.emplace("unix:@x");
        } catch (const Error& error) {
          if (error.code() != Code::kInvalidArgument) return false;
        }
        done.send(int{listener.has_value()});
        return leave.receive(word);
      }));
    }
    int winners = 0;
    for (int i = 0; i < kProcesses; ++i) go.send(i);
    for (int i = 0, won = 0; i < kProcesses && done.receive(won); ++i) winners += won;
    EXPECT_EQ(winners, 1);
    for (int i = 0; i < kProcesses; ++i) leave.send(i);
    for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);
    EXPECT_TRUE(files().empty());
  }
}

TEST_F(UserFolder, a_file_that_is_no_socket_stays) {
  user_folder();
  std::ofstream(folder() + "/net-x") << "not a socket";
  EXPECT_EQ(code_of([] { Listener listener("unix:@x"); }), Code::kInvalidArgument);
  EXPECT_EQ(std::filesystem::file_size(folder() + "/net-x"), 12u);
}

TEST_F(UserFolder, a_child_that_ends_removes_nothing_of_its_parents) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer does not run processes that fork with threads";
#endif
  Listener listener("unix:@x");
  EXPECT_EQ(status_of(start_child([&] {
              listener.close();
              return true;
            })),
            0);
  EXPECT_EQ(files(), std::vector<std::string>{"net-x"});
}

TEST_F(UserFolder, a_lock_that_another_process_holds_is_waited_for) {
  user_folder();
  Gate ready;
  const pid_t other = start_child([&] {
    const FolderLock lock(folder());
    ready.send(1);
    usleep(50'000);
    return true;
  });
  int there;
  ASSERT_TRUE(ready.receive(there));
  { Listener listener("unix:@x"); }
  EXPECT_EQ(status_of(other), 0);
}

}  // namespace
}  // namespace penstock::net
