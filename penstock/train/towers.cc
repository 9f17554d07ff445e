#include "penstock/train/towers.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/train/tower.h"

namespace penstock::train {
namespace {

using Clock = std::chrono::steady_clock;

// With fewer floats per thread, another thread costs more than it saves.
constexpr size_t kFloatsPerThread = size_t{1} << 19;

Error refuse_towers(const std::string& why) { return Error(Code::kInvalidArgument, "Towers", why); }

// If `name` is the offsets of a ragged leaf: that leaf's name.
std::optional<std::string_view> of_offsets(const Example& batch, std::string_view name) {
  constexpr std::string_view kOffsets = "offsets";
  if (name.size() < kOffsets.size() || !name.ends_with(kOffsets)) return std::nullopt;
  name.remove_suffix(kOffsets.size());
  if (name.ends_with('/')) name.remove_suffix(1);
  return batch.find(name) != nullptr ? std::optional(name) : std::nullopt;
}

// The number of rows of all leaves of a batch. Ragged leaves have one offset more than rows.
double rows_of(const Example& batch) {
  const char* remedy = ", or set its weight with Options::weigh";
  std::vector<std::string_view> ragged;
  for (const auto& [name, tensor] : batch) {
    if (const auto of = of_offsets(batch, name)) ragged.push_back(*of);
  }
  std::optional<int64_t> rows;
  for (const auto& [name, tensor] : batch) {
    if (std::find(ragged.begin(), ragged.end(), name) != ragged.end()) continue;
    if (tensor.ndim() == 0) throw refuse_towers("'" + name + "' of a batch has no rows" + remedy);
    const int64_t found = tensor.dim(0) - (of_offsets(batch, name) ? 1 : 0);
    if (rows && *rows != found) {
      throw refuse_towers("a batch has leaves of " + std::to_string(*rows) + " and " +
                          std::to_string(found) + " rows" + remedy);
    }
    rows = found;
  }
  if (!rows) throw refuse_towers(std::string("a batch is empty") + remedy);
  return static_cast<double>(*rows);
}

}  // namespace

// Rounds of Examples, with one step for each tower.
class Towers::Examples : public Work {
 public:
  Examples(const Options& options, Rounds feed, const MakeStep& make, size_t towers,
           uint64_t epochs)
      : options_(options), feed_(std::move(feed)), make_(make), steps_(towers) {
    feed_.begin(towers, epochs);
  }

  void make(Tower& tower) override { steps_[tower.number()] = make_(tower); }

  std::optional<Weights> take() override {
    next_.clear();
    std::optional<Rounds::Batches> batches = feed_.next();
    if (!batches) return std::nullopt;
    Weights weights(batches->size());
    for (size_t tower = 0; tower < weights.size(); ++tower) {
      std::optional<Example>& batch = (*batches)[tower];
      if (!batch) continue;
      weights[tower] = options_.weigh ? options_.weigh(*batch) : rows_of(*batch);
      if (options_.stage) batch = options_.stage(tower, std::move(*batch));
    }
    next_ = std::move(*batches);
    return weights;
  }

  void advance() override { now_ = std::move(next_); }

  std::optional<double> compute(Tower& tower) override {
    Example batch = std::move(*now_[tower.number()]);
    return steps_[tower.number()](batch);
  }

 private:
  const Options& options_;
  Rounds feed_;
  const MakeStep& make_;
  std::vector<Step> steps_;
  Rounds::Batches now_, next_;  // each tower moves its batch out of now_
};

// One run: its rounds, on run()'s thread, and the jobs of the towers' threads.
class Towers::Run {
 public:
  Run(Towers& of, Work& work, Threading threading)
      : towers_(of.towers_),
        updater_(of.updater_),
        failed_(of.failed_),
        work_(work),
        losses_(towers_.size()),
        began_(Clock::now()),
        threads_(towers_.size(), std::move(threading)) {
    for (Tower& tower : towers_) {  // from a round that failed
      if (tower.gradients_) tower.gradients_->zero();
      tower.clear();
      tower.copied_ = 0;
    }
  }

