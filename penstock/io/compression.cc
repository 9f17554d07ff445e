#include "penstock/io/compression.h"

#include <isa-l/igzip_lib.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/remote_files.h"

namespace penstock {

namespace {

unsigned at(std::span<const std::byte> bytes, size_t i) {
  return std::to_integer<unsigned>(bytes[i]);
}

}  // namespace

bool has_gzip_magic(std::span<const std::byte> bytes) {
  // Magic, method deflate, and flags, of which the upper three are reserved.
  return bytes.size() >= 4 && at(bytes, 0) == 0x1F && at(bytes, 1) == 0x8B && at(bytes, 2) == 8 &&
         (at(bytes, 3) & 0xE0) == 0;
}

bool has_zlib_magic(std::span<const std::byte> bytes) {
  // Deflate with a window of at most 32 KiB, no dictionary, and a valid header checksum.
  return bytes.size() >= 2 && (at(bytes, 0) & 15) == 8 && at(bytes, 0) >> 4 <= 7 &&
         (at(bytes, 1) & 0x20) == 0 && (at(bytes, 0) << 8 | at(bytes, 1)) % 31 == 0;
}

bool has_gzip_extension(std::string_view path) { return without_query(path).ends_with(".gz"); }

Compression compression_from_name(std::string_view name, const char* operation) {
  if (name == "gzip") return Compression::kGzip;
  if (name == "zlib") return Compression::kZlib;
  if (name == "none") return Compression::kNone;
  throw Error(Code::kInvalidArgument, operation,
              "compression is '" + std::string(name) +
                  "'; give 'gzip', 'zlib' or 'none', or nothing to detect it from the files");
}

struct Inflate::State {
  std::shared_ptr<File> file;
  Compression compression;
  uint64_t size, offset = 0;         // size of the file; bytes of the file read so far
  bool between = true, any = false;  // outside a member; a member has ended
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

// Decompresses within a member. Returns how many bytes were produced.
size_t Inflate::step(std::span<std::byte> to) {
  refill();
  inflate_state& isal = state_->isal;
  const uint64_t before = used();
  const auto space = static_cast<uint32_t>(std::min<size_t>(to.size(), 1u << 30));
  isal.next_out = reinterpret_cast<uint8_t*>(to.data());
  isal.avail_out = space;
  const uint32_t left = isal.avail_in;
  const int result = isal_inflate(&isal);
  if (result != ISAL_DECOMP_OK) isal.avail_in = left;  // undefined after an error
  if (result == ISAL_INCORRECT_CHECKSUM) {
    damaged("their checksum does not match");
  } else if (result != ISAL_DECOMP_OK) {
    damaged("they are not valid compressed data");
  } else if (isal.block_state == ISAL_BLOCK_FINISH) {
    state_->between = state_->any = true;
  } else if (isal.avail_out == space && used() == before) {
    damaged("the file ends too early");
  }
  return space - isal.avail_out;
}

// Reads more input. False: the input has ended.
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

// Begins the next member. False: no member is left.
bool Inflate::begin_member() {
  State& state = *state_;
  while (refill()) {
    if (state.any && state.compression == Compression::kZlib) {
      damaged("unexpected bytes follow the end");
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

namespace {

class Deflated : public Sink {
 public:
  Deflated(std::unique_ptr<Sink> sink, Compression compression) : sink_(std::move(sink)) {
    isal_deflate_init(&isal_);
    isal_.gzip_flag = compression == Compression::kGzip ? IGZIP_GZIP : IGZIP_ZLIB;
    isal_.level = 1;
    isal_.level_buf = memory_.data();
    isal_.level_buf_size = static_cast<uint32_t>(memory_.size());
  }

  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const size_t part = std::min<size_t>(bytes.size(), 1 << 30);
      run(bytes.first(part));
      bytes = bytes.subspan(part);
    }
  }

  void commit() override {
    isal_.end_of_stream = 1;
    run({});
    sink_->commit();
  }

 private:
  void run(std::span<const std::byte> bytes) {
    // ISA-L only reads the input, but takes a non-const pointer.
    isal_.next_in = const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(bytes.data()));
    isal_.avail_in = static_cast<uint32_t>(bytes.size());
    do {
      isal_.next_out = output_.data();
      isal_.avail_out = static_cast<uint32_t>(output_.size());
      if (isal_deflate(&isal_) != COMP_OK) {
        throw Error(Code::kInternal, "deflate", "ISA-L rejected the settings");
      }
      sink_->write(std::as_bytes(std::span(output_)).first(output_.size() - isal_.avail_out));
    } while (isal_.avail_out == 0);
  }

  const std::unique_ptr<Sink> sink_;
  isal_zstream isal_;
  std::array<uint8_t, ISAL_DEF_LVL1_DEFAULT> memory_;
  std::array<uint8_t, 64 << 10> output_;
};

}  // namespace

std::unique_ptr<Sink> compress_to(std::unique_ptr<Sink> sink, Compression compression) {
  return std::make_unique<Deflated>(std::move(sink), compression);
}

SequentialFile::SequentialFile(std::shared_ptr<File> file, Compression compression)
    : file_(std::move(file)), size_(file_->size()) {
  if (compression != Compression::kNone) inflate_.emplace(file_, compression);
}

size_t SequentialFile::read(std::span<std::byte> to) {
  if (inflate_) return inflate_->read(to);
  const size_t bytes = static_cast<size_t>(std::min<uint64_t>(to.size(), size_ - offset_));
  if (bytes == 0) return 0;
  const File::Segment segment{offset_, to.data(), bytes};
  file_->read({&segment, 1});
  offset_ += bytes;
  return bytes;
}

void SequentialFile::skip(uint64_t bytes) { offset_ += std::min(bytes, size_ - offset_); }

uint64_t SequentialFile::max_bytes() const {
  // Deflate's shortest code, of two bits, stands for at most 258 bytes.
  constexpr uint64_t kMaxPerByte = 4 * 258;
  return inflate_ ? size_ * kMaxPerByte : size_;
}

}  // namespace penstock
