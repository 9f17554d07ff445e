#include "penstock/train/server/snapshot_saver.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock::train {
namespace {

// A shard that is killed in the middle of a change is started again, which ends the change.
constexpr double kChangeS = 10;
constexpr double kRenewS = ShardMemory::Hold::kHoldS / 4;

using Memories = std::vector<std::shared_ptr<ShardMemory>>;
using Checkpoints = std::vector<std::unique_ptr<ShardCheckpoint>>;

bool has_unsaved(const Memories& memories) {
  return std::ranges::any_of(
      memories, [](const auto& memory) { return memory->commits() != memory->saved().commits; });
}

void save(const Memories& memories, const Checkpoints& copies, SnapshotFolder& folder) {
  folder.save(copies);
  for (size_t i = 0; i < memories.size(); ++i) {
    memories[i]->set_saved({copies[i]->record.version, copies[i]->commits});
  }
}

}  // namespace

Checkpoints copy_at_one_moment(const Memories& memories) {
  std::vector<std::unique_ptr<ShardMemory::Hold>> holds;
  for (const auto& memory : memories) holds.push_back(std::make_unique<ShardMemory::Hold>(*memory));
  auto renew_from = [&](size_t first) {
    for (size_t i = first; i < holds.size(); ++i) {
      if (holds[i]->renew()) continue;
      throw Error(Code::kTimeout, "snapshot",
                  "this process was stopped while it copied the weights; the next snapshot may "
                  "succeed");
    }
  };
  const Deadline end(kChangeS);
  for (size_t i = 0; i < holds.size(); ++i) {
    while (!holds[i]->wait(Deadline::earlier(end, Deadline(kRenewS)))) {
      if (end.passed()) {
        throw Error(Code::kTimeout, "snapshot",
                    "shard " + std::to_string(i) + " did not complete an update for " +
                        std::to_string(static_cast<int>(kChangeS)) + " s; is it stopped?");
      }
      renew_from(0);
    }
  }
  Checkpoints copies;
  for (size_t i = 0; i < memories.size(); ++i) {
    copies.push_back(memories[i]->checkpoint([&] { renew_from(i); }));
    holds[i].reset();
  }
  return copies;
}

void save_unsaved(const Memories& memories, SnapshotFolder& folder) {
  if (!has_unsaved(memories)) return;
  Checkpoints copies;
  for (const auto& memory : memories) copies.push_back(memory->checkpoint());
  save(memories, copies, folder);
}

struct SnapshotSaver::State {
  void save_now() { save(memories, copy_at_one_moment(memories), *snapshots); }
  void note(const std::string& failure) const {
    for (const auto& memory : memories) memory->set_saving_failed(failure);
  }
  void run() noexcept;

  Memories memories;
  std::unique_ptr<SnapshotFolder> snapshots;
  double seconds = 0;
  std::mutex ending;  // guards the last save
  std::mutex mutex;
  std::condition_variable stop;
  bool stopping = false;  // guarded by mutex
  std::thread thread;
};

void SnapshotSaver::State::run() noexcept {
  os::block_all_signals();
  std::unique_lock lock(mutex);
  while (!stop.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return stopping; })) {
    if (!has_unsaved(memories)) continue;
    lock.unlock();
    try {
      save_now();
      note("");
    } catch (const std::exception& error) {
      note(error.what());  // reported by stats(); the next attempt may succeed
    }
    lock.lock();
  }
}

SnapshotSaver::SnapshotSaver(Memories memories, std::unique_ptr<SnapshotFolder> snapshots,
                             double seconds)
    : pid_(getpid()), state_(std::make_unique<State>()) {
  state_->memories = std::move(memories);
  state_->snapshots = std::move(snapshots);
  state_->seconds = seconds;
  try {
    state_->save_now();
  } catch (const Error& error) {
    throw Error(Code::kSystem, "ParameterServer",
                std::string("the first snapshot could not be written: ") + error.what());
  }
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

SnapshotSaver::~SnapshotSaver() {
  if (getpid() != pid_) {  // its locks may be held by a thread of the parent, for ever
    (void)state_.release();
    return;
  }
  try {
    end();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): end() reports it
  }
}

void SnapshotSaver::end() {
  if (getpid() != pid_) return;
  const std::lock_guard once(state_->ending);
  if (!state_->thread.joinable()) return;
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->stop.notify_all();
  state_->thread.join();
  try {
    save_unsaved(state_->memories, *state_->snapshots);
  } catch (const std::exception& error) {
    state_->snapshots.reset();
    throw Error(Code::kSystem, "close",
                std::string("the last snapshot could not be written: ") + error.what());
  }
  state_->snapshots.reset();
}

}  // namespace penstock::train
