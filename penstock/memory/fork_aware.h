#pragma once

namespace penstock {

// Something that must be told when the process forks, from watch_forks() until ignore_forks().
// Derived classes call the first when they are complete and the second before they come apart, and
// neither with a lock held that before_fork() takes.
//
// before_fork() is called in the thread that forks, and one of the other two afterwards, so that a
// lock taken in the first is free again in both processes. None may allocate or throw.
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
