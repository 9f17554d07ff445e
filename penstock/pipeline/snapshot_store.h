#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/io/file.h"
#include "penstock/io/filling_file.h"
#include "penstock/io/snapshot_format.h"
#include "penstock/pipeline/shared_store.h"
#include "penstock/pipeline/snapshot_places.h"

namespace penstock {

// Elements by their positions in a file: one that is there, or one that any number of threads and
// processes fill and that appears when it is whole.
//
// | state     | what it is                            | moved by |
// |-----------|---------------------------------------|---------------------------------------------|
// | made      | nothing is there, nothing was begun   | the first who asks -> filling | | filling
// | a hidden file and SnapshotPlaces      | who publishes the last element -> finishing | |
// finishing | index, text and end are being written | the same -> whole                           |
// | whole     | the file has its name                 | |
//
// 1. Room is claimed by moving `used` on, and never given back.
// 2. A record is written whole, and only then its word is set, once: whoever sees the word can read
//    the record, and neither changes. Two that make the same position both write; the first counts.
// 3. So a process that is killed in between has published nothing. One that is killed while it
//    finishes leaves that to the owner, whose destructor finishes what has every element.
// 4. Before the end is written `used` is closed, so nothing comes behind it.
// 5. Of two plans that fill files for one path the first that finishes has the name; the other
//    one's file goes.
//
// Threads: any, of any process that attached it, for everything but attach(), which comes first.
class SnapshotStore : public SharedStore {
 public:
  // A whole file. Errors kNotFound; kDataLoss: it is none, or damaged.
  explicit SnapshotStore(std::string path);
  // The file if it is there, or to be filled with the elements of what `plan` names, stage by
  // stage; `positions`: of them, where that is known. Errors kInvalidArgument: the file has
  // another chain's elements; kDataLoss: it is none, or damaged.
  SnapshotStore(std::string path, std::vector<std::string> plan, std::optional<uint64_t> positions);
  ~SnapshotStore() override;

  std::vector<int> fds() override;
  size_t fd_count() const override { return 2; }
  void attach(std::vector<os::Fd> fds) override;

  // The seed that elements are made with, from now on. Error kInvalidArgument: they are made, or
  // were, with another one. As kNotFound and kSystem of beginning a file.
  void set_seed(uint64_t seed);

  // Where an element's record is, if it is there.
  std::optional<SnapshotPlace> find(uint64_t position);
  // The file, for reading records and specs.
  const std::shared_ptr<File>& file();
  // The bytes of a spec, checked. Error kDataLoss, kSystem.
  std::vector<std::byte> spec(uint64_t place);

  // Writes an element, unless it is there; `spec_place`: as CacheStore's. The last one finishes the
  // file. Error kSystem: the disk is full, ...; kInvalidArgument: it is longer than a snapshot's
  // elements may be.
  void put(uint64_t position, std::span<const std::byte> spec, uint64_t& spec_place,
           std::span<const std::byte> block);

  std::optional<uint64_t> end();  // elements that there are, if it is known
  void set_end(uint64_t end);     // of a stream. Errors as of put

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
  uint64_t append(SnapshotHead head, std::span<const std::byte> contents);
  uint64_t spec_record(std::span<const std::byte> spec);
  void finish_if_all();
  void finish(uint64_t elements);
  uint64_t write_index(SnapshotEnd& end);
  std::string text() const;

  std::string path_;
  const std::vector<std::string> plan_;
  const std::optional<uint64_t> positions_;
  const bool fills_;
  const std::string remedy_;
  std::once_flag opened_;
  std::unique_ptr<FillingFile> filling_;  // of who began it
  std::unique_ptr<SnapshotPlaces> places_;
  os::Fd fd_;
  std::shared_ptr<File> file_;
};

}  // namespace penstock
