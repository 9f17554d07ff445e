#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>
#include <string>

// A mosquitto on a free port of this host. It runs as long as this object lives.
class Broker {
 public:
  Broker() {
    const int probe = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    bind(probe, reinterpret_cast<sockaddr*>(&at), size);
    getsockname(probe, reinterpret_cast<sockaddr*>(&at), &size);
    close(probe);
    port = ntohs(at.sin_port);
    // The last two are for any client that acknowledges many messages at once: see docs/online.md.
    const std::string settings = "listener " + std::to_string(port) +
                                 " 127.0.0.1\nallow_anonymous true\n"
                                 "max_inflight_messages 1000\nmax_queued_messages 0\n";
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    std::string name = "mosquitto", option = "-c", file = "/dev/stdin";
    char* arguments[] = {name.data(), option.data(), file.data(), nullptr};
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, ends[0], 0);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    const bool found =
        posix_spawnp(&pid_, "mosquitto", &files, nullptr, arguments, environ) == 0 ||
        posix_spawn(&pid_, "/usr/sbin/mosquitto", &files, nullptr, arguments, environ) == 0;
    posix_spawn_file_actions_destroy(&files);
    const bool written = write(ends[1], settings.data(), settings.size()) > 0;
    close(ends[0]);
    close(ends[1]);
    if (!found || !written)
      throw std::runtime_error("mosquitto is not installed: apt-get install mosquitto");
  }
  ~Broker() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
  Broker(const Broker&) = delete;

  uint16_t port;

 private:
  pid_t pid_ = 0;
};
