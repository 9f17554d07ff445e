#include "penstock/pipeline/cache/snapshot_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/posix_files.h"

namespace penstock {
namespace {

using Header = SnapshotPlaces::Header;
constexpr uint64_t kUnknown = SnapshotPlaces::kUnknown;
constexpr uint64_t kMaxSpecBytes = 1 << 20;

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

}  // namespace penstock
