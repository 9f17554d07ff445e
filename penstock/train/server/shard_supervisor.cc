#include "penstock/train/server/shard_supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <random>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/base/text.h"
#include "penstock/train/optimizer.h"

namespace penstock::train {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kControlTag = UINT64_MAX;
constexpr int kReadAttempts = 4;              // to copy one version
constexpr size_t kMaxLineBytes = 1000;        // bytes
constexpr uint64_t kMinPauseNs = 10'000'000;  // ns between two starts of a shard that fail
constexpr uint64_t kMaxRestartPauseNs = 1'000'000'000;
constexpr uint64_t kOwnerEndNs = 10'000'000'000;  // ns until a killed owner has ended
constexpr uint64_t kCloseNs = 10'000'000'000;     // ns until a shard has closed its connections
constexpr int kPollMs = 200;

struct Plan {
  explicit Plan(const std::string& text)
      : json(Json::parse(text)),
        layout(Layout::from_json(json.at("layout").get<std::string>())),
        optimizer(OptimizerText::read(json.at("optimizer").get<std::string>())) {
    const Json& given = json.at("mode");
    if (!given.at("staleness").is_null()) mode.staleness = given.at("staleness").get<uint32_t>();
    given.at("lease_s").get_to(mode.lease_s);
    given.at("workers").get_to(mode.workers);
    given.at("compensation").get_to(mode.compensation);
    mode.non_finite = static_cast<NonFinite>(given.at("non_finite").get<int>());
    json.at("addresses").get_to(addresses);
    json.at("secret").get_to(secret);
    if (!json.at("encrypt").is_null()) encrypt = json.at("encrypt").get<bool>();
    const auto folder = json.at("snapshots").get<std::vector<uint8_t>>();
    snapshots.assign(folder.begin(), folder.end());
    json.at("owner").get_to(owner);
    json.at("server").get_to(server);
    json.at("epoch").get_to(epoch);
  }

