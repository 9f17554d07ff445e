#include "row_groups.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "gil.h"
#include "numpy_api.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/decoded_cache.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "python_op.h"
#include "references.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using GroupCache = DecodedCache<const ArrowElements>;

// Larger rows are views of their row group, and not copied to the other rows of the chunk.
constexpr uint64_t kDense = 256;
// A fetch that uses more than this part of the cache copies its values, and does not keep the row
// groups.
constexpr uint64_t kViewed = 8;

// An Error that Python raised as one of penstock's exceptions. With the GIL held.
std::optional<Error> error_in(const Raised& raised) {
  for (Code code : {Code::kDataLoss, Code::kNotFound, Code::kInvalidArgument, Code::kSystem}) {
    PyObject* type = helper("penstock.errors", std::string(name_of(code)).c_str());
    if (type == nullptr) throw nb::python_error();
    const int is = PyObject_IsInstance(raised.exception(), type);
    if (is < 0) throw nb::python_error();
    if (is == 0) continue;
    Owned text(PyObject_Str(raised.exception()));
    const char* words = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
    if (words == nullptr) throw nb::python_error();
    return Error(code, "parquet", words);
  }
  return std::nullopt;
}

class RowGroupRows : public Indexed {
 public:
  RowGroupRows(std::shared_ptr<const RowGroups> of, std::string title)
      : of_(std::move(of)), title_(std::move(title)) {}

  uint64_t length(uint64_t) const override {
    return of_->groups.empty() ? 0 : of_->groups.back().end;
  }
  SpecRef spec() const override { return of_->spec; }
  bool costly() const override { return true; }
  // pyarrow decodes, which is no code of the user's.
  bool in_place() const override { return true; }
  bool python() const override { return true; }
  std::string origin(const Context&, const At&, uint64_t position) const override {
    const RowGroups::Group& group = of_->groups[group_of(position)];
    return of_->files[group.file] + ", row " + std::to_string(row_in_file(group, position));
  }
  std::vector<uint64_t> blocks() const override {
    std::vector<uint64_t> ends;
    for (const RowGroups::Group& group : of_->groups) {
      if (group.rows > 0) ends.push_back(group.end);
    }
    return ends;
  }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  size_t group_of(uint64_t position) const {
    const auto found = std::ranges::upper_bound(of_->groups, position, {}, &RowGroups::Group::end);
    return static_cast<size_t>(found - of_->groups.begin());
  }
  static uint64_t begin_of(const RowGroups::Group& group) { return group.end - group.rows; }
  static uint64_t row_in_file(const RowGroups::Group& group, uint64_t position) {
    return group.first_row + (position - begin_of(group));
  }

  // The cache that the readers share; it ends with the last of them.
  std::shared_ptr<GroupCache> cache() const {
    std::lock_guard lock(mutex_);
    std::shared_ptr<GroupCache> cache = cache_.lock();
    if (cache == nullptr) cache_ = cache = std::make_shared<GroupCache>(of_->cache_bytes);
    return cache;
  }

  // Decodes a row group. Errors: the decoder's, as Error or Raised; kDataLoss: the rows are not
  // those that the file's footer promised.
  GroupCache::Decoded decode(size_t number) const {
    const RowGroups::Group& group = of_->groups[number];
    WithGil locked;
    release_references();
    StayWhenEnded stay;
    Owned table(PyObject_CallFunction(static_cast<PyObject*>(of_->decoder.get()), "n",
                                      static_cast<Py_ssize_t>(number)));
    stay.returned();
    if (!table) {
      const Raised raised = Raised::take();
      if (auto error = error_in(raised)) throw Error(std::move(*error));
      throw Raised(raised);
    }
    const auto* data = nb::cast<const ArrowTable*>(nb::handle(table.get()));
    const uint64_t bytes = data->bytes();
    auto elements = std::make_shared<const ArrowElements>(
        std::shared_ptr<const ArrowTable>(share(table.get()), data));
    if (elements->length() != group.rows || *elements->spec() != *of_->spec) {
      throw Error(Code::kDataLoss, "parquet",
                  place_of(group) + " has " + std::to_string(elements->length()) + " rows of " +
                      elements->spec()->to_string() + ", and its footer says " +
                      std::to_string(group.rows) + " of " + of_->spec->to_string());
    }
    return {std::move(elements), bytes, group.rows};
  }

