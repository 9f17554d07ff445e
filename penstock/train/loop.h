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
#include "penstock/pipeline/loader.h"

namespace penstock::train {

// What a run of a Loop came to.
struct LoopReport {
  uint64_t steps = 0;      // that were finished
  uint64_t check_ins = 0;  // how often the host looked
  double seconds = 0;
  bool stopped = false;  // a look ended it
};

// Training in runs of N steps, each from one super-batch, with one look at what they said after
// each run: what a look costs (reading a loss, printing, a device that must be waited for) is paid
// once in N steps. Steps get views of the super-batch's rows. The result is that of the plain loop,
// for any N: the same steps on the same samples in the same order. A pass that is no multiple of N
// ends with a smaller run, and one that is no multiple of the batch with a step of what is left.
//
//   Loop loop(Dataset::arrays({{"x", x}, {"y", y}}).shuffle({.seed = 1}),
//             {.batch_size = 32, .steps = 20});
//   loop.run([&](const Example& batch) { return learn(batch.at("x"), batch.at("y")); },  // a loss
//            [&](uint64_t first, std::span<const float> losses) {
//              for (float loss : losses) log(first++, loss);
//              return true;
//            });
//
// A step returns what is to be looked at: a number, a struct, or a tensor of a framework, which
// need not be read before the look. Threads: one at a time.
class Loop {
 public:
  struct Options {
    uint64_t batch_size = 1;    // samples of a step
    uint64_t steps = 1;         // N
    int64_t look_every_ns = 0;  // > 0: after as many runs as fit, and at the end
    LoaderOptions feed = {};
  };
  struct Until {
    uint64_t epochs = 1;          // passes; the rest of one that an earlier run began is one
    uint64_t steps = UINT64_MAX;  // exactly; the next run goes on behind them
  };
  // What the steps from number `first` on said; false ends the run.
  template <class Said>
  using Look = std::function<bool(uint64_t first, std::span<const Said> said)>;

  // `samples`: not batched. Errors as of Dataset::build; kInvalidArgument: a batch_size or steps of
  // 0.
  Loop(const Dataset& samples, const Options& options);
  // Over a feed of super-batches, whatever their size, which outlives this. options.steps and
  // options.feed are not used.
  Loop(Loader& feed, const Options& options);
  Loop(Loop&&) = delete;

  // Steps are numbered from 0 on over all runs. What a step or a look throws comes out once what
  // the steps before it said was looked at; the batch of a step that threw counts as used. Errors:
  // those of the feed; kInvalidArgument: fields of a super-batch that have not equally many rows, a
  // pass without a batch.
  template <class Step, class Said = std::invoke_result_t<Step&, const Example&>>
  LoopReport run(Step step, const std::type_identity_t<Look<Said>>& look, const Until& until) {
    static_assert(!std::is_void_v<Said> && !std::is_same_v<Said, bool>,
                  "a step returns what is to be looked at: no bool, for there is no span of them");
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

  uint64_t steps() const { return done_; }  // that were finished, of all runs

 private:
  bool fill();  // there is a step to make; false: a pass has ended
  bool left() const { return begin_ < rows_; }
  const Example& next();

  const Options options_;
  std::optional<Loader> own_;
  Loader& feed_;
  std::optional<Example> super_;
  Example batch_;  // the last step's
  int64_t begin_ = 0, rows_ = 0;
  bool empty_ = true;  // no batch came in this pass
  uint64_t done_ = 0;
};

}  // namespace penstock::train
