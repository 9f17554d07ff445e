#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/cache/cached_rows.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/losses.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

class Cache : public Indexed {
 public:
  Cache(IndexedRef input, RowStore keeping)
      : input_(std::move(input)), keeping_(std::move(keeping)) {}

  uint64_t length(uint64_t base) const override { return input_->length(base); }
  SpecRef spec() const override { return input_->spec(); }
  bool costly() const override { return input_->costly(); }
  bool python() const override { return input_->python(); }
  Decision decision() const override { return input_->decision(); }
  std::string origin(const Context& context, const At& at, uint64_t position) const override {
    return input_->origin(context, {0, at.base}, position);
  }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const Cache& cache, Context& context)
        : context_(context),
          keeping_(cache.keeping_),
          spec_(cache.spec()),
          input_(cache.input_->open(below(context))),
          made_(context.scratch) {}

    void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out,
               uint32_t row) override {
      // After a shard was re-entered (At::base), the same positions have other elements.
      if (at.base != 0) return input_->fetch({0, at.base}, positions, out, row);
      const auto count = static_cast<uint32_t>(positions.size());
      try {
        if (kept_ == nullptr) kept_ = keeping_.rows(context_);
      } catch (const Error&) {
        for (uint32_t i = 0; i < count; ++i) fail(positions[i], out, row + i, true);
        return;
      }
      const uint64_t there = kept_->look(positions);
      for (uint32_t i = 0; i < count;) {
        if ((there >> i & 1) != 0) {
          give(i, positions[i], out, row + i);
          ++i;
          continue;
        }
        uint32_t end = i + 1;
        while (end < count && (there >> end & 1) == 0) ++end;
        make(positions.subspan(i, end - i), out, row + i);
        i = end;
      }
    }

   private:
    // Fails a row with the current exception. `raise`: the error is not the element's own, so no
    // policy may skip it.
    static void fail(uint64_t position, Chunk& out, uint32_t row, bool raise) {
      Failure failure{"cache()", position, std::current_exception()};
      if (raise) failure.decision = Decision::kRaise;
      out.fail(row, std::move(failure));
    }

    void give(uint32_t i, uint64_t position, Chunk& out, uint32_t row) {
      try {
        kept_->give(i, out, row);
      } catch (const Error& error) {
        fail(position, out, row, error.code() == Code::kOutOfMemory);
      }
    }

    // Rows have the same places in `made_` as in `out`, since the calls of user functions are
    // tracked by row. A mixed chunk is made again element by element, since a cached element must
    // not depend on the others of its chunk.
    void make(std::span<const uint64_t> positions, Chunk& out, uint32_t row) {
      made_.reset(spec_, static_cast<uint32_t>(row + positions.size()));
      input_->fetch({0, 0}, positions, made_, row);
      if (made_.mixed() && positions.size() > 1) {
        for (uint32_t i = 0; i < positions.size(); ++i) make(positions.subspan(i, 1), out, row + i);
        return;
      }
      for (auto& [lost, failure] : made_.failures()) out.fail(lost, std::move(failure));
      made_.failures().clear();
      for (uint32_t i = 0; i < positions.size(); ++i) {
        if ((made_.alive() >> (row + i) & 1) == 0) continue;
        try {
          if (made_.sure(row + i)) kept_->keep(positions[i], made_, row + i);
        } catch (const Error&) {
          fail(positions[i], out, row + i, true);
          continue;
        }
        forward(positions[i], out, row + i);
      }
      out.keep_owners_of(made_);
    }

    void forward(uint64_t position, Chunk& out, uint32_t row) {
      try {
        pass_row(made_, row, out, row);
      } catch (const Error& error) {
        if (error.code() != Code::kInvalidArgument) throw;
        fail(position, out, row, false);
      }
    }

    // In a plan that a function opened, no ticket updates the context, so the input may get a copy
    // with the cache's own seed.
    Context& below(Context& context) {
      if (!context.build_seed) return context;
      inner_.emplace(context).seed = keeping_.seed(context);
      return *inner_;
    }

    Context& context_;
    std::optional<Context> inner_;
    const RowStore& keeping_;
    SpecRef spec_;
    std::unique_ptr<IndexedReader> input_;
    std::unique_ptr<CachedRows> kept_;
    Chunk made_;
  };

  IndexedRef input_;
  RowStore keeping_;
};