  std::string place_of(const RowGroups::Group& group) const {
    return of_->files[group.file] + ", row group " + std::to_string(group.number);
  }

  class Reader : public IndexedReader {
   public:
    Reader(const RowGroupRows& stage, Context& context)
        : stage_(stage),
          of_(*stage.of_),
          context_(context),
          cache_(stage.cache()),
          putter_(of_.fills, context.scratch) {}

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      std::array<uint32_t, Chunk::kRows> order;
      std::iota(order.begin(), order.begin() + positions.size(), 0);
      const std::span sorted(order.data(), positions.size());
      std::ranges::sort(sorted, {}, [&](uint32_t i) { return positions[i]; });
      in_order_ = true;
      for (size_t i = 0; i < positions.size(); ++i) in_order_ &= positions[i] == positions[0] + i;

      std::array<Part, Chunk::kRows> parts;
      size_t count = 0;
      uint64_t bytes = 0;
      for (size_t i = 0; i < sorted.size();) {
        Part& part = parts[count++];
        part.group = stage_.group_of(positions[sorted[i]]);
        const size_t first = i;
        const uint64_t end = of_.groups[part.group].end;
        while (i < sorted.size() && positions[sorted[i]] < end) ++i;
        part.rows = sorted.subspan(first, i - first);
        bytes += of_.groups[part.group].bytes;
      }
      // Views keep their row groups in memory until the batch is written.
      copies_ = bytes > of_.cache_bytes / kViewed;

      // Row groups that another thread is decoding come last.
      size_t left = 0;
      for (size_t i = 0; i < count; ++i) {
        if (!put(parts[i], positions, out, row, false)) parts[left++] = parts[i];
      }
      for (size_t i = 0; i < left; ++i) {
        if (in_order_) decode_ahead(parts[i].group + 1);
        put(parts[i], positions, out, row, true);
      }
    }

   private:
    struct Part {  // the rows of a fetch that are of one row group
      size_t group = 0;
      std::span<const uint32_t> rows;
    };

    // False: another thread is decoding the row group, and `wait` is false.
    bool put(const Part& part, std::span<const uint64_t> positions, Chunk& out, uint32_t row,
             bool wait) {
      const RowGroups::Group& group = of_.groups[part.group];
      GroupCache::Piece table;
      try {
        table = get(part.group, wait);
      } catch (const Error& error) {
        const Code code = error.code();
        if (code != Code::kDataLoss && code != Code::kSystem && code != Code::kNotFound &&
            code != Code::kInvalidArgument) {
          throw;
        }
        if (code == Code::kDataLoss) damaged_.emplace(part.group, error);
        for (uint32_t i : part.rows) fail(error, positions[i], out, row + i);
        return true;
      } catch (const Raised& raised) {
        if (!raised.is_error() && context_.watch->interrupted(std::current_exception())) throw;
        for (uint32_t i : part.rows) {
          out.fail(row + i, {stage_.title_, positions[i], std::current_exception()});
        }
        return true;
      }
      if (table == nullptr) return false;
      cache_->used(part.group, part.rows.size());
      ArrowElements::Finder finder(*table);
      for (size_t k = 0; k < part.rows.size(); ++k) {
        places_[k] = finder.find(positions[part.rows[k]] - begin_of(group));
      }
      for (size_t leaf = 0; leaf < of_.spec->leaves().size(); ++leaf) {
        const bool dense =
            of_.spec->leaves()[leaf].fixed() && (out.bound(leaf) || out.row_bytes(leaf) <= kDense);
        if (dense && put_plain(*table, leaf, part, out, row)) continue;
        for (size_t k = 0; k < part.rows.size(); ++k) {
          const uint32_t i = part.rows[k];
          try {
            putter_.put(*table, leaf, places_[k], row_in_file(group, positions[i]), out, row + i,
                        dense);
            if (copies_ && !dense) copy(leaf, out, row + i);
          } catch (const Error& error) {
            fail(Error(error.code(), "parquet", of_.files[group.file] + ": " + text_of(error)),
                 positions[i], out, row + i);
          }
        }
      }
      if (!copies_) out.keep(std::const_pointer_cast<ArrowElements>(table));
      return true;
    }

