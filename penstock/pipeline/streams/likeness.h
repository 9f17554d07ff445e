#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "penstock/base/json.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// What the elements of a stream are where only they tell: like the first one, but for lengths. Part
// of the stream's state, so that the same elements fail wherever it is read from. One thread.
class Likeness {
 public:
  // `known`: that the stage says; then there is nothing to be told.
  explicit Likeness(const SpecRef& known) : known_(known != nullptr) {}

  // The next element is the first one.
  void begin();
  // Error kInvalidArgument: an element of that spec is not like those before it.
  void check(const SpecRef& spec);
  // As pass_row; a row that is not like those before it becomes one that failed, at that place.
  void pass(Chunk& in, uint32_t from, Chunk& out, uint32_t to, std::string_view stage,
            uint64_t position);

  // Sets member "alike" of a stage's state, where elements have told: the spec's bytes in base64.
  void save(State& state) const;
  // Error kInvalidArgument: it is none. A state without it is at the first element.
  void load(const State& state);

 private:
  const bool known_;
  std::optional<ElementSpec> alike_;
  SpecRef checked_;  // the last one
};

// Elements of an indexed stage on their way into a stream: as if each of them was made alone, as
// workers make them, and those fail that are not like the ones before them. One thread.
class AlikeRows {
 public:
  // `scratch` outlives it, as of the context that `stage` is opened in.
  AlikeRows(const Indexed& stage, Context& context);

  void begin() { likeness_.begin(); }
  // As IndexedReader::fetch.
  void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out, uint32_t row);
  void save(State& state) const { likeness_.save(state); }
  void load(const State& state) { likeness_.load(state); }

 private:
  void make(const At& at, std::span<const uint64_t> positions, uint32_t row);
  void hand_on(std::span<const uint64_t> positions, Chunk& out, uint32_t row);

  const SpecRef spec_;
  std::unique_ptr<IndexedReader> reader_;
  Chunk made_;
  Likeness likeness_;
};

}  // namespace penstock
