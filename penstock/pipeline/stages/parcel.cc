#include "penstock/pipeline/stages/parcel.h"

#include <cstring>

#include "penstock/base/error.h"

namespace penstock {
namespace {

struct ParcelHead {
  uint64_t kind, bytes, ordinal, rows, spec_bytes, origins_bytes;

  uint64_t origins_at() const { return (sizeof(ParcelHead) + spec_bytes + 63) / 64 * 64; }
  uint64_t block_at() const { return (origins_at() + origins_bytes + 63) / 64 * 64; }
};

ParcelHead head_of(const GatherParcel& gathered, uint64_t ordinal) {
  const Collector& elements = gathered.elements();
  ParcelHead head{Parcel::kKind,
                  0,
                  ordinal,
                  elements.rows(),
                  elements.spec()->bytes().size(),
                  gathered.origins().bytes()};
  head.bytes = head.block_at() + elements.layout(elements.rows()).bytes();
  return head;
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

uint64_t Parcel::bytes_of(const GatherParcel& elements) { return head_of(elements, 0).bytes; }

void Parcel::write(const GatherParcel& gathered, uint64_t ordinal, std::byte* to) {
  const Collector& elements = gathered.elements();
  const std::span<const std::byte> spec = elements.spec()->bytes();
  const ParcelHead head = head_of(gathered, ordinal);
  std::memcpy(to, &head, sizeof(head));
  std::memcpy(to + sizeof(head), spec.data(), spec.size());
  gathered.origins().write(to + head.origins_at());
  elements.write(elements.layout(elements.rows()), to + head.block_at());
}

uint64_t Parcel::put(const GatherParcel& elements, uint64_t ordinal, Allocator& arena) {
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
  if (head.kind != kKind || head.spec_bytes > head.bytes || head.origins_bytes > head.bytes ||
      head.block_at() > head.bytes) {
    throw Error(Code::kInternal, "parcel", "a ticket without elements");
  }
  auto spec = std::make_shared<ElementSpec>(std::span(from + sizeof(head), head.spec_bytes));
  const uint64_t at = head.block_at();
  return {head.ordinal,
          Block(std::move(spec), head.rows, const_cast<std::byte*>(from) + at, head.bytes - at,
                nullptr),
          {from + head.origins_at(), head.origins_bytes}};
}

IndexedRef parcel_source(SpecRef spec) { return std::make_shared<ParcelSource>(std::move(spec)); }

bool is_parcel_source(const Indexed& tail) {
  return dynamic_cast<const ParcelSource*>(&tail) != nullptr;
}

}  // namespace penstock
