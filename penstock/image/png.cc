#include <isa-l/crc.h>
#include <png.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/image/decoder.h"
#include "penstock/image/exif.h"
#include "penstock/image/pixels.h"

namespace penstock::image {
namespace {

// libpng ends its calls by longjmp: the functions that take these jumps have no objects with
// destructors, and no callback of C++ is in between.
struct PngState {
  png_structp png = nullptr;
  png_infop info = nullptr;
  char text[128] = {};
  const uint8_t* bytes = nullptr;
  size_t size = 0, at = 0;
  bool partial = false, cut = false;
  bool ended = false;      // more bytes were asked for than there are
  uint64_t rows_left = 0;  // of all passes, not inflated yet
  std::span<const std::byte> exif;
  int width = 0, height = 0, channels = 3;
  int line_channels = 3;  // of the rows that libpng gives
  int passes = 1;
  size_t line = 0;  // bytes
  std::vector<uint8_t> lines, converted;
  std::vector<png_bytep> rows;

  void close() {
    if (png != nullptr) png_destroy_read_struct(&png, &info, nullptr);
  }
};

constexpr size_t kSignature = 8;
constexpr std::string_view kMagic("\x89PNG\r\n\x1a\n", kSignature);
// Unread bytes of data behind the last row: the end of its stream, and what encoders may leave.
constexpr size_t kMaxTrailing = 4096;
constexpr png_alloc_size_t kMaxChunk = png_alloc_size_t{8} << 20;  // of one that libpng keeps

void leave(png_structp png, png_const_charp text) {
  auto& state = *static_cast<PngState*>(png_get_error_ptr(png));
  std::snprintf(state.text, sizeof(state.text), "%s", text);
  png_longjmp(png, 1);
}

// What an ancillary chunk says wrongly costs no pixel.
void ignore(png_structp, png_const_charp) {}

void give_bytes(png_structp png, png_bytep to, size_t count) {
  auto& state = *static_cast<PngState*>(png_get_io_ptr(png));
  // Behind the last row libpng would inflate all that is left, however much it becomes.
  if (state.rows_left == 0) png_error(png, "");
  if (count > state.size - state.at) {
    state.ended = true;
    png_error(png, "it is cut off");
  }
  std::memcpy(to, state.bytes + state.at, count);
  state.at += count;
}

// Libpng calls this with each inflated row, before it looks for the next one.
void count_row(png_structp png, png_row_infop, png_bytep) {
  --static_cast<PngState*>(png_get_io_ptr(png))->rows_left;
}

// Each of these returns false after a jump, with the reason in state.text.
bool open_png(PngState& state) {
  state.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &state, leave, ignore);
  if (state.png == nullptr) return false;
  if (setjmp(png_jmpbuf(state.png)) != 0) return false;
  state.info = png_create_info_struct(state.png);
  if (state.info == nullptr) return false;
  png_set_read_fn(state.png, &state, give_bytes);
  png_set_crc_action(state.png, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE);  // they were verified
  // Compressed texts are neither inflated nor kept.
  constexpr png_byte kTexts[] = "iCCP\0iTXt\0zTXt";
  png_set_keep_unknown_chunks(state.png, PNG_HANDLE_CHUNK_NEVER, kTexts, sizeof(kTexts) / 5);
  png_set_read_user_transform_fn(state.png, count_row);
  png_set_chunk_malloc_max(state.png, kMaxChunk);
  png_set_user_limits(state.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // they were looked at
  // Up to the last byte of a file that is cut off.
  if (state.cut) png_set_compression_buffer_size(state.png, 1);
  png_read_info(state.png, state.info);
  const int colour = png_get_color_type(state.png, state.info);
  const bool transparent = png_get_valid(state.png, state.info, PNG_INFO_tRNS) != 0;
  png_set_expand(state.png);
  png_set_strip_16(state.png);
  const bool grey = (colour & PNG_COLOR_MASK_COLOR) == 0;
  if (grey && state.channels > 1) png_set_gray_to_rgb(state.png);
  if (state.channels == 4) {
    if ((colour & PNG_COLOR_MASK_ALPHA) == 0 && !transparent) {
      png_set_add_alpha(state.png, 0xFF, PNG_FILLER_AFTER);
    }
  } else {
    png_set_strip_alpha(state.png);
  }
  state.passes = png_set_interlace_handling(state.png);
  png_read_update_info(state.png, state.info);
  state.line = png_get_rowbytes(state.png, state.info);
  state.line_channels = png_get_channels(state.png, state.info);
  return true;
}

bool read_row(PngState& state, png_bytep to) {
  if (setjmp(png_jmpbuf(state.png)) != 0) return false;
  png_read_row(state.png, to, nullptr);
  return true;
}

bool read_all(PngState& state, png_bytepp rows) {
  if (setjmp(png_jmpbuf(state.png)) != 0) return false;
  png_read_image(state.png, rows);
  return true;
}

[[noreturn]] void fail(PngState& state, const std::string& what) {
  state.close();
  fail_damaged("PNG", what, state.at, state.size);
}

uint32_t number_at(const uint8_t* at) {
  return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
}

// Letters of a chunk's name; any other byte: "?".
std::string printable(std::string_view name) {
  std::string text(name);
  for (char& c : text) {
    if ((c < 'A' || c > 'Z') && (c < 'a' || c > 'z')) c = '?';
  }
  return text;
}

void count_rows(PngState& state, bool interlaced) {
  const auto width = static_cast<uint64_t>(state.width),
             height = static_cast<uint64_t>(state.height);
  state.rows_left = interlaced ? 0 : height;
  for (int pass = 0; interlaced && pass < PNG_INTERLACE_ADAM7_PASSES; ++pass) {
    if (PNG_PASS_COLS(width, pass) > 0) state.rows_left += PNG_PASS_ROWS(height, pass);
  }
}

// The bytes of image data that libpng has not read, behind the last row.
size_t data_behind(const PngState& state) {
  size_t behind = 0;
  for (size_t at = kSignature; at < state.size;) {
    const size_t length = number_at(state.bytes + at), end = at + 8 + length;
    const bool data = std::memcmp(state.bytes + at + 4, "IDAT", 4) == 0;
    if (data && end > state.at) behind += end - std::max(at + 8, state.at);
    if (std::memcmp(state.bytes + at + 4, "IEND", 4) == 0) break;
    at = end + 4;
  }
  return behind;
}

// Goes over the chunks, of which nothing is taken on trust before memory is taken.
void look_over(PngState& state) {
  constexpr size_t kChunk = 12, kHeader = 13;  // length, name and checksum; IHDR's
  // Deflate makes at most 1032 bytes of one.
  constexpr uint64_t kMaxInflation = 1032;
  const std::string_view all(reinterpret_cast<const char*>(state.bytes), state.size);
  state.at = kSignature;
  uint64_t compressed = 0;
  bool first = true, ended = false;
  uint64_t wanted = 0;
  while (!ended) {
    const size_t left = state.size - state.at;
    const size_t length = left < kChunk ? 0 : number_at(state.bytes + state.at);
    state.cut = left < kChunk || length > left - kChunk;
    if (state.cut && state.partial && !first) break;
    if (left < kChunk) fail(state, "it is cut off");
    if (state.cut) fail(state, "a chunk is longer than the file");
    const std::string_view name = all.substr(state.at + 4, 4);
    const uint8_t* body = state.bytes + state.at + 8;
    if (first != (name == "IHDR") || (first && length != kHeader)) {
      fail(state, "its header is not where it belongs");
    }
    // Of the name and the body.
    if (crc32_gzip_refl(0, body - 4, length + 4) != number_at(body + length)) {
      fail(state, "the checksum of its chunk " + printable(name) + " does not match");
    }
    if (first) {
      const uint64_t width = number_at(body), height = number_at(body + 4);
      if (!decodable(width, height)) fail(state, claim_beyond_limit(width, height));
      state.width = static_cast<int>(width);
      state.height = static_cast<int>(height);
      const int depth = body[8], colour = body[9];
      const int values = colour == PNG_COLOR_TYPE_RGB          ? 3
                         : colour == PNG_COLOR_TYPE_RGB_ALPHA  ? 4
                         : colour == PNG_COLOR_TYPE_GRAY_ALPHA ? 2
                                                               : 1;
      wanted = (width * static_cast<uint64_t>(values * depth) + 7) / 8 * height;
      count_rows(state, body[12] == PNG_INTERLACE_ADAM7);
    }
    if (name == "IDAT") compressed += length;
    if (name == "eXIf") state.exif = std::as_bytes(std::span(body, length));
    first = false;
    ended = name == "IEND";
    state.at += kChunk + length;
  }
  if (!state.cut && wanted / kMaxInflation > compressed) {
    fail(state, claim_beyond_bytes(static_cast<uint64_t>(state.width),
                                   static_cast<uint64_t>(state.height)));
  }
  state.at = 0;
}

// Libpng's own grey is another one than Pillow's.
const uint8_t* in_wanted_channels(PngState& state, const uint8_t* row, int pixels) {
  if (state.line_channels == state.channels) return row;
  for (int i = 0; i < pixels; ++i) state.converted[static_cast<size_t>(i)] = luma(row + 3 * i);
  return state.converted.data();
}

// Decodes PNGs by libpng: all colour types and depths, interlaced or not. Of 16 bits the upper 8
// count, as in Pillow. With 3 channels alpha is left out, with 1 colours become grey.
//
// A wrong checksum of any chunk is damage, and so is data that goes on behind the last row: no more
// is inflated than the pixels need, and some megabytes. Compressed texts are not inflated.
class PngReader : public Decoder {
 public:
  ~PngReader() override { state_.close(); }

