#include "penstock/pipeline/stages/parcel.h"

#include <cstring>

#include "penstock/base/error.h"

namespace penstock {
namespace {

struct ParcelHead {
  uint64_t kind, bytes, ordinal, rows;
  ParcelParts parts;
};
static_assert(sizeof(ParcelHead) == ParcelParts::kHeadBytes);

ParcelParts parts_of(const GatherParcel& gathered) {
  const Collector& elements = gathered.elements();
  return {elements.spec()->bytes().size(), elements.layout(elements.rows()).bytes(),
          gathered.origins().bytes()};
}

// All but the block.
void write_around(const GatherParcel& gathered, const ParcelParts& parts, uint64_t ordinal,
                  std::byte* to) {
  const Collector& elements = gathered.elements();
  const std::span<const std::byte> spec = elements.spec()->bytes();
  const ParcelHead head{Parcel::kKind, parts.bytes(), ordinal, elements.rows(), parts};
  std::memcpy(to, &head, sizeof(head));
  std::memcpy(to + sizeof(head), spec.data(), spec.size());
  gathered.origins().write(to + parts.origins_at());
}

void write_block(const GatherParcel& gathered, const ParcelParts& parts, std::byte* to) {
  const Collector& elements = gathered.elements();
  elements.write(elements.layout(elements.rows()), to + parts.block_at());
}

class ParcelSource : public Indexed {
 public:
  explicit ParcelSource(SpecRef spec) : spec_(std::move(spec)) {}

  uint64_t length(uint64_t) const override { return kEndless; }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return false; }
  std::string origin(const Context& context, const At&, uint64_t position) const override {
    return context.parcel == nullptr ? "" : context.parcel->origin(position);
  }
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

std::string Parcel::origin(uint64_t position) const {
  const uint64_t element = position - ordinal;
  return element < block.rows() ? Origins::text(origins, element) : "";
}

uint64_t Parcel::bytes_of(const GatherParcel& elements) { return parts_of(elements).bytes(); }

void Parcel::write(const GatherParcel& gathered, uint64_t ordinal, std::byte* to) {
  const ParcelParts parts = parts_of(gathered);
  write_around(gathered, parts, ordinal, to);
  write_block(gathered, parts, to);
}

uint64_t Parcel::put(GatherParcel& gathered, uint64_t ordinal, Allocator& arena) {
  const ParcelParts parts = parts_of(gathered);
  std::byte* memory = gathered.take_room(parts);
  if (memory == nullptr) {
    memory = static_cast<std::byte*>(arena.allocate(parts.bytes()));
    if (memory == nullptr) {
      throw Error(Code::kOutOfMemory, "stream", "no room for the elements of a batch");
    }
    write_block(gathered, parts, memory);
    gathered.drop_room();
  }
  write_around(gathered, parts, ordinal, memory);
  return arena.region()->offset_of(memory);
}

Parcel Parcel::read(const std::byte* from) {
  ParcelHead head;
  std::memcpy(&head, from, sizeof(head));
  const ParcelParts& parts = head.parts;
  if (head.kind != kKind || parts.spec_bytes > head.bytes || parts.block_bytes > head.bytes ||
      parts.origins_bytes > head.bytes || parts.bytes() != head.bytes) {
    throw Error(Code::kInternal, "parcel", "a ticket without elements");
  }
  auto spec = std::make_shared<ElementSpec>(std::span(from + sizeof(head), parts.spec_bytes));
  return {head.ordinal,
          Block(std::move(spec), head.rows, const_cast<std::byte*>(from) + parts.block_at(),
                parts.block_bytes, nullptr),
          {from + parts.origins_at(), parts.origins_bytes}};
}

IndexedRef parcel_source(SpecRef spec) { return std::make_shared<ParcelSource>(std::move(spec)); }

bool is_parcel_source(const Indexed& tail) {
  return dynamic_cast<const ParcelSource*>(&tail) != nullptr;
}

}  // namespace penstock