class CacheStream : public StreamMapped {
 public:
  CacheStream(StreamedRef input, RowStore keeping)
      : StreamMapped(std::move(input)), keeping_(std::move(keeping)) {}

  std::optional<uint64_t> length() const override { return input()->length(); }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const CacheStream& stage, Context& context)
        : spec_(stage.spec()),
          own_(below(context, stage.keeping_, scratch_)),
          input_(stage.input()->open(own_)),
          passed_(scratch_),
          kept_context_(context.over(kept_scratch_)),
          kept_(stage.keeping_.rows(kept_context_)) {}

    void begin(uint64_t) override {
      next_ = 0;
      over_ = false;
    }

    uint32_t next(uint32_t most, Chunk& out) override {
      if (over_) return 0;
      std::array<uint64_t, Chunk::kRows> positions;
      std::iota(positions.begin(), positions.begin() + most, next_);
      kept_scratch_.empty();
      const uint64_t there = kept_->look(std::span(positions.data(), most));
      if ((there & 1) != 0) {
        return give_kept(std::min<uint32_t>(most, static_cast<uint32_t>(std::countr_one(there))),
                         out);
      }
      if (kept_->end() == next_) return give_trailing_losses(out);
      if (!go_to(next_)) return 0;
      scratch_.empty();
      // Stops before the next cached element, which has the losses before it noted.
      const auto missing = static_cast<uint32_t>(std::countr_zero(there));
      const uint32_t count = pull(std::min(most, missing), out);
      if (count == 0) {
        over();
        return 0;
      }
      keep(out, count);
      next_ = place_;
      over_ = out.left_out(0);  // the row only has the losses after the last element
      if (over_) over();
      return count;
    }

    State save() const override {
      State state = {{"index", next_}};
      if (over_) state["over"] = true;
      return state;
    }
    void load(uint64_t, const State& state) override {
      next_ = count_in(state, "index");
      over_ = state.contains("over");
      if (kept_->end().value_or(next_) < next_) {
        throw Error(Code::kInvalidArgument, "restore", "the state is beyond the end of the cache");
      }
    }

   private:
    static Context below(const Context& context, const RowStore& keeping, Scratch& scratch) {
      Context own = context.over(scratch);
      own.seed = keeping.seed(context);
      return own;
    }

    // Gives the first `count` of the positions passed to look().
    uint32_t give_kept(uint32_t count, Chunk& out) {
      out.reset(spec_, count);
      for (uint32_t row = 0; row < count; ++row) {
        try {
          kept_->give(row, out, row);
        } catch (const Error& error) {
          if (error.code() == Code::kOutOfMemory) throw;
          out.fail(row, {"cache()", next_ + row, std::current_exception()});
        }
      }
      next_ += count;
      return count;
    }

    uint32_t give_trailing_losses(Chunk& out) {
      over_ = true;
      out.reset(nullptr, 1);
      try {
        std::vector<Failure> lost = kept_->trailing_losses();
        if (lost.empty()) return 0;
        out.lose(0, std::move(lost));
      } catch (const Error& error) {
        if (error.code() == Code::kOutOfMemory) throw;
        out.fail(0, {"cache()", next_, std::current_exception()});
      }
      return 1;
    }

    // The position of an input that threw is unknown, so the input begins again.
    uint32_t pull(uint32_t most, Chunk& out) {
      try {
        return input_->next(most, out);
      } catch (...) {
        begun_ = false;
        throw;
      }
    }

    // Moves the input to an element, from its front if it is already beyond. False: the input ends
    // before.
    bool go_to(uint64_t index) {
      if (!begun_ || place_ > index) {
        begun_ = false;
        input_->begin(0);
        begun_ = true;
        sure_ = true;
        trailing_losses_.clear();
        place_ = 0;
      }
      while (place_ < index) {
        own_.check_open();
        scratch_.empty();
        const auto most = static_cast<uint32_t>(std::min<uint64_t>(Chunk::kRows, index - place_));
        const uint32_t count = pull(most, passed_);
        if (count == 0) {
          over();
          return false;
        }
        keep(passed_, count);
      }
      return true;
    }

    // Stops keeping at the first row that failed or is provisional. In another pass that row may be
    // there or be left out, which changes the positions of all later rows and of the end.
    void keep(const Chunk& rows, uint32_t count) {
      try {
        for (uint32_t row = 0; row < count; ++row) {
          sure_ = sure_ && rows.sure(row);
          if (rows.left_out(row)) {
            trailing_losses_ = text_of_losses(rows, row);
            continue;
          }
          sure_ = sure_ && (rows.alive() >> row & 1) != 0;
          if (sure_) kept_->keep(place_, rows, row);
          ++place_;
        }
      } catch (...) {
        begun_ = false;  // the input is past these rows, but place_ is not
        throw;
      }
    }

    void over() {
      begun_ = false;     // an input that ended must not be read again
      own_.check_open();  // throws if closing cut the input short
      if (sure_) kept_->set_end(place_, trailing_losses_);
    }

    SpecRef spec_;
    Scratch scratch_;  // of the input; emptied with each of its chunks
    Context own_;
    std::unique_ptr<ElementReader> input_;
    Chunk passed_;
    Scratch kept_scratch_;  // of cached elements, until the next chunk
    Context kept_context_;
    std::unique_ptr<CachedRows> kept_;
    uint64_t next_ = 0;   // the next element to give
    uint64_t place_ = 0;  // the input's position
    bool begun_ = false;
    bool sure_ = true;             // all rows so far would have the same positions in another pass
    std::string trailing_losses_;  // losses after the input's last element, as text_of_losses
    bool over_ = false;            // the losses after the last element were given
  };

  RowStore keeping_;
};

