#include <memory>
#include <string>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/pipeline/cache/cached_rows.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

class SnapshotIndexed : public Indexed {
 public:
  SnapshotIndexed(std::shared_ptr<SnapshotStore> store, std::string title)
      : store_(std::move(store)), title_(std::move(title)), length_(store_->end().value_or(0)) {
    const auto spec = store_->only_spec();
    if (spec && length_ > 0) {
      spec_ = std::make_shared<ElementSpec>(store_->spec(*spec));
      check(*spec);
    }
  }

  uint64_t length(uint64_t) const override { return length_; }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return false; }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const SnapshotIndexed& of, Context& context)
        : title_(of.title_), rows_(rows_of(of.store_, context)) {}

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      rows_->look(positions);
      for (uint32_t i = 0; i < positions.size(); ++i) {
        try {
          rows_->give(i, out, row + i);
          (void)out.take_notes(row + i);  // losses of the plan that wrote the snapshot
        } catch (const Error&) {
          out.fail(row + i, {title_, positions[i], std::current_exception()});
        }
      }
    }

   private:
    const std::string& title_;
    std::unique_ptr<CachedRows> rows_;
  };

  // Batches reserve memory by the spec alone, so a damaged spec must not ask for more than the
  // record has.
  void check(uint64_t place) const {
    const uint64_t record = store_->find(0).value().bytes();
    try {
      if (BlockLayout(*spec_, 1).known_bytes() <= record) return;
    } catch (const Error&) {  // its sizes overflow
    }
    throw_corrupt_snapshot(store_->path(), place,
                           "by this spec elements are larger than its first one, of " +
                               std::to_string(record) + " bytes; " + store_->remedy());
  }

  std::shared_ptr<SnapshotStore> store_;
  std::string title_;
  uint64_t length_;
  SpecRef spec_;
};

}  // namespace

Node::Ref nodes::snapshot(std::string path) {
  // The folder is left out, so that a state restores after the file has moved.
  const std::string file = escape_invalid_utf8(path.substr(path.find_last_of('/') + 1));
  return make_node({
      .title = "snapshot(" + file + ")",
      .build = [path = std::move(path)](std::vector<Built>, Builder& builder) -> Built {
        auto store = builder.given()
                         ? std::make_shared<SnapshotStore>(path, SnapshotStore::Attached())
                         : std::make_shared<SnapshotStore>(path);
        builder.add_cache(store);
        return {std::make_shared<SnapshotIndexed>(std::move(store), builder.title())};
      },
  });
}

}  // namespace penstock