  void run_rounds(const Until& until) {
    threads_.begin([this](size_t tower) { work_.make(towers_[tower]); });
    take(until.steps > 0);
    wait();
    while (next_) {
      weights_ = std::move(*next_);
      work_.advance();
      threads_.begin([this](size_t tower) { compute(towers_[tower]); });
      take(report_.rounds + 1 < until.steps);
      wait();
      try {
        report_.updates += apply() ? 1 : 0;
      } catch (...) {
        if (!failed_) failed_ = Failed{std::nullopt, report_.rounds};
        throw;
      }
      count();
      if (until.duration_ns >= 0 && Clock::now() - began_ >= Clock::duration(until.duration_ns)) {
        break;
      }
      if (until.enough && until.enough(report())) break;
    }
    if (feed_error_ != nullptr) fail(std::nullopt, std::exchange(feed_error_, nullptr));
  }

  TowersReport report() const {
    TowersReport report = report_;
    report.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    if (loss_weight_ > 0) report.loss = loss_sum_ / loss_weight_;
    for (const Tower& tower : towers_) report.copied_bytes += tower.copied_;
    return report;
  }

 private:
  [[noreturn]] void fail(std::optional<size_t> tower, std::exception_ptr error) {
    failed_ = Failed{tower, report_.rounds};
    std::rethrow_exception(std::move(error));
  }

  void wait() {
    if (auto failure = threads_.wait()) fail(failure->number, std::move(failure->error));
  }

  // Takes the next round. Keeps an exception from the feed: the round before it is finished first.
  void take(bool wanted) {
    next_.reset();
    if (!wanted) return;
    try {
      next_ = work_.take();
      if (next_) check(*next_);
    } catch (...) {
      next_.reset();
      feed_error_ = std::current_exception();
    }
  }

  static void check(const Work::Weights& weights) {
    double most = 0;
    for (const std::optional<double>& weight : weights) {
      if (!weight) continue;
      if (!std::isfinite(*weight) || *weight < 0) {
        throw refuse_towers("the weight of a batch is " + std::to_string(*weight));
      }
      most = std::max(most, *weight);
    }
    if (most == 0) throw refuse_towers("all batches of a round have weight 0");
  }

  void compute(Tower& tower) {
    const std::optional<double>& weight = weights_[tower.number()];
    losses_[tower.number()].reset();
    tower.weight_ = weight.value_or(0);
    if (weight) losses_[tower.number()] = work_.compute(tower);
  }

  // False: no update was applied.
  bool apply() {
    if (updater_ == nullptr) {
      std::vector<double> weights;
      for (const Tower& tower : towers_) weights.push_back(tower.weight_);
      return work_.apply(weights);
    }
    double largest = 0, sum = 0;
    for (const Tower& tower : towers_) {
      largest = std::max(largest, tower.weight_);
      sum += tower.weight_;
    }
    shares_.clear();
    for (const Tower& tower : towers_) {
      shares_.push_back(
          static_cast<float>(tower.weight_ / largest));  // 1 where all weights are equal
    }
    const double scale = largest / sum;
    if (gives_rows()) return apply_rows(scale);
    slabs_.clear();
    for (const Tower& tower : towers_) slabs_.push_back(tower.gradients());
    const size_t floats = slabs_[0].layout().floats(), count = towers_.size();
    if (floats < kFloatsPerThread || count == 1) {
      add_towers(slabs_, shares_, 0, floats);
    } else {
      threads_.begin([this, floats, count](size_t tower) {
        add_towers(slabs_, shares_, floats * tower / count, floats * (tower + 1) / count);
      });
      wait();
    }
    const bool applied = updater_->apply(slabs_[0], scale);
    slabs_[0].zero();
    return applied;
  }

  bool gives_rows() const {
    size_t with = 0, without = 0;
    for (size_t tower = 0; tower < towers_.size(); ++tower) {
      if (weights_[tower]) ++(towers_[tower].gives_rows_ ? with : without);
    }
    if (with > 0 && without > 0) {
      throw refuse_towers("a round has rows and whole gradients; steps give one of the two");
    }
    return with > 0;
  }

