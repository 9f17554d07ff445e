#include "penstock/pipeline/stages/stream_chunk.h"

#include <algorithm>
#include <cstring>

#include "penstock/base/error.h"

namespace penstock {

namespace {

constexpr uint64_t aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

uint64_t lengths_bytes(const Leaf& leaf, uint64_t rows) {
  return leaf.fixed() ? 0 : rows * leaf.shape.size() * sizeof(int64_t);
}

uint64_t columns_at(uint64_t leases) { return sizeof(uint64_t) + leases * sizeof(Ref); }

// Where the copies begin.
uint64_t copies_at(const ElementSpec& spec, uint64_t rows, uint64_t leases) {
  uint64_t bytes = columns_at(leases);
  for (const Leaf& leaf : spec.leaves()) {
    bytes += rows * sizeof(int64_t) + lengths_bytes(leaf, rows);
  }
  return aligned(bytes);
}

}  // namespace

uint64_t LeasedRows::bytes_of(const Collector& rows, uint64_t leases, const Allocator& arena) {
  uint64_t bytes = copies_at(*rows.spec(), rows.rows(), leases);
  rows.each_row([&](const Chunk& chunk, uint32_t row, uint64_t) {
    for (size_t leaf = 0; leaf < rows.spec()->leaves().size(); ++leaf) {
      if (!arena.contains(chunk.at(leaf, row))) bytes += aligned(chunk.bytes(leaf, row));
    }
  });
  return bytes;
}

uint64_t LeasedRows::write(const Collector& rows, std::span<const Ref> leases,
                           const Allocator& arena, std::byte* table) {
  const uint64_t count = leases.size();
  std::memcpy(table, &count, sizeof(count));
  if (count != 0) std::memcpy(table + sizeof(count), leases.data(), leases.size_bytes());
  std::byte* column = table + columns_at(count);
  std::byte* copy = table + copies_at(*rows.spec(), rows.rows(), count);
  uint64_t copied = 0;
  for (size_t leaf = 0; leaf < rows.spec()->leaves().size(); ++leaf) {
    const Leaf& of = rows.spec()->leaves()[leaf];
    auto* address = reinterpret_cast<int64_t*>(column);
    int64_t* lengths = address + rows.rows();
    rows.each_row([&](const Chunk& chunk, uint32_t row, uint64_t) {
      const std::byte* values = chunk.at(leaf, row);
      const uint64_t bytes = chunk.bytes(leaf, row);
      if (!arena.contains(values)) {
        if (bytes != 0) std::memcpy(copy, values, bytes);
        values = copy;
        copy += aligned(bytes);
        copied += bytes;
      }
      *address++ = values - table;
      if (!of.fixed()) lengths = std::ranges::copy(chunk.shape(leaf, row), lengths).out;
    });
    column += rows.rows() * sizeof(int64_t) + lengths_bytes(of, rows.rows());
  }
  return copied;
}

std::span<const Ref> LeasedRows::leases(const std::byte* table) {
  uint64_t count;
  std::memcpy(&count, table, sizeof(count));
  return {reinterpret_cast<const Ref*>(table + sizeof(count)), count};
}

void LeasedRows::view(uint64_t row, Chunk& out, uint32_t at) const {
  const std::byte* column = table_ + columns_at(leases(table_).size());
  for (size_t leaf = 0; leaf < spec_->leaves().size(); ++leaf) {
    const Leaf& of = spec_->leaves()[leaf];
    const auto* addresses = reinterpret_cast<const int64_t*>(column);
    const std::byte* values = table_ + addresses[row];
    if (of.fixed()) {
      out.view(leaf, at, values, of.shape);
    } else {
      const size_t axes = of.shape.size();
      out.view(leaf, at, values, {addresses + rows_ + row * axes, axes});
    }
    column += rows_ * sizeof(int64_t) + lengths_bytes(of, rows_);
  }
}

namespace {

struct StreamChunkHead {
  uint64_t kind, bytes, ordinal, rows;
  StreamChunkParts parts;
};
static_assert(sizeof(StreamChunkHead) == StreamChunkParts::kHeadBytes);

StreamChunkParts parts_of(const GatherChunk& gathered) {
  const Collector& elements = gathered.elements();
  const uint64_t leases = gathered.leases().size();
  return {elements.spec()->bytes().size(),
          leases != 0 ? LeasedRows::bytes_of(elements, leases, *gathered.arena())
                      : elements.layout(elements.rows()).bytes(),
          gathered.origins().bytes()};
}

// Writes everything except the rows.
void write_around(const GatherChunk& gathered, const StreamChunkParts& parts, uint64_t ordinal,
                  uint64_t kind, std::byte* to) {
  const Collector& elements = gathered.elements();
  const std::span<const std::byte> spec = elements.spec()->bytes();
  const StreamChunkHead head{kind, parts.bytes(), ordinal, elements.rows(), parts};
  std::memcpy(to, &head, sizeof(head));
  std::memcpy(to + sizeof(head), spec.data(), spec.size());
  gathered.origins().write(to + parts.origins_at());
}

void write_block(GatherChunk& gathered, const StreamChunkParts& parts, std::byte* to) {
  const Collector& elements = gathered.elements();
  elements.write(elements.layout(elements.rows()), to + parts.block_at());
  gathered.count_copy(parts.block_bytes);
}

std::byte* memory_for(const StreamChunkParts& parts, Allocator& arena) {
  auto* memory = static_cast<std::byte*>(arena.allocate(parts.bytes()));
  if (memory != nullptr) return memory;
  throw Error(Code::kOutOfMemory, "stream", "no space for the elements of a batch");
}

class StreamChunkSource : public Indexed {
 public:
  explicit StreamChunkSource(SpecRef spec) : spec_(std::move(spec)) {}

