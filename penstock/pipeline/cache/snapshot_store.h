#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/io/atomic_file.h"
#include "penstock/io/file.h"
#include "penstock/pipeline/cache/shared_store.h"
#include "penstock/pipeline/cache/snapshot_format.h"

namespace penstock {

// Elements by position in a file. The file either exists, or is filled by any number of threads and
// processes, and gets its name when it is complete.
//
//   made ──> filling ──> finishing ──> whole
//                 └──────────┘ on failure
//
// States:
// - made: nothing was begun. The first access -> filling.
// - filling: there is a hidden file and SnapshotPlaces. A process that finds all words set ->
//   finishing.
// - finishing: the process that made this transition writes index, text and footer; after a timeout
//   the consumer does so, too. The first that is done -> whole.
// - whole: the file has its name.
//
// Invariants:
// 1. Space is claimed by advancing `used`, and never given back.
// 2. A record is written completely before its word is set. The word is set once: a reader of the
//    word can read the record, and neither changes. If two make the same position, both write a
//    record; the first word counts.
// 3. The file is complete when all words are set; there is no other count. `next` is only where
//    to start checking. Completeness is checked by each process that set a word, by the consumer
//    after a pass, and by the owner's destructor. If several set the last words at once, at least
//    one of them sees all words set.
// 4. The losses after a stream's end are set before the end; the first writer of each counts.
// 5. `used` is closed before the footer is written, so no record follows. From then on all bytes
//    are determined: several finishing processes write the same bytes to the same places, and one
//    of them gives the file its name. So a finishing process may be dead without harm.
// 6. A process that is killed before it set a word has published nothing. If it is killed later,
//    the next check (3) finishes the file, at the latest in the owner's destructor.
// 7. If two plans fill files for one path, the first that finishes gets the name, and the other
//    file is deleted.
//
// Threads: attach() comes before all else; everything else from any thread of any attached process.
class SnapshotStore : public SharedStore {
 public:
  // Opens a complete file. Errors kNotFound; kDataLoss: not a snapshot, or damaged.
  explicit SnapshotStore(std::string path);
  // For a complete file that another process opened and this one attaches. The path may name
  // another file by now.
  struct Attached {};
  SnapshotStore(std::string path, Attached);
  // Opens the file if it exists; else fills it with the elements of the chain whose stages `plan`
  // names. `positions`: their number, if known. Errors kInvalidArgument: the file has the elements
  // of another chain; kDataLoss: not a snapshot, or damaged.
  SnapshotStore(std::string path, std::vector<std::string> plan, std::optional<uint64_t> positions);
  // The same, in a process that attaches the store of another one and ignores what the path names
  // now.
  SnapshotStore(std::string path, std::vector<std::string> plan, std::optional<uint64_t> positions,
                Attached);
  ~SnapshotStore() override;

  std::vector<int> fds() override;
  size_t fd_count() const override { return 2; }
  void attach(std::vector<os::Fd> fds) override;
  // If every element is written, the file is complete after this call. If another process has begun
  // to finish it, waits up to kPatience, then finishes it here. Errors of put().
  void end_pass() override;
  static constexpr std::chrono::seconds kPatience{1};

  // Sets the seed that the elements are made with. Errors kInvalidArgument: elements are made, or
  // were made, with another seed; kNotFound, kSystem: the file cannot be created.
  void set_seed(uint64_t seed);

  // The place of an element's record, if it is written.
  std::optional<SnapshotPlace> find(uint64_t position);
  // The file, for reading records and specs.
  const std::shared_ptr<File>& file();
  // Reads and checks the bytes of a spec. Errors kDataLoss, kSystem.
  std::vector<std::byte> spec(uint64_t place);

  // Writes an element, unless it is written already. `spec_place`: as in CacheStore. `lost`: its
  // losses. The last element finishes the file. Errors kSystem: the disk is full, ...;
  // kInvalidArgument: the element is longer than a snapshot allows.
  void put(uint64_t position, std::span<const std::byte> spec, uint64_t& spec_place,
           std::span<const std::byte> block, std::span<const std::byte> lost = {});

  std::optional<uint64_t> end();  // number of elements, if known
  // Of a stream. `lost`: the losses after the last element. Errors of put().
  void set_end(uint64_t end, std::span<const std::byte> lost = {});
  // The `lost` of set_end(). REQUIRED: end() is known. Errors kDataLoss, kSystem.
  std::vector<std::byte> trailing_losses();

  // The place of the only spec, if all elements of a whole file have one spec.
  std::optional<uint64_t> only_spec();
  const std::string& path() const { return path_; }
  const std::string& remedy() const { return remedy_; }  // advice for errors of damaged files

 private:
  void load();
  void check(const std::string& text, uint64_t elements) const;
  void open();
  [[noreturn]] void refuse(const std::string& why) const;
  uint64_t claim(uint64_t bytes);
  uint64_t append(SnapshotRecordHeader head, std::span<const std::byte> contents,
                  std::span<const std::byte> lost = {});
  std::vector<std::byte> record(uint64_t place, uint64_t what, const std::string& name);
  uint64_t spec_record(std::span<const std::byte> spec);
  bool all_there();
  void finish_if_all();
  void finish();
  uint64_t write_index(SnapshotFooter& end);
  std::string text() const;

  std::string path_;
  const std::vector<std::string> plan_;
  const std::optional<uint64_t> positions_;
  const bool fills_;
  const std::string remedy_;
  std::once_flag opened_;
  std::atomic<bool> begun_{false};       // the members below are set
  std::unique_ptr<AtomicFile> filling_;  // in the process that began it
  std::unique_ptr<SnapshotPlaces> places_;
  os::Fd fd_;
  std::shared_ptr<File> file_;
};

}  // namespace penstock
