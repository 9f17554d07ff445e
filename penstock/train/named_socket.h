#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "penstock/base/os.h"

namespace penstock::train {

// Names in this user's namespace, through which processes that nobody started together find each
// other: Unix sockets in Linux' abstract namespace, whose names have the user's number. There is no
// file: a name is free when the last process that serves it is gone. Names of different kinds have
// nothing to do with each other. Processes see each other's names if they share a network
// namespace, as all do outside of containers.
//
// Both ends look at the other's user before anything is read. Threads: any.

// Serves a name. Error kInvalidArgument: no such name can be (empty, a zero byte in it, more than
// kMostName bytes), or somebody serves it already, with the process's number.
inline constexpr size_t kMostName = 64;
os::Fd serve_name(const std::string& kind, const std::string& name);

struct Peer {
  os::Fd fd;  // non-blocking, closed on exec
  pid_t pid = 0;
};

// Who serves a name, if anybody does. Error kInvalidArgument: the name; a process of another user
// serves it, with its number. kSystem.
std::optional<Peer> connect_to_name(const std::string& kind, const std::string& name);

// The next of those who connected; those of other users are sent away. `failed` is set if there is
// one that could not be taken (descriptors).
std::optional<Peer> accept_peer(int server, bool& failed);

// What a server says to who connects, at once and once: never blocks.
struct Greeting {
  static constexpr uint64_t kMagic = 0x316F6C6C65687370;  // "pshello1"
  enum class Answer : uint32_t { kWelcome = 1, kFull = 2 };

  uint64_t magic = kMagic;
  Answer answer = Answer::kWelcome;
  uint32_t row = 0;  // what is now the other's place
};
// False: it could not be sent, the connection is of no use.
bool send_greeting(int fd, const Greeting& greeting, int descriptor = -1);

// The same at the other end, in pieces as they come; called when `fd` is readable.
class GreetingReader {
 public:
  enum class State { kMore, kComplete, kEnded, kGarbage };
  State read(int fd);
  const Greeting& greeting() const { return greeting_; }  // REQUIRED: kComplete
  os::Fd take_descriptor() { return std::move(descriptor_); }

 private:
  Greeting greeting_{};
  size_t got_ = 0;
  os::Fd descriptor_;
};

}  // namespace penstock::train