  uint64_t length(uint64_t) const override { return kEndless; }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return false; }
  std::string origin(const Context& context, const At&, uint64_t position) const override {
    return context.stream_chunk == nullptr ? "" : context.stream_chunk->origin(position);
  }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    explicit Reader(Context& context) : context_(context) {}
    void fetch(const At&, std::span<const uint64_t> ordinals, Chunk& out, uint32_t row) override {
      const StreamChunk& stream_chunk = *context_.stream_chunk;
      if (!out.settle(stream_chunk.spec())) {
        throw Error(Code::kInternal, "stream_chunk", "elements of two specs in one chunk");
      }
      for (uint64_t ordinal : ordinals)
        stream_chunk.view(ordinal - stream_chunk.ordinal, out, row++);
    }

   private:
    Context& context_;
  };

  SpecRef spec_;
};

}  // namespace

std::string StreamChunk::origin(uint64_t position) const {
  const uint64_t element = position - ordinal;
  return element < rows() ? Origins::text(origins, element) : "";
}

uint64_t StreamChunk::bytes_of(const GatherChunk& elements) {
  return parts_of(elements).bytes() + elements.leased_bytes();
}

void StreamChunk::write(GatherChunk& gathered, uint64_t ordinal, std::byte* to) {
  const StreamChunkParts parts = parts_of(gathered);
  write_around(gathered, parts, ordinal, kBlock, to);
  write_block(gathered, parts, to);
}

uint64_t StreamChunk::put(GatherChunk& gathered, uint64_t ordinal, Allocator& arena) {
  const StreamChunkParts parts = parts_of(gathered);
  const bool leased = !gathered.leases().empty();
  std::byte* memory = nullptr;
  if (leased) {
    memory = memory_for(parts, arena);
    gathered.count_copy(LeasedRows::write(gathered.elements(), gathered.leases(), arena,
                                          memory + parts.block_at()));
    gathered.hand_over_leases();
  } else if (memory = gathered.take_space(parts); memory == nullptr) {
    memory = memory_for(parts, arena);
    write_block(gathered, parts, memory);
    gathered.drop_space();
  }
  write_around(gathered, parts, ordinal, leased ? kLeased : kBlock, memory);
  return arena.region()->offset_of(memory);
}

void StreamChunk::release(Allocator& arena, uint64_t offset) {
  std::byte* memory = arena.region()->base() + offset;
  uint64_t kind;
  std::memcpy(&kind, memory, sizeof(kind));
  if (kind == kLeased) {
    StreamChunkHead head;
    std::memcpy(&head, memory, sizeof(head));
    for (const Ref& lease : LeasedRows::leases(memory + head.parts.block_at())) {
      arena.region()->return_lease(lease);
    }
  }
  arena.release(memory);
}

StreamChunk StreamChunk::read(const std::byte* from) {
  StreamChunkHead head;
  std::memcpy(&head, from, sizeof(head));
  const StreamChunkParts& parts = head.parts;
  if ((head.kind != kBlock && head.kind != kLeased) || parts.spec_bytes > head.bytes ||
      parts.block_bytes > head.bytes || parts.origins_bytes > head.bytes ||
      parts.bytes() != head.bytes) {
    throw Error(Code::kInternal, "stream_chunk", "a ticket without elements");
  }
  auto spec = std::make_shared<ElementSpec>(std::span(from + sizeof(head), parts.spec_bytes));
  StreamChunk chunk;
  chunk.ordinal = head.ordinal;
  chunk.origins = {from + parts.origins_at(), parts.origins_bytes};
  if (head.kind == kLeased) {
    chunk.leased = LeasedRows(std::move(spec), head.rows, from + parts.block_at());
  } else {
    chunk.block = Block(std::move(spec), head.rows, const_cast<std::byte*>(from) + parts.block_at(),
                        parts.block_bytes, nullptr);
  }
  return chunk;
}

IndexedRef chunk_source(SpecRef spec) {
  return std::make_shared<StreamChunkSource>(std::move(spec));
}

bool is_chunk_source(const Indexed& tail) {
  return dynamic_cast<const StreamChunkSource*>(&tail) != nullptr;
}

}  // namespace penstock
