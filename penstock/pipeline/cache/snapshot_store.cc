#include "penstock/pipeline/cache/snapshot_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/io/crc32c.h"
#include "penstock/io/file.h"

namespace penstock {
namespace {

using Header = SnapshotPlaces::Header;
constexpr uint64_t kUnknown = SnapshotPlaces::kUnknown;
constexpr uint64_t kMaxSpecBytes = 1 << 20;

uint64_t up(uint64_t bytes) { return (bytes + kSnapshotUnit - 1) / kSnapshotUnit * kSnapshotUnit; }

}  // namespace

SnapshotStore::SnapshotStore(std::string path, Attached)
    : path_(std::move(path)), fills_(false), remedy_("make it again, by cache() with this path") {}

SnapshotStore::SnapshotStore(std::string path) : SnapshotStore(std::move(path), Attached()) {
  load();
}

SnapshotStore::SnapshotStore(std::string path, std::vector<std::string> plan,
                             std::optional<uint64_t> positions, Attached)
    : path_(resolve_links(std::filesystem::absolute(path))),
      plan_(std::move(plan)),
      positions_(positions),
      fills_(true),
      remedy_("delete it, and the next pass makes it again") {}

SnapshotStore::SnapshotStore(std::string path, std::vector<std::string> plan,
                             std::optional<uint64_t> positions)
    : SnapshotStore(std::move(path), std::move(plan), positions, Attached()) {
  if (posix_files()->kind(path_) != FileSystem::Kind::kNothing) {
    load();
  } else if (positions_ == 0) {  // no element will trigger the check
    open();
    finish();
  }
}

SnapshotStore::~SnapshotStore() {
  if (!begun_ || filling_ == nullptr || !filling_->owned()) return;
  try {  // finishes the file if a killed worker left that undone
    if (places_->header().finished != SnapshotPlaces::kWhole && all_there()) finish();
  } catch (const std::exception&) {  // there is no file then; a destructor cannot report that
  }
}

// ---- a complete file ---------------------------------------------------------------------------

void SnapshotStore::load() {
  std::call_once(opened_, [this] {
    os::Fd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    (void)posix_files()->open(path_);  // throws if the file cannot be opened
    if (!fd) throw Error::from_errno(errno, "open", path_);
    file_ = posix_file(path_, os::duplicate(fd.get(), "snapshot"));
    fd_ = std::move(fd);
    try {
      std::string text;
      const SnapshotFooter end = read_snapshot_footer(*file_, text);
      if (fills_) check(text, end.elements);
      places_ = std::make_unique<SnapshotPlaces>(end.elements);
      read_snapshot_index(*file_, end, places_->words(end.elements));
      Header& header = places_->header();
      header.used = end.index | SnapshotPlaces::kClosed;
      header.next = end.elements;
      header.spec = end.spec;
      header.several = end.spec == 0 ? SnapshotPlaces::kOthers : SnapshotPlaces::kNone;
      header.finished = SnapshotPlaces::kWhole;
      if (fills_) {
        const auto said = nlohmann::json::parse(text);
        header.seed = said.at("seed").get<uint64_t>();
        header.lost = said.value("lost", uint64_t{0});
      }
      begun_ = true;
    } catch (const Error& error) {
      if (error.code() != Code::kDataLoss) throw;
      throw Error(Code::kDataLoss, fills_ ? "cache" : "snapshot",
                  std::string(error.what()).substr(error.operation().size() + 2) + "; " + remedy_);
    }
  });
}

void SnapshotStore::refuse(const std::string& why) const {
  throw Error(Code::kInvalidArgument, "cache",
              path_ + " has the elements of another chain: " + why +
                  "; delete it to have it made again, or name another file");
}

void SnapshotStore::check(const std::string& text, uint64_t elements) const {
  const auto said = nlohmann::json::parse(text, nullptr, false);
  if (!said.is_object() || !said.contains("plan") || !said["plan"].is_array() ||
      !said.contains("seed") || !said["seed"].is_number_unsigned() ||
      (said.contains("lost") && !said["lost"].is_number_unsigned())) {
    throw_corrupt_snapshot(path_, 0, "it does not say what it was made by");
  }
  const auto& plan = said["plan"];
  for (size_t i = 0; i < std::max(plan.size(), plan_.size()); ++i) {
    const std::string there = i < plan.size() ? plan[i].dump() : "none";
    const std::string here = i < plan_.size() ? nlohmann::json(plan_[i]).dump() : "none";
    if (there != here) {
      refuse("its stage " + std::to_string(i + 1) + " is " + there + ", and here " + here);
    }
  }
  if (positions_ && *positions_ != elements) {
    refuse("it has " + std::to_string(elements) + " elements, and here are " +
           std::to_string(*positions_));
  }
}

// ---- sharing -----------------------------------------------------------------------------------

void SnapshotStore::open() {
  std::call_once(opened_, [this] {
    filling_ = std::make_unique<AtomicFile>(path_);
    fd_ = os::duplicate(filling_->fd(), "snapshot");
    file_ = posix_file(path_, os::duplicate(filling_->fd(), "snapshot"));
    places_ = std::make_unique<SnapshotPlaces>(positions_);
    Header& header = places_->header();
    if (filling_->hidden().size() >= sizeof(header.hidden)) {
      throw Error(Code::kInvalidArgument, "cache", path_ + ": the path is too long");
    }
    std::memcpy(header.hidden, filling_->hidden().c_str(), filling_->hidden().size() + 1);
    const auto front = snapshot_header();
    write_at(fd_.get(), 0, front.data(), front.size(), path_);
    header.used = kSnapshotHeaderBytes;
    begun_ = true;
  });
}

std::vector<int> SnapshotStore::fds() {
  open();
  return {places_->fd(), fd_.get()};
}

void SnapshotStore::attach(std::vector<os::Fd> fds) {
  places_ = std::make_unique<SnapshotPlaces>(std::move(fds.at(0)));
  fd_ = std::move(fds.at(1));
  file_ = posix_file(path_, os::duplicate(fd_.get(), "snapshot"));
  filling_ = nullptr;
  const uint64_t end = places_->header().end;
  std::call_once(opened_, [] {});
  begun_ = true;
  if (positions_ && end != *positions_) {
    throw Error(Code::kInvalidArgument, "cache", "it is the cache of another plan");
  }
}

void SnapshotStore::set_seed(uint64_t seed) {
  open();
  if (positions_ == 0) return;
  uint64_t known = kUnknown;
  const uint64_t asked = std::min(seed, kUnknown - 1);
  if (!places_->header().seed.compare_exchange_strong(known, asked) && known != asked) {
    refuse("it is made with build(seed=" + std::to_string(known) + "), and here with " +
           std::to_string(seed));
  }
}

// ---- reading -----------------------------------------------------------------------------------

std::optional<SnapshotPlace> SnapshotStore::find(uint64_t position) {
  open();
  if (position >= places_->capacity()) return std::nullopt;
  std::atomic<uint64_t>* word = places_->word(position);
  const uint64_t place = word == nullptr ? 0 : word->load(std::memory_order_acquire);
  return place == 0 ? std::nullopt : std::optional(SnapshotPlace(place));
}

const std::shared_ptr<File>& SnapshotStore::file() {
  open();
  return file_;
}

std::vector<std::byte> SnapshotStore::spec(uint64_t place) {
  open();
  return record(place, SnapshotRecordHeader::kSpec, "spec");
}

std::vector<std::byte> SnapshotStore::trailing_losses() {
  const uint64_t place = places_->header().lost;
  if (place == 0) return {};
  return record(place, SnapshotRecordHeader::kLost,
                "record of what was lost behind the last element");
}

// Reads and checks a record that is not an element's.
std::vector<std::byte> SnapshotStore::record(uint64_t place, uint64_t what,
                                             const std::string& name) {
  const uint64_t used = places_->header().used & ~SnapshotPlaces::kClosed;
  SnapshotRecordHeader head;
  if (place < kSnapshotHeaderBytes || place % kSnapshotUnit != 0 || place >= used ||
      used - place < sizeof(head)) {
    throw_corrupt_snapshot(path_, place, "there is no " + name + "; " + remedy_);
  }
  File::Segment segment{place, reinterpret_cast<std::byte*>(&head), sizeof(head)};
  file_->read({&segment, 1});
  if (head.bytes > used - place - sizeof(head) || head.position != what ||
      (what == SnapshotRecordHeader::kSpec && head.bytes > kMaxSpecBytes)) {
    throw_corrupt_snapshot(path_, place, "there is no " + name + "; " + remedy_);
  }
  std::vector<std::byte> bytes(head.bytes);
  segment = {place + sizeof(head), bytes.data(), bytes.size()};
  if (!bytes.empty()) file_->read({&segment, 1});
  if (head.checksum(bytes) != head.crc) {
    throw_corrupt_snapshot(path_, place, "the checksum of the " + name + " is wrong; " + remedy_);
  }
  return bytes;
}

std::optional<uint64_t> SnapshotStore::only_spec() {
  const Header& header = places_->header();
  if (header.finished != SnapshotPlaces::kWhole) return std::nullopt;
  if (header.several == SnapshotPlaces::kOthers) return std::nullopt;
  return header.spec;
}

std::optional<uint64_t> SnapshotStore::end() {
  open();
  const uint64_t end = places_->header().end.load(std::memory_order_acquire);
  return end == kUnknown ? std::nullopt : std::optional(end);
}

// ---- filling and finishing the file ------------------------------------------------------------

// 0: `used` is closed.
uint64_t SnapshotStore::claim(uint64_t bytes) {
  std::atomic<uint64_t>& used = places_->header().used;
  uint64_t at = used.load(std::memory_order_relaxed);
  do {
    if ((at & SnapshotPlaces::kClosed) != 0) return 0;
    if (bytes > SnapshotPlace::kMaxPlace - at) {
      throw Error(Code::kSystem, "cache", path_ + " would be longer than a snapshot may be: 8 TiB");
    }
  } while (!used.compare_exchange_weak(at, at + bytes, std::memory_order_relaxed));
  return at;
}

uint64_t SnapshotStore::append(SnapshotRecordHeader head, std::span<const std::byte> contents,
                               std::span<const std::byte> lost) {
  static constexpr std::array<std::byte, kSnapshotUnit> kZeroes{};
  const uint64_t end = sizeof(head) + contents.size() + lost.size();
  const uint64_t at = claim(up(end));
  if (at == 0) return 0;
  head.bytes = contents.size() + lost.size();
  head.lost = static_cast<uint32_t>(lost.size());
  head.crc = crc32c(lost, head.checksum(contents));
  write_at(fd_.get(), at, &head, sizeof(head), path_);
  write_at(fd_.get(), at + sizeof(head), contents.data(), contents.size(), path_);
  write_at(fd_.get(), at + sizeof(head) + contents.size(), lost.data(), lost.size(), path_);
  write_at(fd_.get(), at + end, kZeroes.data(), up(end) - end, path_);
  return at;
}

uint64_t SnapshotStore::spec_record(std::span<const std::byte> spec) {
  const uint64_t at = append({.position = SnapshotRecordHeader::kSpec}, spec);
  if (at == 0) return 0;
  uint64_t first = 0;
  SnapshotPlaces::Header& header = places_->header();
  if (!header.spec.compare_exchange_strong(first, at)) {
    uint32_t unknown = SnapshotPlaces::kUnknownSpecs;
    if (!std::ranges::equal(this->spec(first), spec)) {
      header.several.compare_exchange_strong(unknown, SnapshotPlaces::kOthers);
    }
  }
  return at;
}

void SnapshotStore::put(uint64_t position, std::span<const std::byte> spec, uint64_t& spec_place,
                        std::span<const std::byte> block, std::span<const std::byte> lost) {
  open();
  if (position >= places_->capacity()) {
    throw Error(Code::kOutOfMemory, "cache",
                path_ + ": there is no address space for more than " +
                    std::to_string(places_->capacity()) + " elements");
  }
  const uint64_t bytes = block.size() + lost.size();
  if (bytes > SnapshotPlace::kMaxBytes - sizeof(SnapshotRecordHeader)) {
    throw Error(Code::kInvalidArgument, "cache",
                path_ + ": element " + std::to_string(position) + " has " + std::to_string(bytes) +
                    " bytes, and those of a snapshot are shorter than 2 GiB");
  }
  std::atomic<uint64_t>* word = places_->word(position);
  if (word == nullptr) {
    throw Error::from_errno(ENOMEM, "cache", path_ + ": memory for where its elements lie");
  }
  if (word->load(std::memory_order_relaxed) != 0) return;
  if (spec_place == 0) spec_place = spec_record(spec);
  const uint64_t at =
      spec_place == 0 ? 0 : append({.spec = spec_place, .position = position}, block, lost);
  if (at == 0) return;  // closed, so another process published this position meanwhile
  const SnapshotPlace place(at, up(sizeof(SnapshotRecordHeader) + bytes));
  uint64_t none = 0;
  if (word->compare_exchange_strong(none, place.word())) finish_if_all();
}

void SnapshotStore::set_end(uint64_t end, std::span<const std::byte> lost) {
  open();
  SnapshotPlaces::Header& header = places_->header();
  uint64_t unknown = SnapshotPlaces::kUnknown;
  if (header.lost == unknown) {
    const uint64_t at =
        lost.empty() ? 0 : append({.position = SnapshotRecordHeader::kLost}, {}, lost);
    header.lost.compare_exchange_strong(unknown, at);
    unknown = SnapshotPlaces::kUnknown;
  }
  header.end.compare_exchange_strong(unknown, end, std::memory_order_acq_rel);
  finish_if_all();
}

// Words and `next` are written in one total order (seq_cst). A process that sets a word and then
// finds an earlier one empty leaves the check to the process that sets the earlier word.
bool SnapshotStore::all_there() {
  SnapshotPlaces::Header& header = places_->header();
  const uint64_t end = header.end, most = std::min(end, places_->capacity());
  auto is_set = [&](uint64_t position) {
    const std::atomic<uint64_t>* word = places_->word(position);
    return word != nullptr && word->load() != 0;
  };
  uint64_t next = header.next;
  while (true) {
    uint64_t to = next;
    while (to < most && is_set(to)) ++to;
    if (to == next) return next == end;
    if (header.next.compare_exchange_strong(next, to)) next = to;
  }
}

void SnapshotStore::finish_if_all() {
  std::atomic<uint32_t>& finished = places_->header().finished;
  uint32_t filling = SnapshotPlaces::kFilling;
  if (!all_there() || !finished.compare_exchange_strong(filling, SnapshotPlaces::kFinishing)) {
    return;
  }
  try {
    finish();
  } catch (...) {
    uint32_t finishing = SnapshotPlaces::kFinishing;
    if (!finished.compare_exchange_strong(finishing, SnapshotPlaces::kFilling)) {
      // Finished by a process that stopped waiting for this one.
      if (finishing == SnapshotPlaces::kWhole) return;
    }
    os::futex_wake(finished, INT_MAX, true);
    throw;
  }
}

void SnapshotStore::end_pass() {
  if (!begun_) return;
  std::atomic<uint32_t>& finished = places_->header().finished;
  const uint64_t until = now_ns() + std::chrono::nanoseconds(kPatience).count();
  while (finished != SnapshotPlaces::kWhole && all_there()) {
    finish_if_all();
    if (finished != SnapshotPlaces::kFinishing) continue;
    const uint64_t now = now_ns();
    if (now >= until) return finish();
    os::futex_wait(finished, SnapshotPlaces::kFinishing, static_cast<int64_t>(until - now), true);
  }
}

// Builds the JSON by hand: destroying an array of the JSON library allocates memory, which would
// end the process if there is none.
std::string SnapshotStore::text() const {
  const SnapshotPlaces::Header& header = places_->header();
  std::string said = "{";
  if (header.lost != 0) {
    said.append("\"lost\":").append(std::to_string(header.lost)).append(",");
  }
  said.append("\"plan\":[");
  for (size_t i = 0; i < plan_.size(); ++i) {
    said.append(i == 0 ? "" : ",").append(nlohmann::json(plan_[i]).dump());
  }
  return said.append("],\"seed\":").append(std::to_string(header.seed)).append("}");
}

// Returns the offset of the end of the index.
uint64_t SnapshotStore::write_index(SnapshotFooter& end) {
  constexpr uint64_t kPiece = 8192;
  std::vector<uint64_t> piece;
  uint64_t at = end.index;
  for (uint64_t position = 0; position < end.elements; at += piece.size() * sizeof(uint64_t)) {
    piece.clear();
    for (; position < end.elements && piece.size() < kPiece; ++position) {
      // The word is final, though other processes may still try to set it.
      const std::atomic<uint64_t>* word = places_->word(position);
      if (word == nullptr) {
        throw Error::from_errno(ENOMEM, "cache", path_ + ": memory for where its elements lie");
      }
      piece.push_back(word->load(std::memory_order_acquire));
    }
    const auto bytes = std::as_bytes(std::span(piece));
    end.index_crc = crc32c(bytes, end.index_crc);
    write_at(fd_.get(), at, bytes.data(), bytes.size(), path_);
  }
  return at;
}

// Several processes may do this at once; all write the same bytes.
void SnapshotStore::finish() {
  SnapshotPlaces::Header& header = places_->header();
  SnapshotFooter end;
  end.elements = header.end;
  end.index = header.used.fetch_or(SnapshotPlaces::kClosed) & ~SnapshotPlaces::kClosed;
  end.text = write_index(end);
  const std::string said = text();
  end.text_bytes = said.size();
  end.text_crc = crc32c(std::as_bytes(std::span(said)));
  write_at(fd_.get(), end.text, said.data(), said.size(), path_);
  uint32_t several = SnapshotPlaces::kUnknownSpecs;
  header.several.compare_exchange_strong(several, SnapshotPlaces::kNone);
  end.spec = header.several == SnapshotPlaces::kOthers ? 0 : header.spec.load();
  const auto bytes = end.bytes();
  write_at(fd_.get(), end.text + said.size(), bytes.data(), bytes.size(), path_);
  if (!publish_file(fd_.get(), header.hidden, path_)) {
    // The path names another process's file: it must be of the same chain.
    const SnapshotStore theirs(path_, plan_, positions_);
  }
  header.finished = SnapshotPlaces::kWhole;
  os::futex_wake(header.finished, INT_MAX, true);
}

}  // namespace penstock