  // One update of all blocks of which towers gave rows. Without rows there is no update.
  bool apply_rows(double scale) {
    std::vector<Tower::Rows> all;
    for (size_t tower = 0; tower < towers_.size(); ++tower) {
      for (const Tower::Rows& given : rows_of_tower(tower)) {
        auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Tower::Rows& r) { return r.block == given.block; });
        if (found == all.end()) found = all.insert(all.end(), Tower::Rows{given.block, {}, {}});
        found->rows.insert(found->rows.end(), given.rows.begin(), given.rows.end());
        for (const float value : given.values) found->values.push_back(value * shares_[tower]);
      }
    }
    bool applied = false;
    try {
      applied = !all.empty() && updater_->apply_parts(parts_of(all), scale);
    } catch (...) {
      find_refused_tower();
      throw;
    }
    for (Tower& tower : towers_) tower.clear();
    return applied;
  }

  std::span<const Tower::Rows> rows_of_tower(size_t tower) const {
    return std::span(towers_[tower].rows_).first(towers_[tower].used_);
  }

  static std::vector<GradientPart> parts_of(std::span<const Tower::Rows> all) {
    std::vector<GradientPart> parts;
    for (const Tower::Rows& rows : all) parts.push_back({rows.block, rows.values, true, rows.rows});
    return parts;
  }

  // The update refused the rows: finds the first tower whose own rows it refuses.
  void find_refused_tower() {
    for (size_t tower = 0; tower < towers_.size() && !failed_; ++tower) {
      try {
        updater_->check(parts_of(rows_of_tower(tower)));
      } catch (const Error&) {
        failed_ = Failed{tower, report_.rounds};
      }
    }
  }

  void count() {
    ++report_.rounds;
    double loss = 0, weight = 0;
    for (size_t tower = 0; tower < towers_.size(); ++tower) {
      if (!weights_[tower]) continue;
      ++report_.batches;
      ++towers_[tower].step_;
      // A part of weight 0 may have a loss of NaN.
      if (!losses_[tower] || *weights_[tower] == 0) continue;
      loss += *losses_[tower] * *weights_[tower];
      weight += *weights_[tower];
    }
    loss_sum_ += loss;
    loss_weight_ += weight;
    report_.last_loss = weight > 0 ? loss / weight : std::numeric_limits<double>::quiet_NaN();
  }

  std::vector<Tower>& towers_;
  Updater* const updater_;
  std::optional<Failed>& failed_;
  Work& work_;

  Work::Weights weights_;              // of the current round
  std::optional<Work::Weights> next_;  // of the next round
  std::exception_ptr feed_error_;      // thrown by the feed instead
  std::vector<std::optional<double>> losses_;
  std::vector<Slab> slabs_;
  std::vector<float> shares_;

  TowersReport report_;
  double loss_sum_ = 0, loss_weight_ = 0;
  const Clock::time_point began_;
  ThreadGroup threads_;  // last: its threads use the members above
};

Towers::Towers(Updater& updater, size_t towers, Options options)
    : updater_(&updater), options_(std::move(options)) {
  if (towers == 0) throw refuse_towers("give 1 tower or more");
  towers_.reserve(towers);  // steps refer to them
  for (size_t number = 0; number < towers; ++number) {
    towers_.emplace_back(updater.parameters(), updater.parameters().gradients(), number);
  }
}

Towers::Towers(Updater& updater, std::vector<Slab> gradients) : updater_(&updater), options_() {
  if (gradients.empty()) throw refuse_towers("give 1 tower or more");
  towers_.reserve(gradients.size());
  for (Slab& slab : gradients) {
    towers_.emplace_back(updater.parameters(), std::move(slab), towers_.size());
  }
}

Towers::Towers(size_t towers) : updater_(nullptr), options_() {
  if (towers == 0) throw refuse_towers("give 1 tower or more");
  for (size_t number = 0; number < towers; ++number) towers_.emplace_back(number);
}

bool Towers::Work::apply(std::span<const double> /*weights*/) {
  throw refuse_towers("these towers have no updater, and this Work does not apply updates");
}

TowersReport Towers::run(Rounds feed, const MakeStep& make, const Until& until) {
  Examples work(options_, std::move(feed), make, towers_.size(), until.epochs);
  return run(work, until, {});
}

TowersReport Towers::run(Work& work, const Until& until, Threading threading) {
  failed_.reset();
  Run run(*this, work, std::move(threading));
  run.run_rounds(until);
  return run.report();
}

}  // namespace penstock::train
