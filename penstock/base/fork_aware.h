#pragma once

namespace penstock {

// Fork handlers of an object (pthread_atfork), active from watch_forks() until ignore_forks().
// A derived class calls watch_forks() at the end of its constructor and ignore_forks() at the start
// of its destructor. Neither may be called while holding a lock that before_fork() takes.
//
// The forking thread calls before_fork(), then after_fork_in_parent() or after_fork_in_child(). So
// a lock taken by the first is released in both processes. None of the three may allocate or throw.
class ForkAware {
 public:
  ForkAware(const ForkAware&) = delete;
  ForkAware& operator=(const ForkAware&) = delete;

 protected:
  ForkAware() = default;
  ~ForkAware() = default;

  void watch_forks();  // Error kSystem
  void ignore_forks() noexcept;

  virtual void before_fork() noexcept {}
  virtual void after_fork_in_parent() noexcept {}
  virtual void after_fork_in_child() noexcept {}

 private:
  static void on_prepare() noexcept;
  static void on_parent() noexcept;
  static void on_child() noexcept;

  bool watching_ = false;
  ForkAware* next_ = nullptr;
  ForkAware* previous_ = nullptr;
};

}  // namespace penstock