  Json json;
  Layout layout;
  Optimizer optimizer;
  ServerMode mode;
  std::vector<std::string> addresses;
  std::string secret, snapshots;
  pid_t owner = 0;  // the process that made the server
  std::optional<bool> encrypt;
  uint64_t server = 0;
  uint64_t epoch = 0;
};

// A path need not be UTF-8, but JSON must be.
std::vector<uint8_t> bytes_of(const std::string& path) { return {path.begin(), path.end()}; }

void send_line(int control, const std::string& line) {
  // A few bytes: sent as a whole.
  (void)!::send(control, line.data(), line.size(), MSG_NOSIGNAL);
}

bool has_port(const std::string& address) { return !address.starts_with("unix:"); }

// The address with this port in place of 0; port 0 leaves the choice to the system.
std::string with_port(const std::string& address, uint32_t port) {
  if (port == 0 || !has_port(address) || !address.ends_with(":0")) return address;
  return address.substr(0, address.size() - 1) + std::to_string(port);
}
uint32_t port_of(const std::string& address) {
  if (!has_port(address)) return 0;
  return static_cast<uint32_t>(std::stoul(address.substr(address.rfind(':') + 1)));
}

// One line of UTF-8, short enough to be sent as a whole.
std::string one_line(const char* what) {
  std::string text = escape_invalid_utf8(what);
  std::ranges::replace(text, '\n', ' ');
  if (text.size() > kMaxLineBytes) {
    size_t end = kMaxLineBytes;
    while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // not within a character
    text.resize(end);
  }
  return text + "\n";
}

// Runs a shard's process, from its fork to its end.
[[noreturn]] void run_shard(const Plan& plan, size_t i, const std::shared_ptr<ShardMemory>& memory,
                            int control, os::Fd supervisor) {
  const std::string me = std::to_string(i) + " ";
  try {
    os::exit_with(std::move(supervisor), 0);
    const auto ranges = partition(plan.layout, plan.addresses.size());
    auto shard = std::make_shared<Shard>(memory, plan.optimizer, plan.mode);
    ShardService service(shard, {plan.layout, ranges[i], plan.server, plan.epoch}, plan.mode,
                         {with_port(plan.addresses[i], memory->port())}, plan.secret, plan.encrypt);
    memory->set_port(port_of(service.addresses()[0]));
    memory->count_served();
    send_line(control, me + std::to_string(getpid()) + " " + service.addresses()[0] + "\n");
    // SIGTERM: end in order.
    sigset_t end;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    int got = 0;
    while (sigwait(&end, &got) != 0) {
    }
    service.close();
    _exit(0);
  } catch (const std::exception& error) {
    send_line(control, me + "0 " + one_line(error.what()));
  }
  _exit(1);
}

struct Child {
  pid_t pid = -1;
  os::Fd process;       // none: it has ended, and is to be started at `next`
  uint32_t served = 0;  // processes that had served before
  uint64_t next = 0;    // now_ns()
  uint64_t pause = 0;
};

// Nanoseconds until the next child is to be started; < 0: none is.
int64_t until_next(const std::vector<Child>& children) {
  uint64_t next = UINT64_MAX;
  for (const Child& child : children) {
    if (!child.process) next = std::min(next, child.next);
  }
  if (next == UINT64_MAX) return -1;
  const uint64_t now = now_ns();
  return next > now ? static_cast<int64_t>(next - now) : 0;
}

void wait_for(const Child& child) {
  while (waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// Whether the owner was killed. The kernel closes its end of `control` first, and gives its
// children another parent later: milliseconds later on a busy machine.
bool was_killed(pid_t owner, int control) {
  const uint64_t deadline = now_ns() + kOwnerEndNs;
  while (getppid() == owner) {
    pollfd end{control, 0, 0};
    poll(&end, 1, 0);
    if ((end.revents & POLLHUP) == 0 || now_ns() > deadline) return false;
    poll(nullptr, 0, 1);
  }
  return true;
}

// Ends the shards: together they have kCloseNs to close their connections.
void end_shards(const std::vector<Child>& children) {
  for (const Child& child : children) {
    if (child.process) kill(child.pid, SIGTERM);
  }
  const uint64_t deadline = now_ns() + kCloseNs;
  for (const Child& child : children) {
    if (!child.process) continue;
    pollfd ended{child.process.get(), POLLIN, 0};
    while (poll(&ended, 1, kPollMs) == 0) {
      if (now_ns() < deadline) continue;
      kill(child.pid, SIGKILL);
      break;
    }
    wait_for(child);
  }
}

}  // namespace

ShardProcesses::ShardProcesses(const Parameters& parameters, const Optimizer& optimizer,
                               const ServerOptions& options)
    : layout_(parameters.layout()),
      optimizer_(optimizer),
      options_(options),
      ranges_(partition(layout_, options.shards)),
      listen_(listen_addresses(options)),
      snapshots_(open_snapshots(layout_, optimizer, options)) {
  // A restarted shard keeps its name.
  std::random_device device;
  for (std::string& address : listen_) {
    if (address == "unix:@") address += std::to_string(uint64_t{device()} << 32 | device());
  }
  ServerOptions two = options;
  two.copies = 2;
  for (const auto& shard : make_shards(parameters, optimizer, two, snapshots_.get())) {
    memories_.push_back(shard->memory());
  }
  if (snapshots_) {
    damaged_snapshots_ = snapshots_->damaged();
    lock_ = snapshots_->lock().fd();
    epoch_ = snapshots_->epoch();
  }
}

std::vector<int> ShardProcesses::descriptors() const {
  std::vector<int> descriptors;
  for (const auto& memory : memories_) descriptors.push_back(memory->fd());
  return descriptors;
}

std::string ShardProcesses::text(const std::vector<std::string>& addresses) const {
  const ServerMode& mode = options_.mode;
  Json given = {{"lease_s", mode.lease_s},
                {"workers", mode.workers},
                {"compensation", mode.compensation},
                {"non_finite", static_cast<int>(mode.non_finite)},
                {"staleness", nullptr}};
  Json encrypt;  // null
  if (options_.encrypt) encrypt = *options_.encrypt;
  if (mode.staleness) given["staleness"] = *mode.staleness;
  return Json{{"layout", layout_.to_json()},
              {"optimizer", OptimizerText::of(optimizer_)},
              {"mode", given},
              {"addresses", addresses},
              {"secret", options_.secret},
              {"encrypt", encrypt},
              {"snapshots", bytes_of(options_.snapshots)},
              {"owner", getpid()},
              {"server", memories_[0]->record().server},
              {"epoch", epoch_}}
      .dump();
}

std::string ShardProcesses::saving_failed() const { return memories_.front()->saving_failed(); }

std::vector<uint64_t> ShardProcesses::read(const Slab& into) const {
  layout_.require_equal(into.layout(), "pull", "this slab");
  std::vector<uint64_t> versions;
  for (size_t i = 0; i < memories_.size(); ++i) {
    const auto to = into.values().subspan(ranges_[i].begin, ranges_[i].size());
    ShardMemory::Current before;
    for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
      before = memories_[i]->current();
      std::ranges::copy(memories_[i]->weights(before.copy), to.begin());
      // The next update writes the other copy; only the second next one writes this copy.
      if (memories_[i]->current().version == before.version) break;
    }
    versions.push_back(before.version);
  }
  return versions;
}

void ShardProcesses::start_saving() try {
  const std::lock_guard lock(saving_);
  if (!snapshots_) return;
  saver_ = std::make_unique<SnapshotSaver>(memories_, std::move(snapshots_), options_.snapshot_s);
} catch (...) {
  lock_ = -1;  // closed with the folder
  throw;
}

void ShardProcesses::end_saving() {
  const std::lock_guard lock(saving_);
  lock_ = -1;
  snapshots_.reset();
  if (saver_) saver_->end();
}

void ShardProcesses::crash_at(size_t shard, CrashPoint place) const {
  if (shard >= memories_.size()) {
    throw Error(Code::kInvalidArgument, "ParameterServer", "no such shard");
  }
  memories_[shard]->crash_at(place);
}

void supervise_shards(const std::string& text, const std::vector<int>& descriptors, int control,
                      int lock) {
  Plan plan(text);
  std::unique_ptr<FolderLock> shared;
  if (lock >= 0) shared = std::make_unique<FolderLock>(os::duplicate(lock, "shards"));
  if (descriptors.size() != plan.addresses.size()) {
    throw Error(Code::kInvalidArgument, "shards",
                "the numbers of descriptors and addresses differ");
  }
  std::vector<std::shared_ptr<ShardMemory>> memories;
  try {
    for (const int fd : descriptors) {
      memories.push_back(ShardMemory::open(fd, ShardMemory::Access::kWrite));
    }
  } catch (const Error& error) {
    return send_line(control, "0 0 " + one_line(error.what()));
  }
  os::block_all_signals();  // inherited by shards; SIGKILL still ends them
  std::vector<Child> children(descriptors.size());
  os::Poller poller;
  poller.add(control, kControlTag);
  const pid_t me = getpid();
  auto start = [&](size_t i) {
    os::Fd supervisor = os::open_process(me);
    children[i].served = memories[i]->served();
    const pid_t pid = fork();
    if (pid < 0) throw Error::from_errno(errno, "shards", "fork");
    if (pid == 0) run_shard(plan, i, memories[i], control, std::move(supervisor));
    children[i].pid = pid;
    children[i].process = os::open_process(pid);
    poller.add(children[i].process.get(), i);
  };
  for (size_t i = 0; i < children.size(); ++i) start(i);
  bool going = true;
  while (going) {
    std::array<uint64_t, 16> tags;
    const size_t ready = poller.wait(until_next(children), tags);
    for (size_t k = 0; k < ready; ++k) {
      if (tags[k] == kControlTag) {
        going = false;  // the other end sends nothing: this is its end
        continue;
      }
      Child& child = children[tags[k]];
      poller.remove(child.process.get());
      wait_for(child);
      child.process.reset();
      // Restart immediately. If the shard failed to start, pause, since the cause may need time to
      // pass.
      const bool started = memories[tags[k]]->served() != child.served;
      child.pause = started ? 0 : std::clamp(2 * child.pause, kMinPauseNs, kMaxRestartPauseNs);
      child.next = now_ns() + child.pause;
    }
    for (size_t i = 0; going && i < children.size(); ++i) {
      if (!children[i].process && children[i].next <= now_ns()) start(i);
    }
  }
  end_shards(children);
  // An owner that was killed cannot save the last changes.
  const bool orphaned = was_killed(plan.owner, control);
  const auto served = [](const auto& memory) { return memory->served() > 0; };
  if (!shared || !orphaned || !std::ranges::all_of(memories, served)) return;
  SnapshotFolder folder(plan.snapshots, partition(plan.layout, memories.size()), plan.optimizer,
                        plan.layout, std::move(shared), plan.epoch);
  save_unsaved(memories, folder);
}

}  // namespace penstock::train
