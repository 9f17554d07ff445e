#include "penstock/pipeline/api/loader.h"

#include <cerrno>
#include <cstdio>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/observe/report.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/engine/loader_engine.h"

namespace penstock {
namespace {

void write_file(const std::string& path, const std::string& text) {
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const os::FileSizeSignalBlocker hold;
  std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "wb"));
  bool fine = file && std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  if (!fine || std::fflush(file.get()) != 0) throw Error::from_errno(errno, "report", path);
}

}  // namespace

std::shared_ptr<LoaderEngine> Loader::make_engine(std::unique_ptr<Source> source,
                                                  const LoaderOptions& options) {
  return std::make_shared<LoaderEngine>(std::make_shared<Samples>(std::move(source)), options);
}

Loader::Loader(const Dataset& dataset, const LoaderOptions& options)
    : engine_(std::make_shared<LoaderEngine>(
          std::make_shared<const Plan>(*given(dataset.node(), "Loader", "dataset"),
                                       options.on_error == OnError::kSkip),
          options)) {}

Loader& Loader::operator=(Loader&& other) noexcept {
  if (this != &other) {
    close();
    engine_ = std::move(other.engine_);
  }
  return *this;
}

Loader::~Loader() { close(); }

void Loader::close() {
  if (engine_ != nullptr) engine_->close();
}

bool Loader::closed() const { return engine_ == nullptr || engine_->closed(); }

const std::shared_ptr<LoaderEngine>& Loader::engine() const {
  if (engine_ != nullptr) return engine_;
  throw Error(Code::kClosed, "Loader", "it was moved from");
}

Loader::Batches Loader::epoch() { return {engine(), engine()->begin_epoch(), std::nullopt}; }
Loader::Batches Loader::steps(uint64_t n) { return {engine(), engine()->begin_steps(), n}; }
std::optional<Example> Loader::next() { return engine()->next(); }
uint64_t Loader::size() const { return engine()->steps(); }
LoaderState Loader::state() const { return engine()->state(); }
void Loader::restore(const LoaderState& state) { engine()->restore(state); }
std::optional<LoaderFailure> Loader::failure() const { return engine()->failure(); }
LoaderStats Loader::stats() const { return engine()->stats(); }
Snapshot Loader::snapshot() const { return engine()->snapshot(); }
void Loader::report(const std::string& path) const { write_file(path, report_html(snapshot())); }
void Loader::trace(const std::string& path) const { write_file(path, chrome_trace(snapshot())); }

void Loader::Batches::advance() {
  bool again = std::exchange(begun_, true);
  if (again && !batch_) return;  // the range has ended
  batch_.reset();                // the next batch may reuse its memory
  if (left_ && (*left_)-- == 0) {
    left_ = 0;
    return;
  }
  batch_ = engine_->next_of(serial_, left_.has_value(), gave_all_);
}

}  // namespace penstock
