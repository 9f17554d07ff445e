#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "penstock/pipeline/feed/feed.h"
#include "penstock/pipeline/stages/gather_parcel.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/stages/stage.h"
#include "penstock/pipeline/streams/section.h"

namespace penstock {

// Takes a section's elements in order, while workers make those behind them. The section's tickets
// are elements: of an indexed stage by their positions; of a stream with a tail those that were
// read ahead, each with the place before it, so that the place of the element given next is exact
// however far workers are. One thread, the cursor's; one reader to a section.
class SectionReader : public StreamReader, private Tickets {
 public:
  SectionReader(uint32_t number, SpecRef spec, const Context& context);
  ~SectionReader() override;

  void begin(uint64_t epoch) override;
  // What is there; at least one, which it waits for. Error kClosed: the board was closed.
  uint32_t next(uint32_t most, Chunk& out) override;
  void let_go() override;
  // {"index": i}, or {"ordinal": n, "state": the stream's}, and SchemaChecker's: as if nothing was
  // made ahead.
  State save() const override;
  void load(uint64_t epoch, const State& state) override;

 private:
  // What was read from the stream, in its order: an element, whose ticket is posted, or something
  // that takes an element's place.
  struct Read {
    State before;
    bool posted = false;
    std::vector<Failure> notes;      // of an element, lost on the way to it
    std::optional<Failure> failure;  // an element's
    std::exception_ptr thrown;       // it ended the stream
  };
  struct Taken {
    Block block;            // no rows: it failed
    uint64_t position = 0;  // of its ticket
    SectionResult result;
  };

  std::optional<uint64_t> steps(uint64_t epoch, uint64_t base) override;
  Described describe(const Position& at, Post& post) override;
  uint64_t input_bytes() const override;
  uint64_t spent_bytes() const override;
  uint32_t least() const override { return asked_ ? 1 : 0; }
  bool ready() override { return !read_.empty() && !read_.front().posted; }

  State place() const;
  uint64_t unknown() const;
  uint64_t each() const;
  bool empty() const;  // and there is something to make
  void count();
  Described read(Post& post);
  void wait();
  bool take_read();
  void take_ticket();
  SectionResult failure_of(Unit& unit, uint64_t position);
  void go_to(uint64_t epoch, uint64_t step);

  const Sections& sections_;
  SectionBudget& budget_;
  const Plan& plan_;
  Board& lane_;
  SpecRef spec_;
  SchemaChecker schema_;
  Feed feed_;
  uint64_t epoch_ = 0;
  uint64_t next_ = 0;  // the element that is given next, those that failed counted; indexed only
  bool begun_ = true;  // the feed was told to
  std::vector<Taken> taken_;  // what the last chunk has views of
  uint64_t taken_bytes_ = 0;  // of these
  uint64_t input_bytes_ = 0;  // of the largest parcel
  bool asked_ = false;        // for an element, and has taken none yet
  bool over_ = false;
  SpecRef told_;  // of the last element
  SectionBudget::Part part_;

  // Of a stream with a tail:
  Scratch scratch_;
  Context own_;
  std::unique_ptr<StreamReader> source_;
  std::optional<GatherParcel> gathered_;
  uint64_t ordinal_ = 0;  // of the element that is read next
  std::deque<Read> read_;
};

}  // namespace penstock
