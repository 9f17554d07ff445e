#include "penstock/io/tar_index.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/io/tar.h"

namespace penstock {
namespace {

using Bytes = std::span<const std::byte>;

// The bytes of an archive, at places that ascend.
class ArchiveBytes {
 public:
  virtual ~ArchiveBytes() = default;
  // The bytes at `offset`, fewer only at the end; valid until the next call. `bytes` is at most
  // what the headers of an entry may be.
  virtual Bytes view(uint64_t offset, uint64_t bytes) = 0;
  // There are so many bytes.
  virtual bool reaches(uint64_t end) = 0;
};

// Of a file: large pieces if the requests are close together, small ones if they are far apart.
class FileBytes : public ArchiveBytes {
 public:
  FileBytes(File& file, uint64_t size) : file_(file), size_(size) {}

  Bytes view(uint64_t offset, uint64_t bytes) override {
    if (offset >= size_) return {};
    bytes = std::min(bytes, size_ - offset);
    if (offset < begin_ || offset + bytes > begin_ + held_) fill(offset, bytes);
    return Bytes(buffer_).subspan(offset - begin_, bytes);
  }
  bool reaches(uint64_t end) override { return end <= size_; }

 private:
  static constexpr uint64_t kPiece = 64 << 10, kFar = 16 << 10;

  void fill(uint64_t offset, uint64_t bytes) {
    const bool far = offset > begin_ + held_ && offset - begin_ - held_ > kFar;
    const uint64_t length = far ? bytes : std::min(std::max(kPiece, bytes), size_ - offset);
    if (buffer_.size() < length) buffer_.resize(length);
    const File::Segment segment{offset, buffer_.data(), length};
    held_ = 0;  // if read() throws
    file_.read({&segment, 1});
    begin_ = offset;
    held_ = length;
  }

  File& file_;
  const uint64_t size_;
  std::vector<std::byte> buffer_;
  uint64_t begin_ = 0, held_ = 0;
};

// Of a compressed file, inflated. Damage is its end.
class InflatedBytes : public ArchiveBytes {
 public:
  InflatedBytes(std::shared_ptr<File> file, Compression compression)
      : source_(std::move(file), compression) {}

  Bytes view(uint64_t offset, uint64_t bytes) override {
    drop(offset);
    if (buffer_.size() < bytes) buffer_.resize(bytes);
    if (held_ < bytes) held_ += read({buffer_.data() + held_, bytes - held_});
    return Bytes(buffer_).first(std::min(held_, bytes));
  }
  bool reaches(uint64_t end) override {
    drop(end);
    return begin_ == end;
  }

 private:
  size_t read(std::span<std::byte> to) try { return source_.read(to); } catch (const Error& error) {
    if (error.code() != Code::kDataLoss) throw;
    return 0;
  }

  // Goes on to this place, or to the end before it.
  void drop(uint64_t offset) {
    if (buffer_.size() < kPiece) buffer_.resize(kPiece);
    while (begin_ < offset) {
      if (held_ == 0) {
        held_ = read({buffer_.data(), std::min<uint64_t>(kPiece, offset - begin_)});
        if (held_ == 0) return;
      }
      const uint64_t part = std::min(offset - begin_, held_);
      std::memmove(buffer_.data(), buffer_.data() + part, held_ - part);
      begin_ += part;
      held_ -= part;
    }
  }

  static constexpr uint64_t kPiece = 64 << 10;

  SequentialFile source_;
  std::vector<std::byte> buffer_;
  uint64_t begin_ = 0, held_ = 0;
};

// Goes from entry to entry.
class TarWalk {
 public:
  enum class Step : uint8_t {
    kEntry,   // entry(), from begin() on
    kCut,     // the same, but the file ends within it; then comes the end
    kDamage,  // from begin() on, because of why()
    kEnd,
  };

  // `searched`: give up when so many bytes of damage were searched.
  explicit TarWalk(ArchiveBytes& bytes, uint64_t searched = UINT64_MAX)
      : bytes_(bytes), left_(searched) {}

