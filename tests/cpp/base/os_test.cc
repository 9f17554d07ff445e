#include "penstock/base/os.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"

namespace penstock::os {
namespace {

// Runs `body` in a forked child, which must _exit; returns its wait status.
template <typename Body>
int status_of_child(Body body) {
  pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    body();
    _exit(99);
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

int exit_code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status); }

TEST(Fd, closes_what_it_owns_once) {
  int number;
  {
    Fd fd = event();
    number = fd.get();
    Fd moved = std::move(fd);
    EXPECT_FALSE(fd);
    EXPECT_EQ(moved.get(), number);
    EXPECT_NE(fcntl(number, F_GETFD), -1);
  }
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
}

TEST(Fd, release_leaves_it_open) {
  int number = event().release();
  EXPECT_NE(fcntl(number, F_GETFD), -1);
  close(number);
}

TEST(Fd, a_duplicate_is_the_same_file_and_its_holders_own) {
  Fd file = memory_file("penstock-test", page_size());
  const Fd other = duplicate(file.get(), "test");
  EXPECT_NE(fcntl(other.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(ftruncate(other.get(), 0), 0) << "nobody can make it smaller";
  file.reset();
  EXPECT_EQ(lseek(other.get(), 0, SEEK_END), static_cast<off_t>(page_size()));
  EXPECT_THROW(duplicate(-1, "test"), Error);
}

TEST(Memory, two_mappings_of_a_file_see_each_others_writes) {
  Fd file = memory_file("penstock-test");
  size_t bytes = 4 * page_size();
  resize_file(file.get(), bytes);
  auto* one = static_cast<char*>(reserve_mapping(file.get(), bytes, true));
  auto* other = static_cast<char*>(reserve_mapping(file.get(), bytes, true));
  ASSERT_NE(one, nullptr);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(populate_write(one, bytes), 0);
  EXPECT_EQ(populate_read(other, bytes), 0);
  std::strcpy(one + 5000, "water");
  EXPECT_STREQ(other + 5000, "water");
  EXPECT_EQ(populate_write(one, bytes), 0);
  EXPECT_STREQ(one + 5000, "water") << "populating must not change contents";
  unmap(one, bytes);
  unmap(other, bytes);
}

TEST(Memory, a_reservation_may_be_larger_than_the_machine) {
  size_t bytes = size_t{1} << 39;
  for (bool shared : {false, true}) {
    void* address = reserve_mapping(-1, bytes, shared);
    ASSERT_NE(address, nullptr) << strerror(errno);
    unmap(address, bytes);
  }
}

TEST(Memory, a_memory_file_never_takes_the_place_of_a_standard_stream) {
  const Fd kept(dup(STDERR_FILENO));
  close(STDERR_FILENO);
  const Fd file = memory_file("penstock-test");
  dup2(kept.get(), STDERR_FILENO);
  EXPECT_GT(file.get(), STDERR_FILENO);
}

TEST(Memory, an_impossible_reservation_is_a_null_and_an_errno) {
  errno = 0;
  EXPECT_EQ(reserve_mapping(-1, size_t{1} << 62, false), nullptr);
  EXPECT_EQ(errno, ENOMEM);
}

TEST(Memory, populating_beyond_the_end_of_a_file_is_an_errno_and_no_signal) {
  Fd file = memory_file("penstock-test");
  size_t bytes = 4 * page_size();
  resize_file(file.get(), page_size());
  void* address = reserve_mapping(file.get(), bytes, true);
  ASSERT_NE(address, nullptr);
  EXPECT_EQ(populate_write(address, page_size(), file.get(), 0), 0);
  EXPECT_NE(populate_write(address, bytes, file.get(), 0), 0);
  EXPECT_NE(populate_read(address, bytes, file.get(), 0), 0);
  unmap(address, bytes);
}

// Makes MADV_POPULATE_READ and _WRITE fail in this process, as on an old kernel.
bool forget_populate() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 22, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 23, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{sizeof program / sizeof program[0], program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(Memory, an_older_kernel_has_pages_touched_only_where_that_is_safe) {
  int status = status_of_child([] {
    Fd file = memory_file("penstock-test");
    size_t bytes = 4 * page_size();
    resize_file(file.get(), bytes);
    auto* mapped = static_cast<char*>(reserve_mapping(file.get(), 2 * bytes, true));
    auto* anonymous = static_cast<char*>(reserve_mapping(-1, bytes, false));
    mapped[page_size()] = 5;
    if (!forget_populate()) _exit(77);
    if (populate_write(mapped, bytes) != EINVAL) _exit(1);
    if (populate_write(mapped, bytes, file.get(), 0) != 0) _exit(2);
    if (populate_read(mapped, bytes, file.get(), 0) != 0) _exit(3);
    if (populate_write(mapped, 2 * bytes, file.get(), 0) != EFAULT) _exit(4);  // and no SIGBUS
    if (populate_write(anonymous, bytes, -1) != 0) _exit(5);
    unsigned char present[4];
    if (mincore(anonymous, bytes, present) != 0 || !(present[3] & 1)) _exit(6);
    _exit(mapped[page_size()] == 5 ? 7 : 8);
  });
  if (exit_code_of(status) == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(exit_code_of(status), 7);
}

TEST(Memory, discarded_pages_read_as_zero_and_hold_no_memory) {
  Fd file = memory_file("penstock-test");
  size_t bytes = 8 * page_size();
  resize_file(file.get(), bytes);
  forbid_shrinking(file.get());
  auto* shared = static_cast<char*>(reserve_mapping(file.get(), bytes, true));
  auto* anonymous = static_cast<char*>(reserve_mapping(-1, bytes, false));
  memset(shared, 1, bytes);
  memset(anonymous, 1, bytes);
  discard(file.get(), shared + page_size(), page_size(), 2 * page_size());
  discard(-1, anonymous + page_size(), 0, 2 * page_size());
  for (char* base : {shared, anonymous}) {
    EXPECT_EQ(base[page_size() - 1], 1);
    EXPECT_EQ(base[page_size()], 0);
    EXPECT_EQ(base[3 * page_size() - 1], 0);
    EXPECT_EQ(base[3 * page_size()], 1);
  }
  unmap(shared, bytes);
  unmap(anonymous, bytes);
}

TEST(Memory, a_sealed_file_grows_and_never_shrinks) {
  Fd file = memory_file("penstock-test");
  resize_file(file.get(), page_size());
  forbid_shrinking(file.get());
  resize_file(file.get(), 2 * page_size());
  EXPECT_THROW(resize_file(file.get(), page_size()), Error);
}

TEST(Memory, the_limit_on_file_size_is_an_error_and_no_signal) {
  int status = status_of_child([] {
    signal(SIGXFSZ, SIG_DFL);
    rlimit limit{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    Fd file = memory_file("penstock-test");
    try {
      resize_file(file.get(), 2 << 20);
    } catch (const Error& error) {
      sigset_t pending;
      sigpending(&pending);
      sigset_t mask;
      pthread_sigmask(SIG_BLOCK, nullptr, &mask);
      bool clean = !sigismember(&pending, SIGXFSZ) && !sigismember(&mask, SIGXFSZ);
      _exit(clean && error.code() == Code::kOutOfMemory ? 7 : 8);
    }
  });
  EXPECT_EQ(exit_code_of(status), 7);
}

#ifndef PENSTOCK_SANITIZED
TEST(Memory, the_limits_are_read_without_memory_too) {
  int status = status_of_child([] {
    rlimit none{0, 0};
    setrlimit(RLIMIT_AS, &none);
    for (size_t bytes = 1 << 20; bytes >= 16; bytes /= 2) {
      for (void* volatile taken = malloc(bytes); taken != nullptr;) taken = malloc(bytes);
    }
    bool fine = memory_headroom() == 0 && usable_cores() > 0 && memory_limit() > 0;
    process_resident_bytes();
    _exit(fine ? 7 : 8);
  });
  EXPECT_EQ(exit_code_of(status), 7);
}
#endif

TEST(Memory, freed_memory_stays_with_the_process) {
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "another malloc than glibc's";
#else
  int status = status_of_child([] {
    keep_freed_memory();
    auto faults_of_a_large_block = [] {
      rusage before, after;
      getrusage(RUSAGE_SELF, &before);
      auto* block = static_cast<volatile char*>(malloc(32 << 20));
      for (size_t at = 0; at < (32 << 20); at += 4096) block[at] = 1;
      free(const_cast<char*>(block));
      getrusage(RUSAGE_SELF, &after);
      return after.ru_minflt - before.ru_minflt;
    };
    faults_of_a_large_block();
    _exit(faults_of_a_large_block() < 16 ? 7 : 8);
  });
  EXPECT_EQ(exit_code_of(status), 7);
#endif
}

TEST(Futex, a_changed_word_is_not_waited_for) {
  std::atomic<uint32_t> word{1};
  EXPECT_EQ(futex_wait(word, 0, -1, false), Woken::kChanged);
}

TEST(Futex, a_timeout_ends_the_wait_and_not_before) {
  std::atomic<uint32_t> word{0};
  uint64_t start = now_ns();
  EXPECT_EQ(futex_wait(word, 0, 2'000'000, false), Woken::kTimeout);
  EXPECT_GE(now_ns() - start, 2'000'000u);
}

TEST(Futex, another_process_wakes_a_waiter_in_shared_memory) {
  void* page = reserve_mapping(-1, page_size(), true);
  ASSERT_NE(page, nullptr);
  auto& word = *new (page) std::atomic<uint32_t>(0);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    while (word.load() == 0) futex_wait(word, 0, -1, true);
    word.store(2);
    futex_wake(word, 1, true);
    _exit(0);
  }
  word.store(1);
  futex_wake(word, 1, true);
  while (word.load() == 1) ASSERT_NE(futex_wait(word, 1, 20'000'000'000, true), Woken::kTimeout);
  EXPECT_EQ(word.load(), 2u);
  waitpid(pid, nullptr, 0);
  unmap(page, page_size());
}

TEST(Event, stays_readable_until_cleared) {
  Fd fd = event();
  Poller poller;
  poller.add(fd.get(), 42);
  uint64_t tags[4];
  EXPECT_EQ(poller.wait(0, tags), 0u);
  signal_event(fd.get());
  signal_event(fd.get());
  ASSERT_EQ(poller.wait(-1, tags), 1u);
  EXPECT_EQ(tags[0], 42u);
  EXPECT_EQ(poller.wait(0, tags), 1u);
  clear_event(fd.get());
  clear_event(fd.get());  // does not block
  EXPECT_EQ(poller.wait(0, tags), 0u);
}

TEST(Poller, names_exactly_the_ready_ones_and_forgets_the_removed) {
  Fd events[3] = {event(), event(), event()};
  Poller poller;
  for (uint64_t i = 0; i < 3; ++i) poller.add(events[i].get(), i);
  signal_event(events[0].get());
  signal_event(events[2].get());
  uint64_t tags[8];
  ASSERT_EQ(poller.wait(-1, tags), 2u);
  EXPECT_EQ((std::set<uint64_t>{tags[0], tags[1]}), (std::set<uint64_t>{0, 2}));
  poller.remove(events[0].get());
  ASSERT_EQ(poller.wait(-1, tags), 1u);
  EXPECT_EQ(tags[0], 2u);
  EXPECT_THROW(poller.remove(events[0].get()), Error);
  EXPECT_THROW(poller.wait(0, {}), Error);
}

TEST(Process, its_end_is_seen_in_a_poller_and_signals_reach_it) {
  pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    for (;;) pause();
  }
  Fd process = open_process(pid);
  EXPECT_FALSE(process_ended(process.get()));
  Poller poller;
  poller.add(process.get(), 7);
  uint64_t tag = 0;
  EXPECT_EQ(poller.wait(0, {&tag, 1}), 0u);
  send_signal(process.get(), SIGKILL);
  ASSERT_EQ(poller.wait(20'000'000'000, {&tag, 1}), 1u);
  EXPECT_EQ(tag, 7u);
  EXPECT_TRUE(process_ended(process.get()));
  waitpid(pid, nullptr, 0);
  send_signal(process.get(), SIGKILL);  // no effect and no error
  EXPECT_TRUE(process_ended(process.get()));
}

TEST(Process, one_that_is_gone_is_not_found) {
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  waitpid(pid, nullptr, 0);
  try {
    open_process(pid);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kNotFound);
  }
}

// A parent is killed; its child, which watches it and ignores signals, must end, too.
TEST(Process, a_killed_parent_takes_its_child_along_within_a_second) {
  Fd pipe_out, pipe_in;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  pipe_out.reset(ends[0]);
  pipe_in.reset(ends[1]);
  pid_t parent = fork();
  if (parent == 0) {
    alarm(20);
    Fd self = open_process(getpid());
    if (fork() == 0) {
      exit_with(std::move(self), 3);
      (void)!write(pipe_in.get(), "x", 1);
      alarm(20);
      for (;;) pause();
    }
    for (;;) pause();
  }
  pipe_in.reset();
  char ready;
  ASSERT_EQ(read(pipe_out.get(), &ready, 1), 1);
  kill(parent, SIGKILL);
  uint64_t start = now_ns();
  EXPECT_EQ(read(pipe_out.get(), &ready, 1), 0) << "the last writer is gone";
#ifdef __SANITIZE_THREAD__
  uint64_t slack = 1'000'000'000;  // its run-time sleeps for a second in _exit
#else
  uint64_t slack = 0;
#endif
  EXPECT_LT(now_ns() - start, 1'000'000'000u + slack);
  waitpid(parent, nullptr, 0);
}

TEST(Process, engine_threads_take_no_ctrl_c) {
  std::thread engine([] {
    block_all_signals();
    pthread_kill(pthread_self(), SIGINT);
    sigset_t pending;
    sigpending(&pending);
    EXPECT_TRUE(sigismember(&pending, SIGINT));
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    EXPECT_FALSE(sigismember(&mask, SIGSEGV));
  });
  engine.join();
}

TEST(Machine, figures_are_plausible) {
  EXPECT_GE(usable_cores(), 1u);
  EXPECT_LE(usable_cores(), static_cast<unsigned>(sysconf(_SC_NPROCESSORS_CONF)));
  uint64_t physical = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_size();
  EXPECT_GT(memory_limit(), 0u);
  EXPECT_LE(memory_limit(), physical);
  EXPECT_LE(memory_headroom(), memory_limit());
  size_t bytes = 64 << 20;
  uint64_t before = process_resident_bytes();
  void* block = reserve_mapping(-1, bytes, false);
  ASSERT_EQ(populate_write(block, bytes, -1), 0);
  EXPECT_GE(process_resident_bytes(), before + bytes * 9 / 10);
  unmap(block, bytes);
}

TEST(Machine, affinity_counts) {
  int status = status_of_child([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    cpu_set_t mine;
    sched_getaffinity(0, sizeof mine, &mine);
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &mine)) {
        CPU_SET(i, &one);
        break;
      }
    }
    sched_setaffinity(0, sizeof one, &one);
    _exit(usable_cores() == 1 ? 7 : 8);
  });
  EXPECT_EQ(exit_code_of(status), 7);
}

}  // namespace
}  // namespace penstock::os
