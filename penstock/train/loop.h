#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/pipeline/api/loader.h"

namespace penstock::train {

// Result of a run of a Loop.
struct LoopReport {
  uint64_t steps = 0;      // finished steps
  uint64_t check_ins = 0;  // calls of `look`
  double seconds = 0;
  bool stopped = false;  // `look` returned false
};

// Trains in runs of N steps, each run from one super-batch, and calls `look` with the steps'
// results after each run: the cost of a look (reading a loss, printing, waiting for a device) is
// paid once in N steps. Steps get views of the super-batch's rows. For any N the result is that of
// the plain loop: the same steps on the same samples in the same order. If a pass is not a multiple
// of N steps, its last run is smaller; if it is not a multiple of batch_size, its last step has
// fewer samples.
//
//   Loop loop(Dataset::arrays({{"x", x}, {"y", y}}).shuffle({.seed = 1}),
//             {.batch_size = 32, .steps = 20});
//   loop.run([&](const Example& batch) { return learn(batch.at("x"), batch.at("y")); },  // a loss
//            [&](uint64_t first, std::span<const float> losses) {
//              for (float loss : losses) log(first++, loss);
//              return true;
//            });
//
// A step returns the value to look at: a number, a struct, or a framework's tensor, which is not
// read before the look. Threads: one at a time.
class Loop {
 public:
  struct Options {
    uint64_t batch_size = 1;  // samples of a step
    uint64_t steps = 1;       // N
    // > 0: look after as many runs as fit into this time, and at the end.
    int64_t look_every_ns = 0;
    LoaderOptions feed = {};
  };
  struct Until {
    uint64_t epochs = 1;          // passes; the rest of an earlier run's pass counts as one
    uint64_t steps = UINT64_MAX;  // exactly; the next run continues after them
  };
  // Gets the results of the steps from number `first` on; false ends the run.
  template <class Said>
  using Look = std::function<bool(uint64_t first, std::span<const Said> said)>;

  // `samples`: not batched. Errors of Dataset::build; kInvalidArgument: batch_size or steps is 0.
  Loop(const Dataset& samples, const Options& options);
  // Over a feed of super-batches of any size. `feed` must outlive this. options.steps and
  // options.feed are not used.
  Loop(Loader& feed, const Options& options);
  Loop(Loop&&) = delete;

  // Steps are numbered from 0 over all runs. An exception from a step or a look is thrown after a
  // last look at the results of the steps before it; the batch of a step that threw counts as used.
  // Errors: those of the feed; kInvalidArgument: fields of a super-batch with different numbers of
  // rows, a pass without a batch.
  template <class Step, class Said = std::invoke_result_t<Step&, const Example&>>
  LoopReport run(Step step, const std::type_identity_t<Look<Said>>& look, const Until& until) {
    static_assert(!std::is_void_v<Said> && !std::is_same_v<Said, bool>,
                  "a step returns the value to look at; a bool is not possible, since "
                  "std::vector<bool> has no span");
    LoopReport report;
    const uint64_t began = now_ns();
    uint64_t looked = began, passes = 0;
    bool stepped = false;  // in this pass
    std::vector<Said> said;
    const auto look_at = [&] {
      if (said.empty()) return;
      ++report.check_ins;
      const uint64_t first = done_ - said.size();
      const std::vector<Said> all = std::exchange(said, {});
      if (look && !look(first, all)) report.stopped = true;
      looked = now_ns();
    };
    std::exception_ptr thrown;
    try {
      while (!report.stopped && report.steps < until.steps && passes < until.epochs) {
        if (!fill()) {
          passes += std::exchange(stepped, false);
          continue;
        }
        while (left() && report.steps < until.steps) {
          said.push_back(step(next()));
          stepped = true;
          ++done_;
          ++report.steps;
        }
        if (now_ns() - looked >= static_cast<uint64_t>(options_.look_every_ns)) look_at();
      }
    } catch (...) {
      thrown = std::current_exception();
    }
    look_at();
    report.seconds = static_cast<double>(now_ns() - began) * 1e-9;
    if (thrown) std::rethrow_exception(std::move(thrown));
    return report;
  }
  template <class Step>
  LoopReport run(Step step) {
    return run(std::move(step), {}, Until());
  }
  template <class Step, class Said = std::invoke_result_t<Step&, const Example&>>
  LoopReport run(Step step, const std::type_identity_t<Look<Said>>& look) {
    return run(std::move(step), look, Until());
  }

  uint64_t steps() const { return done_; }  // finished steps, of all runs

 private:
  bool fill();  // true: a step can be made; false: the pass has ended
  bool left() const { return begin_ < rows_; }
  const Example& next();

  const Options options_;
  std::optional<Loader> own_;
  Loader& feed_;
  std::optional<Example> super_;
  Example batch_;  // of the last step
  int64_t begin_ = 0, rows_ = 0;
  bool empty_ = true;  // this pass has not given a batch yet
  uint64_t done_ = 0;
};

}  // namespace penstock::train
