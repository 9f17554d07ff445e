#include "penstock/train/towers.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/train/tower_average.h"
#include "penstock/train/tower_crew.h"

namespace penstock::train {
namespace {

using Clock = std::chrono::steady_clock;

// Below this many floats a thread more costs more than it adds up.
constexpr size_t kWorthAThread = size_t{1} << 19;

Error refuse_towers(const std::string& why) { return Error(Code::kInvalidArgument, "Towers", why); }

// The name of the leaf whose rows these are the offsets of; empty: they are no offsets.
std::optional<std::string_view> of_offsets(const Example& batch, std::string_view name) {
  constexpr std::string_view kOffsets = "offsets";
  if (name.size() < kOffsets.size() || !name.ends_with(kOffsets)) return std::nullopt;
  name.remove_suffix(kOffsets.size());
  if (name.ends_with('/')) name.remove_suffix(1);
  return batch.find(name) != nullptr ? std::optional(name) : std::nullopt;
}

// How many rows all leaves of a batch have. A ragged one has one offset more than rows.
double rows_of(const Example& batch) {
  const char* remedy = ", or say what it counts for: Options::weigh";
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

// What one run does between its rounds, on run()'s thread while no tower works; and the jobs.
class Towers::Run {
 public:
  Run(Towers& of, Rounds feed, const MakeStep& make)
      : towers_(of.towers_),
        updater_(of.updater_),
        options_(of.options_),
        make_(make),
        feed_(std::move(feed)),
        applied_(of.updater_.step()),
        steps_(towers_.size()),
        losses_(towers_.size()),
        began_(Clock::now()),
        crew_(towers_.size()) {
    for (Tower& tower : towers_) {  // of a round that failed
      tower.gradients_.zero();
      tower.clear();
      tower.copied_ = 0;
    }
  }

  void go(const Until& until, std::optional<Failed>& failed) {
    feed_.begin(towers_.size(), until.epochs);
    const auto throw_failed = [&](std::optional<size_t> tower, std::exception_ptr error) {
      failed = Failed{tower, report_.rounds};
      std::rethrow_exception(std::move(error));
    };
    const auto wait = [&] {
      if (auto failure = crew_.wait()) throw_failed(failure->tower, std::move(failure->error));
    };
    crew_.begin([this](size_t tower) { steps_[tower] = make_(towers_[tower]); });
    take(until.steps > 0);
    wait();
    while (next_) {
      now_ = std::move(*next_);
      crew_.begin([this](size_t tower) { compute(tower); });
      take(report_.rounds + 1 < until.steps);
      wait();
      try {
        apply(wait);
      } catch (...) {
        if (!failed) failed = Failed{std::nullopt, report_.rounds};
        throw;
      }
      count();
      if (until.duration_ns >= 0 && Clock::now() - began_ >= Clock::duration(until.duration_ns)) {
        break;
      }
      if (until.enough && until.enough(report())) break;
    }
    if (taking_ != nullptr) throw_failed(std::nullopt, std::exchange(taking_, nullptr));
  }

  TowersReport report() const {
    TowersReport report = report_;
    report.updates = updater_.step() - applied_;
    report.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    if (loss_weight_ > 0) report.loss = loss_sum_ / loss_weight_;
    for (const Tower& tower : towers_) report.copied_bytes += tower.copied_;
    return report;
  }

 private:
  struct Round {
    Rounds::Batches batches;
    std::vector<double> weights;  // 0 where there is no batch
  };

  // The next round, and what the feed threw: the round before it is still to be finished.
  void take(bool wanted) {
    next_.reset();
    if (!wanted) return;
    try {
      next_ = taken();
    } catch (...) {
      taking_ = std::current_exception();
    }
  }

  std::optional<Round> taken() {
    std::optional<Rounds::Batches> batches = feed_.next();
    if (!batches) return std::nullopt;
    Round round{std::move(*batches), std::vector<double>(towers_.size())};
    for (size_t tower = 0; tower < towers_.size(); ++tower) {
      std::optional<Example>& batch = round.batches[tower];
      if (!batch) continue;
      const double weight = options_.weigh ? options_.weigh(*batch) : rows_of(*batch);
      if (!std::isfinite(weight) || weight < 0) {
        throw refuse_towers("the weight of a batch is " + std::to_string(weight));
      }
      round.weights[tower] = weight;
      if (options_.stage) batch = options_.stage(tower, std::move(*batch));
    }
    if (*std::max_element(round.weights.begin(), round.weights.end()) == 0) {
      throw refuse_towers("all batches of a round have weight 0");
    }
    return round;
  }

  void compute(size_t tower) {
    losses_[tower].reset();
    if (!now_.batches[tower]) return;
    Example batch = std::move(*now_.batches[tower]);
    losses_[tower] = steps_[tower](batch);
  }

  template <typename Wait>
  void apply(const Wait& wait) {
    const double largest = *std::max_element(now_.weights.begin(), now_.weights.end());
    double sum = 0;
    shares_.clear();
    for (const double weight : now_.weights) {
      shares_.push_back(static_cast<float>(weight / largest));  // 1 where all are alike
      sum += weight;
    }
    const double scale = largest / sum;
    if (has_rows()) return apply_rows(scale);
    slabs_.clear();
    for (const Tower& tower : towers_) slabs_.push_back(tower.gradients_);
    const size_t floats = slabs_[0].layout().floats(), count = towers_.size();
    if (floats < kWorthAThread || count == 1) {
      add_towers(slabs_, shares_, 0, floats);
    } else {
      crew_.begin([this, floats, count](size_t tower) {
        add_towers(slabs_, shares_, floats * tower / count, floats * (tower + 1) / count);
      });
      wait();
    }
    updater_.apply(slabs_[0], scale);
    slabs_[0].zero();
  }

  bool has_rows() const {
    size_t with = 0, without = 0;
    for (size_t tower = 0; tower < towers_.size(); ++tower) {
      if (now_.batches[tower]) ++(towers_[tower].used_ > 0 ? with : without);
    }
    if (with > 0 && without > 0) {
      throw refuse_towers("a round has rows and whole gradients; steps leave one of the two");
    }
    return with > 0;
  }

  // Blocks in the order in which towers gave them, the first tower's first.
  void apply_rows(double scale) {
    std::vector<Tower::Rows> all;
    for (size_t tower = 0; tower < towers_.size(); ++tower) {
      for (size_t i = 0; i < towers_[tower].used_ && shares_[tower] > 0; ++i) {
        const Tower::Rows& given = towers_[tower].rows_[i];
        auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Tower::Rows& r) { return r.block == given.block; });
        if (found == all.end()) found = all.insert(all.end(), Tower::Rows{given.block, {}, {}});
        found->rows.insert(found->rows.end(), given.rows.begin(), given.rows.end());
        for (const float value : given.values) found->values.push_back(value * shares_[tower]);
      }
      towers_[tower].clear();
    }
    std::vector<GradientPart> parts;
    for (const Tower::Rows& rows : all) parts.push_back({rows.block, rows.values, true, rows.rows});
    updater_.apply_parts(parts, scale);
  }