  // report(offset): is called from time to time.
  template <class Report>
  Step next(const Report& report) {
    while (at_ != TarEntry::kMaxSize) {
      report(at_);
      begin_ = at_;
      TarFront front{TarFront::Kind::kNeedMore, TarEntry::kBlock};
      Bytes there;
      while (front.kind == TarFront::Kind::kNeedMore) {
        const uint64_t wanted = front.bytes;
        there = bytes_.view(at_, wanted);
        if (there.empty()) return Step::kEnd;
        front = parse_tar_entry(there, entry_);
        if (front.kind == TarFront::Kind::kNeedMore && there.size() < wanted) {
          front = {TarFront::Kind::kDamaged, 0, "the file ends within a header"};
        }
      }
      if (front.kind == TarFront::Kind::kPadding) {
        at_ += front.bytes;
        continue;
      }
      if (front.kind == TarFront::Kind::kDamaged) {
        why_ = front.why;
        search(report);
        return Step::kDamage;
      }
      if (!bytes_.reaches(at_ + entry_.least_bytes())) {
        at_ = TarEntry::kMaxSize;
        return Step::kCut;
      }
      at_ += entry_.bytes();
      return Step::kEntry;
    }
    return Step::kEnd;
  }
  Step next() {
    return next([](uint64_t) {});
  }

  const TarEntry& entry() const { return entry_; }
  uint64_t begin() const { return begin_; }
  const char* why() const { return why_; }

 private:
  // To the next header, or the end.
  template <class Report>
  void search(const Report& report) {
    while (true) {
      at_ += TarEntry::kBlock;
      report(at_);
      const Bytes block = bytes_.view(at_, TarEntry::kBlock);
      if (is_tar_header(block)) return;
      if (block.size() == TarEntry::kBlock && left_ > TarEntry::kBlock) {
        left_ -= TarEntry::kBlock;
        continue;
      }
      at_ = TarEntry::kMaxSize;
      return;
    }
  }

  ArchiveBytes& bytes_;
  uint64_t left_;
  TarEntry entry_;
  uint64_t at_ = 0, begin_ = 0;
  const char* why_ = nullptr;
};

// From entries and damage to places. One pass.
class Places {
 public:
  // `fields`: how many a whole sample has; 0: as many as the first one.
  explicit Places(size_t fields) : fields_(fields) {}

  void entry(uint64_t begin, std::string_view key, bool cut) {
    if (open_ && open_->key.empty() && before_ && before_->key == key) {
      // The damage was within a sample.
      open_->begin = before_->begin;
      open_->key = key;
      open_->settled = true;
      before_.reset();
    } else if (!open_ || open_->key != key) {
      close();
      open_ = Place{begin, std::string(key)};
    }
    ++open_->fields;
    open_->cut |= cut;
  }
  void damage(uint64_t begin) {
    close();
    open_ = Place{begin};
    open_->damage = true;
  }
  RecordIndex finish(uint64_t end) {
    close();
    if (before_) put(*before_);
    return index_.finish(end);
  }

  // Of the first sample that is not beside damage, or the most that one has.
  size_t fields() const { return fields_ == 0 ? most_ : fields_; }
  // What is damaged was decided without knowing how many fields a sample has.
  bool guessed() const { return guessed_; }

 private:
  struct Place {
    uint64_t begin = 0;
    std::string key = {};  // empty: no entry of it is known
    size_t fields = 0;
    bool damage = false;   // headers are damaged
    bool settled = false;  // and no further sample has entries in that damage
    bool cut = false;
    bool sound() const { return !damage && !cut; }
  };

  void close() {
    if (!open_) return;
    Place place = *std::exchange(open_, std::nullopt);
    if (place.sound()) most_ = std::max(most_, place.fields);
    if (before_ && place.sound() && before_->damage && !before_->settled && lacks_entries(place)) {
      before_->settled = true;
      return;
    }
    if (before_ && before_->sound() && place.damage && lacks_entries(*before_)) {
      place.begin = before_->begin;
      before_.reset();
    }
    if (before_) put(*before_);
    before_ = std::move(place);
  }

  // Of a sample beside damage: these are in the damage.
  bool lacks_entries(const Place& place) {
    guessed_ |= fields_ == 0;
    return fields_ == 0 || place.fields < fields_;
  }

  void put(const Place& place) {
    if (fields_ == 0 && place.sound()) fields_ = place.fields;
    index_.add(std::exchange(first_, false) ? 0 : place.begin, !place.sound());
  }

