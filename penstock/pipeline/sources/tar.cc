#include "penstock/io/tar.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/io/tar_index.h"
#include "penstock/pipeline/sources/file_source.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

using Names = std::vector<std::string>;

std::string listed(std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

// Which fields an element has. Immutable.
struct TarSchema {
  Names fields;
  bool given = false;  // by the user: a sample may have others, which are left out
  SpecRef spec;

  TarSchema(Names names, bool by_user) : fields(std::move(names)), given(by_user) {
    std::vector<Leaf> leaves{{"__key__", LeafKind::kText, DType::kUint8, {-1}}};
    for (const std::string& name : fields) {
      leaves.push_back({name, LeafKind::kBytes, DType::kUint8, {-1}});
    }
    spec = std::make_shared<ElementSpec>(std::move(leaves));
  }
};
using SchemaRef = std::shared_ptr<const TarSchema>;

// From records to rows of a chunk. One thread.
class TarRows {
 public:
  TarRows(SchemaRef schema, Scratch& scratch)
      : schema_(std::move(schema)), scratch_(scratch), data_(schema_->fields.size()) {}

  // A record, which begins at `offset` of its archive, becomes the next row. Empty, or why it is
  // lost.
  std::string next(std::span<const std::byte> record, uint64_t offset, Chunk& out, uint32_t row) {
    std::string why = sample_.parse(record, offset);
    if (why.empty()) why = find();
    if (!why.empty()) return why;
    // The sample's memory is used again for the next one.
    const std::string& key = sample_.key();
    std::byte* const kept = scratch_.take(key.size());
    std::memcpy(kept, key.data(), key.size());
    view(out, 0, row, {kept, key.size()});
    for (size_t i = 0; i < data_.size(); ++i) view(out, i + 1, row, *data_[i]);
    return {};
  }

 private:
  using Bytes = std::span<const std::byte>;

  std::string find() {
    std::fill(data_.begin(), data_.end(), nullptr);
    size_t found = 0, guess = 0;  // samples have their fields in one order
    for (const TarSample::Field& field : sample_.fields()) {
      const size_t leaf = place_of(field.extension, guess);
      if (leaf < data_.size()) {
        data_[leaf] = &field.data;
        guess = leaf + 1;
        ++found;
      } else if (!schema_->given) {
        return sample() + " has '" + field.extension + "', and the first sample " +
               (data_.empty() ? "nothing" : listed(schema_->fields)) +
               ": fields= chooses what all have";
      }
    }
    if (found == data_.size()) return {};
    Names missing, there;
    for (size_t i = 0; i < data_.size(); ++i) {
      if (data_[i] == nullptr) missing.push_back(schema_->fields[i]);
    }
    for (const TarSample::Field& field : sample_.fields()) there.push_back(field.extension);
    return sample() + " has no " + listed(missing) + ", only " + listed(there);
  }
  size_t place_of(const std::string& extension, size_t guess) const {
    const Names& names = schema_->fields;
    if (guess < names.size() && names[guess] == extension) return guess;
    return static_cast<size_t>(std::find(names.begin(), names.end(), extension) - names.begin());
  }
  std::string sample() const { return "sample '" + sample_.key() + "'"; }

  static void view(Chunk& out, size_t leaf, uint32_t row, Bytes bytes) {
    const auto length = static_cast<int64_t>(bytes.size());
    out.view(leaf, row, bytes.data(), {&length, 1});
  }

  const SchemaRef schema_;
  Scratch& scratch_;
  TarSample sample_;
  std::vector<const Bytes*> data_;  // of each field of the schema
};

class Tar : public FileStage {
 public:
  Tar(std::shared_ptr<const RecordFiles> files, std::string title, SchemaRef schema)
      : FileStage(std::move(files), std::move(title), schema->spec), schema_(std::move(schema)) {}

  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const Tar& stage, Context& context)
        : stage_(stage),
          reader_(stage.files(), "tar", false),
          buffers_(context.memory),
          rows_(stage.schema_, context.scratch) {}

    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      const RecordFiles& files = *stage_.files();
      reader_.read(positions);
      buffers_.is(reader_.memory_bytes());
      out.keep(reader_.memory());
      for (uint32_t i = 0; i < positions.size(); ++i) {
        if (reader_.bytes(i).empty()) continue;  // failed
        const size_t file = files.file_of(positions[i]);
        const uint64_t offset = files.index(file).at(positions[i] - files.begin(file)).offset;
        const std::string why = rows_.next(reader_.bytes(i), offset, out, row + i);
        if (!why.empty()) reader_.fail(i, Code::kDataLoss, why);
      }
      if (reader_.failures().empty()) return;
      failures_.assign(reader_.failures().begin(), reader_.failures().end());
      for (RecordReader::Failure& failure : failures_) explain(positions[failure.row], failure);
      stage_.fail(failures_, positions, out, row);
    }

   private:
    // Of a damaged place the index knows only where it is.
    void explain(uint64_t position, RecordReader::Failure& failure) const {
      const RecordFiles& files = *stage_.files();
      const size_t file = files.file_of(position);
      const RecordIndex::Place place = files.index(file).at(position - files.begin(file));
      if (!place.damaged) return;
      std::string why;
      try {
        why = explain_tar_damage(*files.pool().get(files.number(file)), place);
      } catch (const Error& error) {
        why = error.what();
      }
      failure.error =
          Error(Code::kDataLoss, "tar",
                stage_.origin_of(position) + " at byte " + std::to_string(place.offset) + " (" +
                    std::to_string(place.bytes) + " bytes): " + why);
    }

    const Tar& stage_;
    RecordReader reader_;
    StreamMemory::Part buffers_;
    TarRows rows_;
    std::vector<RecordReader::Failure> failures_;
  };

  std::string origin_of(uint64_t position) const {
    const size_t file = files()->file_of(position);
    return files()->path(file) + ", record " + std::to_string(position - files()->begin(file));
  }

  const SchemaRef schema_;
};

