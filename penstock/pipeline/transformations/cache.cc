#include "penstock/pipeline/transformations/cache.h"

#include <optional>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/builder.h"
#include "penstock/pipeline/cache/kept_rows.h"
#include "penstock/pipeline/stages/schema_checker.h"

namespace penstock {
namespace {

class Cache : public Indexed {
 public:
  Cache(IndexedRef input, Keeping keeping)
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
      // A shard that is entered anew (At::base) deals out other elements at the same positions.
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
    // By what was thrown. `raise`: it is no matter of this element, so that none is passed over.
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

    // Rows of `made_` are at the same places as `out`'s, for whoever watches over them. What is
    // kept of an element depends on nothing that was made together with it.
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
        hand_on(positions[i], out, row + i);
      }
      out.keep_all(made_);
    }

    void hand_on(uint64_t position, Chunk& out, uint32_t row) {
      try {
        pass_row(made_, row, out, row);
      } catch (const Error& error) {
        if (error.code() != Code::kInvalidArgument) throw;
        fail(position, out, row, false);
      }
    }

    // Of a plan that a function opened there is no ticket that the context would have to follow.
    Context& below(Context& context) {
      if (!context.build_seed) return context;
      inner_.emplace(context).seed = keeping_.seed(context);
      return *inner_;
    }

    Context& context_;
    std::optional<Context> inner_;
    const Keeping& keeping_;
    SpecRef spec_;
    std::unique_ptr<IndexedReader> input_;
    std::unique_ptr<KeptRows> kept_;
    Chunk made_;
  };

  IndexedRef input_;
  Keeping keeping_;
};

// Inputs first.
void name_stages(const Node& node, std::vector<std::string>& names) {
  for (const Node::Ref& input : node.inputs()) name_stages(*input, names);
  names.push_back(node.identity());
}

}  // namespace

CacheNode::CacheNode(Ref input, uint64_t max_bytes)
    : Node({std::move(input)}), max_bytes_(max_bytes) {
  CacheStore(max_bytes, 0);  // or it refuses
}

CacheNode::CacheNode(Ref input, std::string path)
    : Node({std::move(input)}), path_(std::move(path)) {
  if (path_.empty()) throw Error(Code::kInvalidArgument, "cache", "the path is empty");
}

Keeping CacheNode::keeping(std::optional<uint64_t> positions, bool attached) const {
  if (path_.empty()) {
    return keep_in_memory(std::make_shared<CacheStore>(max_bytes_, positions));
  }
  std::vector<std::string> plan;
  name_stages(*inputs()[0], plan);
  if (attached) {
    return keep_in_file(std::make_shared<SnapshotStore>(path_, std::move(plan), positions,
                                                        SnapshotStore::Attached()),
                        path_);
  }
  return keep_in_file(std::make_shared<SnapshotStore>(path_, std::move(plan), positions), path_);
}

Built CacheNode::build(std::vector<Built> inputs, Builder& builder) const {
  std::optional<uint64_t> positions;
  if (inputs[0].stream == nullptr) {
    positions = inputs[0].indexed->length(0);
    if (!path_.empty() && *positions == kEndless) {
      throw Error(Code::kInvalidArgument, "cache", path_ + " would have no end: take(n) of it");
    }
  }
  Keeping keeping = this->keeping(positions, builder.told());
  builder.add_cache(keeping.store);
  if (inputs[0].stream == nullptr) {
    return {std::make_shared<Cache>(inputs[0].indexed, std::move(keeping))};
  }
  return Built::of(cached_stream(builder.as_stream(inputs[0]), std::move(keeping)));
}

}  // namespace penstock
