#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/io/file_pool.h"
#include "penstock/io/remote_files.h"
#include "penstock/memory/copy.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/decoded_cache.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

// Decoded chunks, by chunk and leaf.
using ChunkCache = DecodedCache<std::byte[]>;

struct Hdf5 {
  Hdf5(std::string its_path, File::Identity its_identity, std::vector<ChunkedArray> its_arrays,
       SpecRef its_spec, uint64_t cache_bytes)
      : path(std::move(its_path)),
        identity(its_identity),
        arrays(std::move(its_arrays)),
        spec(std::move(its_spec)),
        cache(cache_bytes) {
    direct = std::ranges::all_of(arrays, &ChunkedArray::direct);
  }

  const std::string path;
  const File::Identity identity;
  const std::vector<ChunkedArray> arrays;  // one per leaf
  const SpecRef spec;
  bool direct = false;
  mutable ChunkCache cache;
};

class Hdf5Rows : public Indexed {
 public:
  Hdf5Rows(std::shared_ptr<const Hdf5> source, std::shared_ptr<FilePool> pool, std::string title)
      : source_(std::move(source)),
        pool_(std::move(pool)),
        number_(pool_->add(source_->path, source_->identity)),
        title_(std::move(title)) {}

  uint64_t length(uint64_t) const override { return source_->arrays[0].rows(); }
  SpecRef spec() const override { return source_->spec; }
  bool costly() const override { return !source_->direct; }
  bool in_place() const override { return true; }
  std::string origin(const Context&, const At&, uint64_t position) const override {
    return source_->path + ", row " + std::to_string(position);
  }
  // Of the array with the most rows in a chunk that is decoded as a whole.
  std::vector<uint64_t> blocks() const override {
    uint64_t rows = 0;
    for (const ChunkedArray& array : source_->arrays) {
      if (!array.direct()) rows = std::max(rows, static_cast<uint64_t>(array.chunk[0]));
    }
    std::vector<uint64_t> ends;
    if (rows == 0) return ends;
    for (uint64_t end = 0; end < length(0);) ends.push_back(end = std::min(end + rows, length(0)));
    return ends;
  }
  std::unique_ptr<IndexedReader> reader(Context&) const override {
    return std::make_unique<Reader>(*this);
  }

 private:
  class Reader : public IndexedReader {
   public:
    explicit Reader(const Hdf5Rows& stage) : stage_(stage), use_(stage.pool_) {
      for (const ChunkedArray& array : stage.source_->arrays) decoders_.emplace_back(array);
    }

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      std::array<uint32_t, Chunk::kRows> order;
      std::iota(order.begin(), order.begin() + positions.size(), 0);
      const std::span sorted(order.data(), positions.size());
      std::ranges::sort(sorted, {}, [&](uint32_t i) { return positions[i]; });
      failed_ = 0;
      for (size_t leaf = 0; leaf < decoders_.size(); ++leaf) {
        const ChunkedArray& array = stage_.source_->arrays[leaf];
        const Target target{out.dense(leaf) + row * out.stride(leaf), out.stride(leaf),
                            out.row_bytes(leaf)};
        if (target.row_bytes == 0) continue;
        array.direct() ? read_rows(array, positions, sorted, target, out, row)
                       : decode_rows(leaf, positions, sorted, target, out, row);
      }
    }

   private:
    struct Target {
      std::byte* first;
      uint64_t stride, row_bytes;
      std::span<std::byte> row(uint32_t i) const { return {first + i * stride, row_bytes}; }
    };

    // Runs `read` for a row. Its Error about the file is the row's failure.
    template <class Read>
    void attempt(uint32_t i, uint64_t position, Chunk& out, uint32_t row, const Read& read) {
      if ((failed_ >> i & 1) != 0) return;
      try {
        read();
      } catch (const Error& error) {
        const Code code = error.code();
        if (code != Code::kDataLoss && code != Code::kSystem && code != Code::kNotFound) throw;
        failed_ |= uint64_t{1} << i;
        out.fail(row + i, {stage_.title_, position, std::current_exception()});
      }
    }

    // Rows of arrays whose values lie in the file as they are.
    void read_rows(const ChunkedArray& array, std::span<const uint64_t> positions,
                   std::span<const uint32_t> sorted, const Target& target, Chunk& out,
                   uint32_t row) {
      if (array.chunks[0].bytes == 0) {
        for (uint32_t i : sorted) array.write_fill(target.row(i));
        return;
      }
      std::array<File::Segment, Chunk::kRows> segments;
      for (size_t k = 0; k < sorted.size(); ++k) {
        const std::span<std::byte> to = target.row(sorted[k]);
        segments[k] = {offset_of(array, positions[sorted[k]]), to.data(), to.size()};
      }
      try {
        stage_.pool_->get(stage_.number_)->read({segments.data(), sorted.size()});
      } catch (const Error&) {
        // One by one, to find the rows that cannot be read.
        for (size_t k = 0; k < sorted.size(); ++k) {
          attempt(sorted[k], positions[sorted[k]], out, row, [&] {
            stage_.pool_->get(stage_.number_)->read({&segments[k], 1});
          });
        }
      }
      if (!array.reversed) return;
      const size_t number = number_bytes(array.dtype);
      for (uint32_t i : sorted) {
        copy_byteswapped(target.row(i).data(), target.row(i).data(), target.row_bytes, number);
      }
    }

    static uint64_t offset_of(const ChunkedArray& array, uint64_t position) {
      const uint64_t bytes = array.row_bytes();
      if (array.chunk.empty()) return array.chunks[0].offset + position * bytes;
      const auto rows = static_cast<uint64_t>(array.chunk[0]);
      return array.chunks[position / rows].offset + position % rows * bytes;
    }

