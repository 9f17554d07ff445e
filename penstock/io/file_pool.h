#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "penstock/io/file.h"
#include "penstock/io/open_files.h"

namespace penstock {

// The files of a plan, by numbers, open or not. Of all pools that share an OpenFiles (those of a
// process, unless said otherwise) no more are open than that allows: the one unused longest is
// closed, and opened again when it is asked for. One that somebody holds is not closed; so hold a
// file no longer than for a chunk, where it is read by places. Two pools open the same path twice:
// there may be another file under it by then. Any thread.
class FilePool {
 public:
  explicit FilePool(std::shared_ptr<FileSystem> files,
                    std::shared_ptr<OpenFiles> open = OpenFiles::of_process());
  ~FilePool();
  FilePool(const FilePool&) = delete;
  FilePool& operator=(const FilePool&) = delete;

  // A number for this path; the same one for the same path. Opens nothing. `identity`: of the file
  // that another pool found there.
  uint32_t add(const std::string& path, const File::Identity& identity = {});
  // Which file it was when it was first opened; nothing before that.
  File::Identity identity(uint32_t number) const;

  // Where all that may be open are held, one more is opened all the same. Where the process or the
  // machine has no descriptor left, files that nobody holds are closed for it. Error as
  // FileSystem::open's; kDataLoss: another file has taken the place of the one that was opened
  // first. REQUIRED: a number that add() gave.
  std::shared_ptr<File> get(uint32_t number) { return take(number, true); }
  // For whoever holds many and can do with fewer: nullptr instead of one more than may be open.
  std::shared_ptr<File> get_if_room(uint32_t number) { return take(number, false); }

  // Whoever reads these files keeps one of these. With the last of them all are closed.
  class Use {
   public:
    explicit Use(std::shared_ptr<FilePool> pool);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    const std::shared_ptr<FilePool> pool_;
  };
  // Closes all, unless somebody uses them.
  void close_unused();

  size_t open_files() const;

 private:
  using Entry = OpenFiles::Entry;

  std::shared_ptr<File> take(uint32_t number, bool beyond);
  std::shared_ptr<File> open(const std::string& path);
  void close_all(OpenFiles::Closed& closed);

  const std::shared_ptr<FileSystem> files_;
  const std::shared_ptr<OpenFiles> open_;
  // With open_'s lock:
  std::deque<Entry> entries_;
  std::unordered_map<std::string, uint32_t> numbers_;
  size_t uses_ = 0;
};

}  // namespace penstock