// The titles of all stages, inputs before the stages that read them.
void name_stages(const Node& node, std::vector<std::string>& names) {
  for (const Node::Ref& input : node.inputs) name_stages(*input, names);
  names.push_back(node.identity.empty() ? node.title : node.identity);
}

// Makes the store for a number of positions (nullopt: a stream). `attached`: the plan is attached
// to an existing store.
using MakeKeeping = std::function<RowStore(std::optional<uint64_t> positions, bool attached)>;

// `path`: "": in memory.
Node::Ref cached(Node::Ref input, std::string path, MakeKeeping make_keeping) {
  return make_node({
      .title = "cache()",
      .inputs = {std::move(input)},
      .build = [path = std::move(path), make_keeping = std::move(make_keeping)](
                   std::vector<Built> inputs, Builder& builder) -> Built {
        std::optional<uint64_t> positions;
        if (inputs[0].stream == nullptr) {
          positions = inputs[0].indexed->length(0);
          if (!path.empty() && *positions == kEndless) {
            throw Error(Code::kInvalidArgument, "cache",
                        path + " would have no end: take(n) of it");
          }
        }
        RowStore keeping = make_keeping(positions, builder.given());
        builder.add_cache(keeping.store);
        if (inputs[0].stream == nullptr) {
          return {std::make_shared<Cache>(inputs[0].indexed, std::move(keeping))};
        }
        return Built::of(
            std::make_shared<CacheStream>(builder.as_stream(inputs[0]), std::move(keeping)));
      },
      // Not sure: another feed of the same cache may keep elements that an on_error after the cache
      // leaves out.
      .policy_before =
          [](const FailurePolicy& here) {
            return FailurePolicy{here.skip, here.feed_skips, false, here.by_feed};
          },
  });
}

}  // namespace

Node::Ref nodes::cache(Node::Ref input, uint64_t max_bytes) {
  CacheStore(max_bytes, 0);  // throws if max_bytes is too small
  return cached(std::move(input), "", [max_bytes](std::optional<uint64_t> positions, bool) {
    return memory_store(std::make_shared<CacheStore>(max_bytes, positions));
  });
}

Node::Ref nodes::cache(Node::Ref input, std::string path) {
  if (path.empty()) throw Error(Code::kInvalidArgument, "cache", "the path is empty");
  return cached(input, path, [input, path](std::optional<uint64_t> positions, bool attached) {
    std::vector<std::string> plan;
    name_stages(*input, plan);
    auto store = attached ? std::make_shared<SnapshotStore>(path, std::move(plan), positions,
                                                            SnapshotStore::Attached())
                          : std::make_shared<SnapshotStore>(path, std::move(plan), positions);
    return file_store(std::move(store), path);
  });
}

}  // namespace penstock
