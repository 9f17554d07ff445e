#include "penstock/io/inflate.h"

#include <isa-l/igzip_lib.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {

struct Inflate::State {
  std::shared_ptr<File> file;
  Compression compression;
  uint64_t size, offset = 0;         // of the file; of it, read so far
  bool between = true, any = false;  // no member has begun that has not ended; one has ended
  std::optional<Error> error;
  inflate_state isal;
  std::array<uint8_t, 64 << 10> input;
};

Inflate::Inflate(std::shared_ptr<File> file, Compression compression)
    : state_(std::make_unique<State>()) {
  state_->file = std::move(file);
  state_->compression = compression;
  state_->size = state_->file->size();
  isal_inflate_init(&state_->isal);
}

Inflate::~Inflate() = default;

uint64_t Inflate::used() const { return state_->offset - state_->isal.avail_in; }

size_t Inflate::read(std::span<std::byte> to) {
  size_t done = 0;
  try {
    while (done < to.size() && !state_->error) {
      if (state_->between && !begin_member()) break;
      done += step(to.subspan(done));
    }
  } catch (const Error& error) {
    state_->error = error;
  }
  if (done == 0 && state_->error) throw *state_->error;
  return done;
}

// Within a member. Returns how many bytes came.
size_t Inflate::step(std::span<std::byte> to) {
  refill();
  inflate_state& isal = state_->isal;
  const uint64_t before = used();
  const auto room = static_cast<uint32_t>(std::min<size_t>(to.size(), 1u << 30));
  isal.next_out = reinterpret_cast<uint8_t*>(to.data());
  isal.avail_out = room;
  const uint32_t left = isal.avail_in;
  const int result = isal_inflate(&isal);
  if (result != ISAL_DECOMP_OK) isal.avail_in = left;  // after an error it means nothing
  if (result == ISAL_INCORRECT_CHECKSUM) {
    damaged("they do not agree with their checksum");
  } else if (result != ISAL_DECOMP_OK) {
    damaged("they are nothing that was compressed");
  } else if (isal.block_state == ISAL_BLOCK_FINISH) {
    state_->between = state_->any = true;
  } else if (isal.avail_out == room && used() == before) {
    damaged("the file ends too early");
  }
  return room - isal.avail_out;
}

// Whether there is input.
bool Inflate::refill() {
  State& state = *state_;
  if (state.isal.avail_in > 0) return true;
  if (state.offset == state.size) return false;
  const uint64_t bytes = std::min<uint64_t>(state.input.size(), state.size - state.offset);
  const File::Segment segment{state.offset, reinterpret_cast<std::byte*>(state.input.data()),
                              bytes};
  state.file->read({&segment, 1});
  state.offset += bytes;
  state.isal.next_in = state.input.data();
  state.isal.avail_in = static_cast<uint32_t>(bytes);
  return true;
}

// Whether there is another member.
bool Inflate::begin_member() {
  State& state = *state_;
  while (refill()) {
    if (state.any && state.compression == Compression::kZlib) {
      damaged("something follows the end");
      return false;
    }
    if (!state.any || *state.isal.next_in != 0) {
      isal_inflate_reset(&state.isal);
      state.isal.crc_flag = state.compression == Compression::kGzip ? ISAL_GZIP : ISAL_ZLIB;
      state.between = false;
      return true;
    }
    ++state.isal.next_in;
    --state.isal.avail_in;
  }
  return false;
}

void Inflate::damaged(const char* why) {
  state_->error.emplace(Code::kDataLoss, "inflate",
                        state_->file->path() + ": the compressed bytes cannot be read on at byte " +
                            std::to_string(used()) + " of " + std::to_string(state_->size) + ": " +
                            why);
}

}  // namespace penstock
