#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "penstock/base/json.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/streams/mapped_input.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

struct Hash {
  uint64_t low = 0, high = 0;
  bool operator==(const Hash&) const = default;
};

uint64_t mixed(uint64_t k) {
  k = (k ^ k >> 33) * 0xff51afd7ed558ccd;
  k = (k ^ k >> 33) * 0xc4ceb9fe1a85ec53;
  return k ^ k >> 33;
}

// MurmurHash3_x64_128 (Austin Appleby, public domain), seeded with the hash so far.
Hash hashed(const void* data, size_t bytes, Hash seed) {
  constexpr uint64_t kFirst = 0x87c37b91114253d5, kSecond = 0x4cf5ad432745937f;
  const auto* at = static_cast<const unsigned char*>(data);
  auto [h1, h2] = seed;
  auto add = [&](uint64_t k1, uint64_t k2) {
    h1 ^= std::rotl(k1 * kFirst, 31) * kSecond;
    h1 = (std::rotl(h1, 27) + h2) * 5 + 0x52dce729;
    h2 ^= std::rotl(k2 * kSecond, 33) * kFirst;
    h2 = (std::rotl(h2, 31) + h1) * 5 + 0x38495ab5;
  };
  uint64_t words[2];
  size_t left = bytes;
  for (; left >= 16; left -= 16, at += 16) {
    std::memcpy(words, at, 16);
    add(words[0], words[1]);
  }
  if (left > 0) {
    words[0] = words[1] = 0;
    std::memcpy(words, at, left);
    add(words[0], words[1]);
  }
  h1 ^= bytes;
  h2 ^= bytes;
  h1 += h2;
  h2 += h1;
  h1 = mixed(h1);
  h2 = mixed(h2);
  h1 += h2;
  return {h1, h2 + h1};
}

Hash hash_of(const Chunk& made, uint32_t row) {
  Hash hash;
  for (size_t leaf = 0; leaf < made.spec()->leaves().size(); ++leaf) {
    std::span<const int64_t> shape = made.shape(leaf, row);
    const Leaf& of = made.spec()->leaves()[leaf];
    const std::array<std::byte, 2> type = {static_cast<std::byte>(of.kind),
                                           static_cast<std::byte>(of.dtype)};
    hash = hashed(type.data(), type.size(), hash);
    hash = hashed(shape.data(), shape.size_bytes(), hash);
    hash = hashed(made.at(leaf, row), made.bytes(leaf, row), hash);
  }
  return hash;
}

static_assert(sizeof(Hash) == sizeof(Summary));

class Unique : public Streamed {
 public:
  Unique(Builder::Carrying input, OpRef key, uint32_t operation, std::string title)
      : input_(std::move(input)),
        key_(std::move(key)),
        operation_(operation),
        title_(std::move(title)) {
    if (SpecRef seen = spec(); seen != nullptr && key_ != nullptr) (void)key_->result(*seen);
  }

  SpecRef spec() const override { return input_.spec(); }
  std::optional<uint64_t> length() const override {
    if (input_.stream->length() == uint64_t{0}) return 0;
    return std::nullopt;
  }
  bool python() const override {
    return (key_ != nullptr && key_->python()) || input_.stream->python();
  }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const Unique& stage, Context& context)
        : mapped_(*stage.input_.stream, stage.key_.get(), stage.input_.hidden, stage.operation_,
                  stage.title_, context) {}

    void begin(uint64_t epoch) override {
      mapped_.begin(epoch);
      seen_.clear();
      taken_ = behind_ = failed_ = 0;
    }
    uint32_t next(uint32_t most, Chunk& out) override {
      picked_.forget();  // left by a call that threw
      while (mapped_.more()) {
        while (input().left() > 0 && picked_.size() < most) {
          if (is_new()) {
            picked_.add(input());
            ++taken_;
            behind_ = 0;
          } else {
            picked_.drop(input());
            ++behind_;
          }
        }
        if (picked_.size() > 0) return picked_.give(input().spec(), out);
      }
      return 0;
    }
    void release() override { picked_.forget(); }
    State save() const override {
      State state = {{"taken", taken_}};
      if (behind_ != 0) state["behind_it"] = behind_;
      if (failed_ != 0) state["failed"] = failed_;
      return state;
    }
    void load(uint64_t epoch, const State& state) override {
      const uint64_t taken = count_in(state, "taken");
      const uint64_t behind = state.contains("behind_it") ? count_in(state, "behind_it") : 0;
      const uint64_t failed = state.contains("failed") ? count_in(state, "failed") : 0;
      begin(epoch);
      while (taken_ < taken || behind_ < behind) {
        if (!mapped_.more()) throw refuse_restore("the state is beyond its input's end");
        if (input().failed() && failed_ == failed) input().raise_failure();
        (is_new() ? taken_ : behind_) += 1;
        if (taken_ < taken) behind_ = 0;
        input().use();
      }
    }

   private:
    StreamInput& input() { return mapped_.input(); }

    // Whether the next element is new, or failed.
    bool is_new() {
      if (input().failed()) {
        ++failed_;
        return true;
      }
      const Hash hash = mapped_.hidden() ? std::bit_cast<Hash>(input().summary())
                                         : hash_of(mapped_.made(), input().row());
      return seen_.insert(hash).second;
    }

    struct Low {
      size_t operator()(const Hash& hash) const { return hash.low; }
    };
    MappedInput mapped_;
    PickedRows picked_;
    std::unordered_set<Hash, Low> seen_;
    uint64_t taken_ = 0, behind_ = 0;  // new elements; duplicates since the last new one
    uint64_t failed_ = 0;              // new elements that failed
  };

  Builder::Carrying input_;
  OpRef key_;
  uint32_t operation_;
  std::string title_;
};

}  // namespace

Node::Ref nodes::unique(Node::Ref input, OpRef key) {
  return make_node({
      .title = key == nullptr ? "unique()" : "unique(" + key->title() + ")",
      .inputs = {std::move(input)},
      .build =
          [key](std::vector<Built> inputs, Builder& builder) {
            const uint32_t operation = key == nullptr ? 0 : builder.operation();
            Builder::Carrying carrying = builder.as_stream_with(
                inputs[0], key,
                [](const Chunk& made, uint32_t row) {
                  return std::bit_cast<Summary>(hash_of(made, row));
                },
                operation, builder.title());
            return Built::of(
                std::make_shared<Unique>(std::move(carrying), key, operation, builder.title()));
          },
  });
}

}  // namespace penstock