class TarStream : public FileStreamStage {
 public:
  TarStream(std::shared_ptr<const StreamFiles> files, std::string title, SchemaRef schema)
      : FileStreamStage(std::move(files), "tar", std::move(title), schema->spec),
        schema_(std::move(schema)) {}

  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public FileStreamReader {
   public:
    Reader(const TarStream& stage, Context& context)
        : FileStreamReader(stage, tar_framing(), context), rows_(stage.schema_, context.scratch) {}

   private:
    void make(uint32_t count, Chunk& out) override {
      for (uint32_t i = 0; i < count; ++i) {
        const auto& [place, bytes] = records().row(i);
        set_origin(i, out);
        if ((out.alive() >> i & 1) == 0) continue;
        const std::string why = rows_.next(bytes, place.offset, out, i);
        if (!why.empty()) fail(i, out, why);
      }
    }

    TarRows rows_;
  };

  const SchemaRef schema_;
};

class TarSource : public FileSource {
 public:
  TarSource(Paths paths, const TarOptions& options)
      : FileSource("tar", std::move(paths), {options.compression, options.stream, options.index}),
        given_(options.fields) {
    for (const std::string& name : given_) check(name);
    if (!given_.empty()) schema_ = std::make_shared<TarSchema>(given_, true);
  }

 private:
  static void check(const std::string& name) {
    const auto refuse = [&](const char* why) {
      throw Error(Code::kInvalidArgument, "tar",
                  "field '" + escape_invalid_utf8(name) + "' " + why);
    };
    if (!is_utf8(std::as_bytes(std::span(name)))) refuse("is not UTF-8");
    const std::string whole = "key." + name;  // split_tar_name() gives views of it
    const auto parts = split_tar_name(whole);
    if (!parts || parts->key != "key") refuse("is no extension: give 'jpg', without a dot");
    if (parts->extension != name) refuse("is not in lower case, as all extensions come");
  }

  RecordIndex index(const std::shared_ptr<File>& file, Progress* progress) const override {
    look(file, Compression::kNone);
    return index_tar(*file, progress);
  }
  IndexedRef stage(std::shared_ptr<const RecordFiles> files, std::string title) const override {
    return std::make_shared<Tar>(std::move(files), std::move(title), schema());
  }
  Compression compression_of(File& file) const override { return compression_of_tar(file); }
  bool has_header() const override { return given_.empty(); }
  uint64_t front(const std::shared_ptr<File>& file, Compression compression) const override {
    return look(file, compression), 0;
  }
  StreamedRef stream(std::shared_ptr<const StreamFiles> files, std::string title) const override {
    return std::make_shared<TarStream>(std::move(files), std::move(title), schema());
  }
  std::string arguments() const override {
    return given_.empty() ? std::string() : ", fields=[" + listed(given_) + "]";
  }

  // The first sample of a file says which fields there are.
  void look(const std::shared_ptr<File>& file, Compression compression) const {
    if (!given_.empty()) return;
    Names fields = first_tar_fields(file, compression);
    std::lock_guard lock(mutex_);
    first_fields_[file->path()] = std::move(fields);
  }
  // The names in bytes: of each its length, then these.
  std::vector<int64_t> about(const std::vector<std::string>& paths) const override {
    if (!given_.empty()) return {};
    std::lock_guard lock(mutex_);
    Names fields;
    for (const std::string& path : paths) {
      if (fields.empty()) fields = first_fields_[path];
    }
    std::vector<int64_t> about;
    for (const std::string& name : fields) {
      about.push_back(static_cast<int64_t>(name.size()));
      for (const char c : name) about.push_back(static_cast<unsigned char>(c));
    }
    schema_ = std::make_shared<TarSchema>(std::move(fields), false);
    return about;
  }
  void restore_metadata(const std::vector<std::string>&,
                        std::span<const int64_t> about) const override {
    if (!given_.empty()) return;
    Names fields;
    while (!about.empty()) {
      const auto bytes = about.subspan(1, static_cast<size_t>(about[0]));
      fields.emplace_back();
      for (const int64_t byte : bytes) fields.back() += static_cast<char>(byte);
      about = about.subspan(1 + bytes.size());
    }
    std::lock_guard lock(mutex_);
    schema_ = std::make_shared<TarSchema>(std::move(fields), false);
  }
  SchemaRef schema() const {
    std::lock_guard lock(mutex_);
    return schema_;
  }

  const Names given_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, Names> first_fields_;  // by path
  mutable SchemaRef schema_;
};

}  // namespace

Node::Ref nodes::tar(Paths paths, const TarOptions& options) {
  return file_source(std::make_shared<TarSource>(expand_braces(paths), options));
}

}  // namespace penstock
