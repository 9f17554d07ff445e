#include "penstock/pipeline/parcel.h"

#include <cstring>

#include "penstock/base/error.h"

namespace penstock {
namespace {

struct ParcelHead {
  uint64_t kind, bytes, ordinal, rows, spec_bytes;
};

uint64_t block_at(uint64_t spec_bytes) { return (sizeof(ParcelHead) + spec_bytes + 63) / 64 * 64; }

class ParcelSource : public Indexed {
 public:
  explicit ParcelSource(SpecRef spec) : spec_(std::move(spec)) {}

  uint64_t length(uint64_t) const override { return kEndless; }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return false; }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    explicit Reader(Context& context) : context_(context) {}
    void fetch(const At&, std::span<const uint64_t> ordinals, Chunk& out, uint32_t row) override {
      const Parcel& parcel = *context_.parcel;
      if (!out.settle(parcel.block.spec())) {
        throw Error(Code::kInternal, "parcel", "elements of two specs in one chunk");
      }
      for (uint64_t ordinal : ordinals) parcel.block.view(ordinal - parcel.ordinal, out, row++);
    }

   private:
    Context& context_;
  };

  SpecRef spec_;
};

}  // namespace

uint64_t Parcel::bytes_of(const Collector& elements) {
  return block_at(elements.spec()->bytes().size()) + elements.layout(elements.rows()).bytes();
}

void Parcel::write(const Collector& elements, uint64_t ordinal, std::byte* to) {
  auto spec = elements.spec()->bytes();
  BlockLayout layout = elements.layout(elements.rows());
  ParcelHead head{kKind, bytes_of(elements), ordinal, elements.rows(), spec.size()};
  std::memcpy(to, &head, sizeof(head));
  std::memcpy(to + sizeof(head), spec.data(), spec.size());
  elements.write(layout, to + block_at(spec.size()));
}

uint64_t Parcel::put(const Collector& elements, uint64_t ordinal, Allocator& arena) {
  void* memory = arena.allocate(bytes_of(elements));
  if (memory == nullptr) {
    throw Error(Code::kOutOfMemory, "stream", "no room for the elements of a batch");
  }
  write(elements, ordinal, static_cast<std::byte*>(memory));
  return arena.region()->offset_of(memory);
}

Parcel Parcel::read(const std::byte* from) {
  ParcelHead head;
  std::memcpy(&head, from, sizeof(head));
  if (head.kind != kKind || head.spec_bytes > head.bytes ||
      block_at(head.spec_bytes) > head.bytes) {
    throw Error(Code::kInternal, "parcel", "a ticket without elements");
  }
  auto spec = std::make_shared<ElementSpec>(std::span(from + sizeof(head), head.spec_bytes));
  const uint64_t at = block_at(head.spec_bytes);
  return {head.ordinal, Block(std::move(spec), head.rows, const_cast<std::byte*>(from) + at,
                              head.bytes - at, nullptr)};
}

IndexedRef parcel_source(SpecRef spec) { return std::make_shared<ParcelSource>(std::move(spec)); }

bool is_parcel_source(const Indexed& tail) {
  return dynamic_cast<const ParcelSource*>(&tail) != nullptr;
}

}  // namespace penstock