  size_t fields_, most_ = 0;
  bool guessed_ = false, first_ = true;
  std::optional<Place> open_, before_;
  RecordIndex::Builder index_;
};

std::string byte_text(uint64_t byte) { return "at byte " + std::to_string(byte) + ": "; }
std::string entry_text(const TarEntry& entry) {
  return "'" + escape_invalid_utf8(entry.name) + "'";
}

}  // namespace

RecordIndex index_tar(File& file, Progress* progress) {
  const uint64_t size = file.size();
  const auto report = [&](uint64_t offset) {
    if (progress != nullptr) progress->reached(std::min(offset, size), file.path());
  };
  for (size_t fields = 0;;) {
    FileBytes bytes(file, size);
    TarWalk walk(bytes);
    Places places(fields);
    for (TarWalk::Step step; (step = walk.next(report)) != TarWalk::Step::kEnd;) {
      if (step == TarWalk::Step::kDamage) {
        places.damage(walk.begin());
      } else if (walk.entry().regular) {
        const auto name = split_tar_name(walk.entry().name);
        if (name) places.entry(walk.begin(), name->key, step == TarWalk::Step::kCut);
      }
    }
    RecordIndex index = places.finish(size);
    report(size);
    if (!places.guessed()) return index;
    fields = places.fields();
  }
}

std::string explain_tar_damage(File& file, const RecordIndex::Place& place) {
  class Part : public ArchiveBytes {
   public:
    Part(File& file, uint64_t begin, uint64_t end) : bytes_(file, end), begin_(begin) {}
    Bytes view(uint64_t offset, uint64_t bytes) override {
      return offset >= TarEntry::kMaxSize ? Bytes() : bytes_.view(begin_ + offset, bytes);
    }
    bool reaches(uint64_t end) override { return bytes_.reaches(begin_ + end); }

   private:
    FileBytes bytes_;
    const uint64_t begin_;
  };
  const uint64_t size = file.size();
  Part bytes(file, place.offset, std::min(size, place.offset + place.bytes));
  TarWalk walk(bytes, 0);
  std::string before;
  while (true) {
    const TarWalk::Step step = walk.next();
    const std::string where = byte_text(place.offset + walk.begin());
    if (step == TarWalk::Step::kEntry) {
      before = ", behind entry " + entry_text(walk.entry());
    } else if (step == TarWalk::Step::kCut) {
      return "entry " + entry_text(walk.entry()) + " " + where + "the file ends within it";
    } else if (step == TarWalk::Step::kDamage) {
      return where + walk.why() + before;
    } else {
      return "the file has changed since it was indexed";
    }
  }
}

std::vector<std::string> first_tar_fields(const std::shared_ptr<File>& file,
                                          Compression compression) {
  constexpr uint64_t kSearched = 16 << 20;
  std::unique_ptr<ArchiveBytes> bytes;
  if (compression == Compression::kNone) {
    bytes = std::make_unique<FileBytes>(*file, file->size());
  } else {
    bytes = std::make_unique<InflatedBytes>(file, compression);
  }
  TarWalk walk(*bytes, kSearched);
  std::string key;
  std::vector<std::string> fields, most;       // of this sample; of the one beside damage with most
  bool damage = false, behind_damage = false;  // was just there; was there before this sample
  for (TarWalk::Step step; (step = walk.next()) != TarWalk::Step::kEnd;) {
    const bool sound = step == TarWalk::Step::kEntry;
    const auto name = sound ? split_tar_name(walk.entry().name) : std::nullopt;
    if (sound && (!name || !walk.entry().regular)) continue;
    if (!sound || name->key != key) {  // the sample before is over
      if (!fields.empty() && sound && !behind_damage) return fields;
      if (fields.size() > most.size()) most = fields;
      fields.clear();
      key = sound ? name->key : std::string_view();
      behind_damage = std::exchange(damage, !sound);
      if (!sound) continue;
    }
    if (std::find(fields.begin(), fields.end(), name->extension) == fields.end()) {
      fields.push_back(name->extension);
    }
  }
  return fields.size() >= most.size() || (!fields.empty() && !behind_damage) ? fields : most;
}

}  // namespace penstock