    // Copies rows that only have to be copied, at places_. False: they are not so.
    bool put_plain(const ArrowElements& table, size_t leaf, const Part& part, Chunk& out,
                   uint32_t row) {
      const size_t count = part.rows.size();
      if (places_[0].chunk != places_[count - 1].chunk) return false;
      const std::byte* from = table.rows(leaf, places_[0].chunk).plain();
      if (from == nullptr) return false;
      std::byte* to = out.dense(leaf) + row * out.stride(leaf);
      const uint64_t stride = out.stride(leaf), bytes = out.row_bytes(leaf);
      if (in_order_ && stride == bytes) {
        if (bytes > 0) {
          std::memcpy(to + part.rows[0] * bytes, from + places_[0].row * bytes, count * bytes);
        }
        return true;
      }
      const auto scatter = [&](auto size) {
        for (size_t k = 0; k < count; ++k) {
          std::memcpy(to + part.rows[k] * stride, from + places_[k].row * size, size);
        }
      };
      if (bytes == 8) {
        scatter(std::integral_constant<uint64_t, 8>());
      } else if (bytes == 4) {
        scatter(std::integral_constant<uint64_t, 4>());
      } else if (bytes > 0) {
        scatter(bytes);
      }
      return true;
    }

    GroupCache::Piece get(size_t number, bool wait) {
      if (number == latest_ && table_ != nullptr) return table_;
      const auto damaged = damaged_.find(number);
      if (damaged != damaged_.end()) throw Error(damaged->second);
      const auto decode = [&] { return this->decode(number); };
      auto table = wait ? cache_->get(number, decode) : cache_->try_get(number, decode);
      if (table != nullptr) {
        table_ = table;
        latest_ = number;
      }
      return table;
    }

    // Decodes the first of the following row groups that no thread is decoding, if there is space.
    void decode_ahead(size_t number) {
      for (; number < of_.groups.size(); ++number) {
        if (damaged_.contains(number)) continue;
        try {
          const auto ahead =
              cache_->ahead(number, of_.groups[number].bytes, [&] { return this->decode(number); });
          if (ahead != GroupCache::Ahead::kThere) return;
        } catch (const Error& error) {
          if (error.code() == Code::kOutOfMemory) throw;
          return;  // its rows fail when they are read
        } catch (const Raised& raised) {
          if (!raised.is_error() && context_.watch->interrupted(std::current_exception())) throw;
          return;
        }
      }
    }

    GroupCache::Decoded decode(size_t number) {
      StageClock::Part part(context_.clock);
      return stage_.decode(number);
    }

    void copy(size_t leaf, Chunk& out, uint32_t row) {
      const uint64_t bytes = out.bytes(leaf, row);
      std::byte* to = context_.scratch.take(bytes);
      if (bytes > 0) std::memcpy(to, out.at(leaf, row), bytes);
      const std::span<const int64_t> shape = out.shape(leaf, row);
      shape_.assign(shape.begin(), shape.end());
      out.view(leaf, row, to, shape_);
    }

    void fail(const Error& error, uint64_t position, Chunk& out, uint32_t row) {
      out.fail(row, {stage_.title_, position, std::make_exception_ptr(Error(error))});
    }
    // The text without the operation.
    static std::string text_of(const Error& error) {
      return std::string(error.what()).substr(error.operation().size() + 2);
    }

    const RowGroupRows& stage_;
    const RowGroups& of_;
    Context& context_;
    const std::shared_ptr<GroupCache> cache_;
    ArrowPutter putter_;
    std::array<ArrowElements::Place, Chunk::kRows> places_;
    std::vector<int64_t> shape_;
    bool in_order_ = false;  // the positions of this fetch ascend by one
    bool copies_ = false;
    // The row group that was used last: it is decoded once for consecutive rows, even if others
    // fill the cache.
    GroupCache::Piece table_;
    size_t latest_ = 0;
    std::unordered_map<size_t, Error> damaged_;
  };

  const std::shared_ptr<const RowGroups> of_;
  const std::string title_;
  mutable std::mutex mutex_;
  mutable std::weak_ptr<GroupCache> cache_;
};

}  // namespace

Node::Ref row_groups(RowGroups groups, std::string title) {
  return make_node({
      .title = std::move(title),
      .build = [of = std::make_shared<const RowGroups>(std::move(groups))](
                   std::vector<Built>, Builder& builder) -> Built {
        return {std::make_shared<RowGroupRows>(of, builder.title())};
      },
  });
}

}  // namespace penstock::python
