#include "penstock/train/optimizer_text.h"

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"

namespace penstock::train {
namespace {

using Json = nlohmann::json;

// JSON has no infinity: null is one.
Json number(double value) { return value == Optimizer::kNone ? Json() : Json(value); }
double number(const Json& json) { return json.is_null() ? Optimizer::kNone : json.get<double>(); }

}  // namespace

std::string OptimizerText::of(const Optimizer& optimizer) {
  const Schedule& lr = optimizer.lr_;
  return Json{{"name", optimizer.name_},
              {"formula", static_cast<int>(optimizer.formula_)},
              {"lr",
               {{"kind", static_cast<int>(lr.kind_)},
                {"lr", lr.lr_},
                {"factor", lr.factor_},
                {"length", lr.length_},
                {"warmup", lr.warmup_},
                {"at", lr.at_}}},
              {"weight_decay", optimizer.common_.weight_decay},
              {"clip_value", number(optimizer.common_.clip_value)},
              {"clip_norm", number(optimizer.common_.clip_norm)},
              {"decoupled", optimizer.decoupled_},
              {"memory", optimizer.memory_},
              {"memory2", optimizer.memory2_},
              {"eps", optimizer.eps_},
              {"initial", static_cast<double>(optimizer.initial_)}}
      .dump();
}

Optimizer OptimizerText::read(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    const Json& rate = json.at("lr");
    Schedule lr(rate.at("lr").get<double>());
    const int kind = rate.at("kind").get<int>();
    const int formula = json.at("formula").get<int>();
    if (kind < 0 || kind > static_cast<int>(Schedule::Kind::kCosine) || formula < 0 ||
        formula > static_cast<int>(kernels::Formula::kAdam)) {
      throw Error(Code::kDataLoss, "optimizer", "no such formula");
    }
    lr.kind_ = static_cast<Schedule::Kind>(kind);
    rate.at("factor").get_to(lr.factor_);
    rate.at("length").get_to(lr.length_);
    rate.at("warmup").get_to(lr.warmup_);
    rate.at("at").get_to(lr.at_);
    Optimizer made(json.at("name").get<std::string>(), static_cast<kernels::Formula>(formula), lr,
                   {.weight_decay = json.at("weight_decay").get<double>(),
                    .clip_value = number(json.at("clip_value")),
                    .clip_norm = number(json.at("clip_norm"))});
    json.at("decoupled").get_to(made.decoupled_);
    json.at("memory").get_to(made.memory_);
    json.at("memory2").get_to(made.memory2_);
    json.at("eps").get_to(made.eps_);
    made.initial_ = static_cast<float>(json.at("initial").get<double>());
    return made;
  } catch (const Json::exception& error) {
    throw Error(Code::kDataLoss, "optimizer", error.what());
  }
}

}  // namespace penstock::train