    // Rows of arrays whose chunks have to be decoded: chunk by chunk.
    void decode_rows(size_t leaf, std::span<const uint64_t> positions,
                     std::span<const uint32_t> sorted, const Target& target, Chunk& out,
                     uint32_t row) {
      const ChunkedArray& array = stage_.source_->arrays[leaf];
      const auto rows = static_cast<uint64_t>(array.chunk[0]);
      const uint64_t across = array.chunks_per_row(), bytes = array.chunk_bytes();
      for (size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
        const uint64_t group = positions[sorted[begin]] / rows;
        while (end < sorted.size() && positions[sorted[end]] / rows == group) ++end;
        if (decode_in_place(leaf, group, positions, sorted.subspan(begin, end - begin), target)) {
          continue;
        }
        for (uint64_t chunk = group * across; chunk < (group + 1) * across; ++chunk) {
          ChunkCache::Piece decoded = nullptr;
          for (uint32_t i : sorted.subspan(begin, end - begin)) {
            attempt(i, positions[i], out, row, [&] {
              if (decoded == nullptr) decoded = decode(leaf, chunk, bytes);
              copy_row_of_chunk(array, positions[i], chunk, {decoded.get(), bytes}, target.row(i));
            });
          }
          if (decoded != nullptr) stage_.source_->cache.used(key_of(leaf, chunk), end - begin);
        }
      }
    }

    // Decodes a chunk to its place in the batch, where the batch has all of its rows in order.
    // False: it has not, the cache has the chunk or space for it, or the chunk cannot be read.
    bool decode_in_place(size_t leaf, uint64_t chunk, std::span<const uint64_t> positions,
                         std::span<const uint32_t> sorted, const Target& target) {
      const ChunkedArray& array = stage_.source_->arrays[leaf];
      const uint64_t bytes = array.chunk_bytes();
      const uint32_t first = sorted[0];
      if (sorted.size() != static_cast<uint64_t>(array.chunk[0]) || !array.whole_rows() ||
          target.stride != target.row_bytes) {
        return false;
      }
      for (uint32_t k = 0; k < sorted.size(); ++k) {
        if (sorted[k] != first + k || positions[first + k] != positions[first] + k) return false;
      }
      if (stage_.source_->cache.takes(key_of(leaf, chunk), bytes)) return false;
      try {
        decoders_[leaf].decode(*stage_.pool_->get(stage_.number_), chunk,
                               {target.row(first).data(), bytes});
        return true;
      } catch (const Error&) {
        return false;  // it is decoded again, for each row's failure
      }
    }

    uint64_t rows_of(size_t leaf, uint64_t chunk) const {
      const ChunkedArray& array = stage_.source_->arrays[leaf];
      const auto most = static_cast<uint64_t>(array.chunk[0]);
      return std::min(most, array.rows() - chunk / array.chunks_per_row() * most);
    }
    uint64_t key_of(size_t leaf, uint64_t chunk) const { return chunk * decoders_.size() + leaf; }

    ChunkCache::Piece decode(size_t leaf, uint64_t chunk, uint64_t bytes) {
      return stage_.source_->cache.get(key_of(leaf, chunk), [&] {
        ChunkCache::Piece data = std::make_shared_for_overwrite<std::byte[]>(bytes);
        decoders_[leaf].decode(*stage_.pool_->get(stage_.number_), chunk, {data.get(), bytes});
        return ChunkCache::Decoded{std::move(data), bytes, rows_of(leaf, chunk)};
      });
    }

    const Hdf5Rows& stage_;
    const FilePool::Use use_;
    std::vector<ChunkDecoder> decoders_;  // by leaf
    uint64_t failed_ = 0;                 // bit mask of the rows of this fetch
  };

  const std::shared_ptr<const Hdf5> source_;
  const std::shared_ptr<FilePool> pool_;
  const uint32_t number_;
  const std::string title_;
};

}  // namespace

Node::Ref nodes::hdf5(std::string path, std::vector<std::pair<std::string, ChunkedArray>> fields,
                      const Hdf5Options& options) {
  if (fields.empty()) throw Error(Code::kInvalidArgument, "hdf5", "there is no data set");
  std::vector<Leaf> leaves;
  std::vector<ChunkedArray> arrays;
  std::string names;
  for (auto& [name, array] : fields) {
    array.check();
    if (!arrays.empty() && array.shape[0] != arrays[0].shape[0]) {
      throw Error(Code::kInvalidArgument, "hdf5",
                  "'" + array.name + "' has " + std::to_string(array.shape[0]) + " rows, '" +
                      arrays[0].name + "' " + std::to_string(arrays[0].shape[0]));
    }
    leaves.push_back(
        {name, LeafKind::kDense, array.dtype, Shape(array.shape.begin() + 1, array.shape.end())});
    names += ", " + array.name;
    arrays.push_back(std::move(array));
  }
  const std::string_view file = without_query(path);
  std::string title = "hdf5(";
  title.append(file.substr(file.find_last_of('/') + 1)).append(names).append(")");
  title = escape_invalid_utf8(title);
  auto source = std::make_shared<const Hdf5>(
      std::move(path), options.identity, std::move(arrays),
      std::make_shared<ElementSpec>(std::move(leaves), options.nest), options.cache_bytes);
  return make_node({
      .title = title,
      .build = [source, title](std::vector<Built>, Builder& builder) -> Built {
        return {std::make_shared<Hdf5Rows>(source, builder.pool(), title)};
      },
  });
}

}  // namespace penstock