  void open(std::span<const std::byte> bytes, const DecodeOptions& options) override;
  int width() const override { return state_.width; }
  int height() const override { return state_.height; }
  int orientation() const override { return exif_orientation(state_.exif); }
  void read(int x0, int y0, int x1, int y1, RowTaker& taker) override;

 private:
  PngState state_;
};

}  // namespace

void PngReader::open(std::span<const std::byte> bytes, const DecodeOptions& options) {
  PngState& state = state_;
  state.close();
  state.bytes = reinterpret_cast<const uint8_t*>(bytes.data());
  state.size = bytes.size();
  state.at = 0;
  state.channels = options.channels;
  state.partial = options.partial;
  state.cut = state.ended = false;
  state.exif = {};
  state.text[0] = '\0';
  if (bytes.size() < kSignature || std::memcmp(bytes.data(), kMagic.data(), kSignature) != 0) {
    fail(state, "it has no signature");
  }
  look_over(state);
  if (!open_png(state)) fail(state, state.text);
}

void PngReader::read(int x0, int y0, int x1, int y1, RowTaker& taker) {
  PngState& state = state_;
  const bool whole = state.passes > 1;
  const auto height = static_cast<size_t>(state.height);
  state.lines.assign(state.line * (whole ? height : 1), 0);
  state.converted.resize(static_cast<size_t>(x1 - x0));
  const auto check = [&](bool read) {
    const bool complete = state.rows_left == 0;
    if (!read && !complete && !(state.partial && state.ended)) fail(state, state.text);
  };
  if (whole) {
    state.rows.resize(height);
    for (size_t y = 0; y < height; ++y) state.rows[y] = state.lines.data() + y * state.line;
    check(read_all(state, state.rows.data()));
  }
  for (int y = 0; y < state.height; ++y) {
    uint8_t* line = state.lines.data() + (whole ? static_cast<size_t>(y) * state.line : 0);
    if (!whole && !state.ended) {
      check(read_row(state, line));
      if (state.ended) std::fill_n(line, state.line, uint8_t{0});
    }
    if (y < y0 || y >= y1) continue;
    taker.take(in_wanted_channels(state, line + x0 * state.line_channels, x1 - x0));
  }
  if (!state.cut && data_behind(state) > kMaxTrailing) {
    fail(state, "its data goes on behind the last row");
  }
  state.close();
}

std::unique_ptr<Decoder> png_decoder() { return std::make_unique<PngReader>(); }

}  // namespace penstock::image
