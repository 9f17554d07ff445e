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
#include "penstock/io/snapshot_format.h"
#include "penstock/pipeline/cache/shared_store.h"
#include "penstock/pipeline/cache/snapshot_places.h"

namespace penstock {

// Elements by their positions in a file: one that is there, or one that any number of threads and
// processes fill and that appears when it is whole.
//
//   made ──> filling ──> finishing ──> whole
//                 └──────────┘ if it fails
//
//   made       nothing is there, nothing was begun; who asks first moves it
//   filling    a hidden file and SnapshotPlaces; who finds all words set moves it
//   finishing  index, text and end are being written; by who moved it here, and by the consumer
//              that has waited for that too long: whoever is done first moves it
//   whole      the file has its name
//
// 1. Space is claimed by moving `used` on, and never given back.
// 2. A record is written whole, and only then its word is set, once: whoever sees the word can read
//    the record, and neither changes. Two that make the same position both write; the first counts.
// 3. All is there when all words are set: nothing else is counted. `next` only says from where on
//    to look. Whoever set a word looks, and so do the consumer when a pass is over and the owner
//    when it goes; of several that set the last words at once, one sees them all.
// 4. What was lost behind a stream's end is decided before the end is, by whoever is first.
// 5. Before the end is written `used` is closed, so nothing comes behind it. From then on all that
//    is written is decided: two that finish write the same bytes to the same places, and one of
//    them gives the name. So nobody needs to know whether the other is dead.
// 6. A process that is killed before it set a word has published nothing; behind that, or while it
//    finishes, it leaves the rest to whoever looks next (3), at the latest the owner's destructor.
// 7. Of two plans that fill files for one path the first that finishes has the name; the other
//    one's file goes.
//
// Threads: any, of any process that attached it, for everything but attach(), which comes first.
class SnapshotStore : public SharedStore {
 public:
  // A whole file. Errors kNotFound; kDataLoss: it is none, or damaged.
  explicit SnapshotStore(std::string path);
  // Such a file of another process, which this one attaches: it may be under its name no longer.
  struct Attached {};
  SnapshotStore(std::string path, Attached);
  // The file if it is there, or to be filled with the elements of what `plan` names, stage by
  // stage; `positions`: of them, where that is known. Errors kInvalidArgument: the file has
  // another chain's elements; kDataLoss: it is none, or damaged.
  SnapshotStore(std::string path, std::vector<std::string> plan, std::optional<uint64_t> positions);
  // The same, of a process that attaches another one's: whatever is under the name by now.
  SnapshotStore(std::string path, std::vector<std::string> plan, std::optional<uint64_t> positions,
                Attached);
  ~SnapshotStore() override;

  std::vector<int> fds() override;
  size_t fd_count() const override { return 2; }
  void attach(std::vector<os::Fd> fds) override;
  // If every element is there, so is the file then: whoever has begun to finish it gets kPatience,
  // and then it is done here, too. Errors of put().
  void end_pass() override;
  static constexpr std::chrono::seconds kPatience{1};

  // The seed that elements are made with, from now on. Error kInvalidArgument: they are made, or
  // were, with another one. As kNotFound and kSystem of beginning a file.
  void set_seed(uint64_t seed);

  // Where an element's record is, if it is there.
  std::optional<SnapshotPlace> find(uint64_t position);
  // The file, for reading records and specs.
  const std::shared_ptr<File>& file();
  // The bytes of a spec, checked. Error kDataLoss, kSystem.
  std::vector<std::byte> spec(uint64_t place);

  // Writes an element, unless it is there; `spec_place`: as CacheStore's. `lost`: on the way to it.
  // The last one finishes the file. Error kSystem: the disk is full, ...; kInvalidArgument: it is
  // longer than a snapshot's elements may be.
  void put(uint64_t position, std::span<const std::byte> spec, uint64_t& spec_place,
           std::span<const std::byte> block, std::span<const std::byte> lost = {});

  std::optional<uint64_t> end();  // elements that there are, if it is known
  // Of a stream; `lost`: behind the last one. Errors as of put.
  void set_end(uint64_t end, std::span<const std::byte> lost = {});
  // That. REQUIRED: end() is known. Errors kDataLoss, kSystem.
  std::vector<std::byte> lost_behind();

  // The one spec of all elements of a whole file, if there is one.
  std::optional<uint64_t> only_spec();
  const std::string& path() const { return path_; }
  const std::string& remedy() const { return remedy_; }  // for who finds it damaged

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
  std::atomic<bool> begun_{false};       // what follows is there
  std::unique_ptr<AtomicFile> filling_;  // of who began it
  std::unique_ptr<SnapshotPlaces> places_;
  os::Fd fd_;
  std::shared_ptr<File> file_;
};

}  // namespace penstock
