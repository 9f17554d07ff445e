#include "penstock/io/record_files.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "penstock/base/cancellation.h"
#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock {

RecordFiles::RecordFiles(std::shared_ptr<FilePool> pool, std::vector<std::string> paths,
                         std::vector<RecordIndex> indices)
    : pool_(std::move(pool)), paths_(std::move(paths)), indices_(std::move(indices)), begins_{0} {
  if (paths_.size() != indices_.size()) {
    throw Error(Code::kInvalidArgument, "files",
                std::to_string(paths_.size()) + " files, but " + std::to_string(indices_.size()) +
                    " indices");
  }
  for (size_t i = 0; i < paths_.size(); ++i) {
    numbers_.push_back(pool_->add(paths_[i]));
    begins_.push_back(begins_.back() + indices_[i].size());
  }
}

size_t RecordFiles::file_of(uint64_t record) const {
  // The last file that begins at or before the record: files without records share their begin.
  return static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), record) -
                             begins_.begin()) -
         1;
}

namespace {

// Distributes files over threads: each thread takes the next file that no thread has begun.
class FileWork {
 public:
  FileWork(FilePool& pool, const std::vector<std::string>& paths,
           const std::function<void(size_t, const std::shared_ptr<File>&)>& work)
      : pool_(pool), paths_(paths), work_(work), errors_(paths.size()) {}

  void run(size_t threads) {
    std::vector<std::thread> others;
    while (others.size() + 1 < threads) {
      try {
        others.emplace_back([this, check = Cancellation::current()] {
          os::block_all_signals();
          const Cancellation cancellation(check);
          work();
        });
      } catch (const std::system_error&) {
        break;  // no more threads can be started
      }
    }
    work();
    for (std::thread& thread : others) thread.join();
    for (const std::exception_ptr& error : errors_) {
      if (error != nullptr) std::rethrow_exception(error);
    }
  }

 private:
  void work() {
    while (!failed_.load(std::memory_order_relaxed)) {
      const size_t file = next_.fetch_add(1, std::memory_order_relaxed);
      if (file >= paths_.size()) return;
      try {
        work_(file, pool_.get(pool_.add(paths_[file])));
      } catch (...) {
        errors_[file] = std::current_exception();
        failed_.store(true, std::memory_order_relaxed);
      }
    }
  }

  FilePool& pool_;
  const std::vector<std::string>& paths_;
  const std::function<void(size_t, const std::shared_ptr<File>&)>& work_;
  std::vector<std::exception_ptr> errors_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
};

}  // namespace

void for_each_file(FilePool& pool, const std::vector<std::string>& paths, unsigned threads,
                   const std::function<void(size_t, const std::shared_ptr<File>&)>& work) {
  FileWork(pool, paths, work).run(std::min<size_t>(threads, paths.size()));
}

std::shared_ptr<const RecordFiles> index_files(
    std::shared_ptr<FilePool> pool, std::vector<std::string> paths, unsigned threads,
    const std::function<RecordIndex(const std::shared_ptr<File>&)>& index) {
  std::vector<RecordIndex> indices(paths.size());
  for_each_file(*pool, paths, threads,
                [&](size_t i, const std::shared_ptr<File>& file) { indices[i] = index(file); });
  return std::make_shared<RecordFiles>(std::move(pool), std::move(paths), std::move(indices));
}

}  // namespace penstock