  void count() {
    ++report_.rounds;
    double loss = 0, weight = 0;
    for (size_t tower = 0; tower < towers_.size(); ++tower) {
      if (!now_.batches[tower]) continue;
      ++report_.batches;
      ++towers_[tower].step_;
      // A part that weighs nothing may have no loss that is a number.
      if (!losses_[tower] || now_.weights[tower] == 0) continue;
      loss += *losses_[tower] * now_.weights[tower];
      weight += now_.weights[tower];
    }
    loss_sum_ += loss;
    loss_weight_ += weight;
    report_.last_loss = weight > 0 ? loss / weight : std::numeric_limits<double>::quiet_NaN();
  }

  std::vector<Tower>& towers_;
  Updater& updater_;
  const Options& options_;
  const MakeStep& make_;
  Rounds feed_;
  const uint64_t applied_;

  std::vector<Step> steps_;
  Round now_;                  // a batch is moved out of it by its tower
  std::optional<Round> next_;  // staged
  std::exception_ptr taking_;  // what the feed threw instead
  std::vector<std::optional<double>> losses_;
  std::vector<Slab> slabs_;
  std::vector<float> shares_;

  TowersReport report_;
  double loss_sum_ = 0, loss_weight_ = 0;
  const Clock::time_point began_;
  TowerCrew crew_;  // the last: its threads use the others
};

Towers::Towers(Updater& updater, size_t towers, Options options)
    : updater_(updater), options_(std::move(options)) {
  if (towers == 0) throw refuse_towers("give 1 tower or more");
  towers_.reserve(towers);  // steps refer to them
  for (size_t number = 0; number < towers; ++number) {
    towers_.emplace_back(updater.parameters(), number);
  }
}

TowersReport Towers::run(Rounds feed, const MakeStep& make, const Until& until) {
  failed_.reset();
  Run run(*this, std::move(feed), make);
  run.go(until, failed_);
  return run.report();
}

}  // namespace penstock::train
