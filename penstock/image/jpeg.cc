#include "penstock/image/jpeg.h"

#include <csetjmp>
#include <cstdio>
// After cstdio, which it takes FILE from.
#include <jpeglib.h>
// After jpeglib.
#include <jerror.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/image/exif.h"
#include "penstock/image/pixels.h"

namespace penstock::image {

// libjpeg ends its calls by longjmp: the functions that take these jumps have no objects with
// destructors, and no callback of C++ is in between.
struct JpegState {
  jpeg_error_mgr errors;
  jpeg_decompress_struct info;
  jpeg_progress_mgr progress;
  jmp_buf escape;
  char text[JMSG_LENGTH_MAX];
  const uint8_t* bytes = nullptr;
  size_t size = 0;
  bool partial = false;  // it is cut off, and what is there was asked for
  bool ended = false;    // and all that is there was read
  int channels = 3;
  int line_channels = 3;  // of the rows that libjpeg gives
  std::vector<uint8_t> lines, converted;
};

namespace {

// libjpeg's warnings that do not cost a pixel.
constexpr std::string_view kHarmless[] = {
    "extraneous bytes before marker",
    "Unknown Adobe color transform",
    "Inconsistent progression sequence",
    "unknown JFIF revision",
    "Application transferred too many scanlines",
};

JpegState& state_of(j_common_ptr info) { return *static_cast<JpegState*>(info->client_data); }

[[noreturn]] void leave(j_common_ptr info) {
  JpegState& state = state_of(info);
  info->err->format_message(info, state.text);
  std::longjmp(state.escape, 1);
}

void warned(j_common_ptr info, int level) {
  if (level >= 0) return;  // a trace
  JpegState& state = state_of(info);
  // libjpeg makes the rest of the image of zeros.
  state.ended |= state.partial && info->err->msg_code == JWRN_JPEG_EOF;
  if (state.ended) return;
  info->err->format_message(info, state.text);
  for (std::string_view harmless : kHarmless) {
    if (std::strstr(state.text, harmless.data()) != nullptr) return;
  }
  std::longjmp(state.escape, 1);
}

void count_scans(j_common_ptr info) {
  auto* decoder = reinterpret_cast<j_decompress_ptr>(info);
  if (decoder->input_scan_number <= JpegReader::kMaxScans) return;
  JpegState& state = state_of(info);
  std::snprintf(state.text, sizeof(state.text), "more than %d scans", JpegReader::kMaxScans);
  std::longjmp(state.escape, 1);
}

void say_nothing(j_common_ptr) {}

// Each of these returns false after a jump, with the reason in state.text.
bool create(JpegState& state) {
  state.info.err = jpeg_std_error(&state.errors);
  state.info.client_data = &state;
  state.errors.error_exit = leave;
  state.errors.emit_message = warned;
  state.errors.output_message = say_nothing;
  state.info.mem = nullptr;  // nothing to destroy if it fails
  if (setjmp(state.escape) != 0) return false;
  jpeg_create_decompress(&state.info);
  state.progress = {};
  state.progress.progress_monitor = count_scans;
  state.info.progress = &state.progress;
  return true;
}

bool read_header(JpegState& state) {
  if (setjmp(state.escape) != 0) return false;
  jpeg_mem_src(&state.info, state.bytes, static_cast<unsigned long>(state.size));
  jpeg_read_header(&state.info, TRUE);
  return true;
}

bool find_size(JpegState& state) {
  if (setjmp(state.escape) != 0) return false;
  jpeg_calc_output_dimensions(&state.info);
  return true;
}

bool start(JpegState& state) {
  if (setjmp(state.escape) != 0) return false;
  jpeg_start_decompress(&state.info);
  return true;
}

bool crop(JpegState& state, JDIMENSION* x, JDIMENSION* width) {
  if (setjmp(state.escape) != 0) return false;
  jpeg_crop_scanline(&state.info, x, width);
  return true;
}

bool skip_rows(JpegState& state, JDIMENSION rows) {
  if (setjmp(state.escape) != 0) return false;
  return jpeg_skip_scanlines(&state.info, rows) == rows;
}

JDIMENSION read_rows(JpegState& state, JSAMPROW* rows, JDIMENSION count) {
  if (setjmp(state.escape) != 0) return 0;
  return jpeg_read_scanlines(&state.info, rows, count);
}

// A band of all planes; false after a jump.
bool read_band(JpegState& state, JSAMPIMAGE planes, JDIMENSION lines) {
  if (setjmp(state.escape) != 0) return false;
  return jpeg_read_raw_data(&state.info, planes, lines) == lines;
}

[[noreturn]] void fail(JpegState& state, const std::string& what) {
  const size_t at = state.info.src == nullptr
                        ? 0
                        : state.size - std::min(state.size, state.info.src->bytes_in_buffer);
  jpeg_abort_decompress(&state.info);
  fail_damaged("JPEG", what, at, state.size);
}

// Every 8 by 8 block takes a bit, unless it is arithmetic coded.
bool can_hold(const JpegState& state) {
  if (state.info.arith_code) return true;
  const uint64_t blocks =
      ((uint64_t{state.info.image_width} + 7) / 8) * ((uint64_t{state.info.image_height} + 7) / 8);
  return blocks / 8 <= state.size;
}

// Ends a cut file before a segment of a marker that is not all there.
void leave_out_cut_segment(JpegState& state) {
  const uint8_t* bytes = state.bytes;
  const size_t size = state.size;
  size_t at = size - std::min(size, state.info.src->bytes_in_buffer);
  const auto end_at = [&](size_t place) {
    state.info.src->bytes_in_buffer -= size - place;
    state.size = place;
  };
  while (at + 1 < size) {
    const int marker = bytes[at + 1];
    const bool segment = bytes[at] == 0xFF && marker > 1 && marker != 0xFF &&
                         (marker < JPEG_RST0 || marker > JPEG_RST0 + 7);
    if (!segment) {
      ++at;
      continue;
    }
    if (size - at < 4) return end_at(at);
    const size_t length = size_t{bytes[at + 2]} << 8 | bytes[at + 3];
    if (length > size - at - 2) return end_at(at);
    at += 2 + length;
  }
}

// Looks for the end marker from the end on. It cannot be within a scan, and what follows it is not
// looked at by any decoder.
bool has_end(const JpegState& state) {
  const auto scans = state.size - std::min(state.size, state.info.src->bytes_in_buffer);
  for (size_t i = state.size; i >= scans + 2; --i) {
    if (state.bytes[i - 1] == JPEG_EOI && state.bytes[i - 2] == 0xFF) return true;
  }
  return false;
}

uint8_t product(int a, int b) {
  const int scaled = a * b + 128;
  return static_cast<uint8_t>(((scaled >> 8) + scaled) >> 8);
}

// Adobe's inverted CMYK, which Pillow takes every JPEG of four channels for.
void convert_cmyk(const uint8_t* in, uint8_t* out, int pixels, int channels) {
  for (int i = 0; i < pixels; ++i, in += 4, out += channels) {
    const int key = in[3];
    uint8_t rgb[3];
    for (int c = 0; c < 3; ++c) {
      rgb[c] = static_cast<uint8_t>(std::clamp(key - product(255 - in[c], key), 0, 255));
    }
    if (channels == 1) {
      out[0] = luma(rgb);
      continue;
    }
    std::copy_n(rgb, 3, out);
    if (channels == 4) out[3] = 255;
  }
}

}  // namespace

JpegReader::JpegReader() : state_(std::make_unique<JpegState>()) {
  if (!create(*state_)) throw std::bad_alloc();
}

JpegReader::~JpegReader() { jpeg_destroy_decompress(&state_->info); }

void JpegReader::open(std::span<const std::byte> bytes, const DecodeOptions& options) {
  JpegState& state = *state_;
  const int channels = options.channels;
  // Made anew: libjpeg would take tables that this file does not have from the one before.
  jpeg_destroy_decompress(&state.info);
  if (!create(state)) throw std::bad_alloc();
  state.bytes = reinterpret_cast<const uint8_t*>(bytes.data());
  state.size = bytes.size();
  state.partial = state.ended = false;
  state.channels = state.line_channels = channels;
  if (!read_header(state)) fail(state, state.text);
  jpeg_decompress_struct& info = state.info;
  if (!decodable(info.image_width, info.image_height)) {
    fail(state, claim_beyond_limit(info.image_width, info.image_height));
  }
  if (!options.partial && !can_hold(state)) {
    fail(state, claim_beyond_bytes(info.image_width, info.image_height));
  }
  if (!has_end(state)) {
    if (!options.partial) fail(state, "it is cut off: there is no end marker");
    state.partial = true;
    leave_out_cut_segment(state);
  }
  switch (info.jpeg_color_space) {
    case JCS_GRAYSCALE:
    case JCS_YCbCr:
    case JCS_RGB:
      info.out_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_EXT_RGBA;
      break;
    case JCS_CMYK:
    case JCS_YCCK:
      info.out_color_space = JCS_CMYK;
      state.line_channels = 4;
      break;
    default:
      fail(state, "it has " + std::to_string(info.num_components) + " channels of no known colour");
  }
  info.dct_method = options.fast ? JDCT_IFAST : JDCT_ISLOW;
  info.do_fancy_upsampling = options.fast ? FALSE : TRUE;
  set_scale(1);
}

int JpegReader::width() const { return static_cast<int>(state_->info.output_width); }
int JpegReader::height() const { return static_cast<int>(state_->info.output_height); }

int JpegReader::orientation() const {
  return jpeg_orientation(std::as_bytes(std::span(state_->bytes, state_->size)));
}

void JpegReader::set_scale(int denominator) {
  state_->info.scale_num = 1;
  state_->info.scale_denom = static_cast<unsigned>(denominator);
  if (!find_size(*state_)) fail(*state_, state_->text);
}

void JpegReader::read(int x0, int y0, int x1, int y1, RowTaker& taker) {
  JpegState& state = *state_;
  jpeg_decompress_struct& info = state.info;
  if (!start(state)) fail(state, state.text);
  // Smoothing looks at neighbours: columns and rows at a cut are made with those beyond it.
  const int margin = info.max_h_samp_factor * DCTSIZE;
  JDIMENSION first = static_cast<JDIMENSION>(std::max(x0 - margin, 0));
  JDIMENSION columns =
      static_cast<JDIMENSION>(std::min(x1 + margin, static_cast<int>(info.output_width))) - first;
  if (columns != info.output_width && !crop(state, &first, &columns)) fail(state, state.text);
  const size_t line = size_t{info.output_width} * static_cast<size_t>(state.line_channels);
  const auto at_once = std::max<JDIMENSION>(static_cast<JDIMENSION>(info.rec_outbuf_height), 1);
  // libjpeg-turbo writes rows that begin at a multiple of 16 or 32 bytes past the cache, and
  // reading them waits for memory: none of these begins there.
  constexpr size_t kAlignment = 64, kAside = 8;
  const size_t stride = (line + kAlignment - 1) / kAlignment * kAlignment;
  state.lines.resize(stride * at_once + kAlignment + kAside);
  const auto base = reinterpret_cast<uintptr_t>(state.lines.data());
  uint8_t* const lines = state.lines.data() + (kAlignment - base % kAlignment) + kAside;
  const bool cmyk = info.out_color_space == JCS_CMYK;
  if (cmyk) state.converted.resize(static_cast<size_t>((x1 - x0) * state.channels));
  std::vector<JSAMPROW> rows(at_once);
  for (size_t i = 0; i < at_once; ++i) rows[i] = lines + i * stride;
  const int skipped = std::max(y0 - info.max_v_samp_factor * DCTSIZE, 0);
  if (skipped > 0 && !skip_rows(state, static_cast<JDIMENSION>(skipped))) fail(state, state.text);
  const size_t offset =
      static_cast<size_t>(x0 - static_cast<int>(first)) * static_cast<size_t>(state.line_channels);
  for (int y = skipped; y < y1;) {
    const JDIMENSION got = read_rows(state, rows.data(), at_once);
    if (got == 0) fail(state, state.text);
    for (JDIMENSION i = 0; i < got && y < y1; ++i, ++y) {
      if (y < y0) continue;
      const uint8_t* row = rows[i] + offset;
      if (cmyk) {
        convert_cmyk(row, state.converted.data(), x1 - x0, state.channels);
        row = state.converted.data();
      }
      taker.take(row);
    }
  }
  jpeg_abort_decompress(&info);
}

std::optional<PlaneLayout> JpegReader::planes() const {
  const jpeg_decompress_struct& info = state_->info;
  const bool colours = info.jpeg_color_space == JCS_YCbCr && info.num_components == 3;
  if (!colours && info.jpeg_color_space != JCS_GRAYSCALE) return std::nullopt;
  const jpeg_component_info& grey = info.comp_info[0];
  const int size = info.min_DCT_scaled_size;
  const auto is_full = [&](const jpeg_component_info& plane) {
    return plane.h_samp_factor * plane.DCT_scaled_size == info.max_h_samp_factor * size &&
           plane.v_samp_factor * plane.DCT_scaled_size == info.max_v_samp_factor * size;
  };
  if (!is_full(grey)) return std::nullopt;
  PlaneLayout layout;
  layout.width = static_cast<int>(grey.downsampled_width);
  layout.height = static_cast<int>(grey.downsampled_height);
  layout.band_rows = grey.v_samp_factor * grey.DCT_scaled_size;
  layout.written = static_cast<int>(grey.width_in_blocks) * grey.DCT_scaled_size;
  if (!colours || state_->channels == 1) return layout;
  const jpeg_component_info &cb = info.comp_info[1], &cr = info.comp_info[2];
  if (cb.h_samp_factor != cr.h_samp_factor || cb.v_samp_factor != cr.v_samp_factor ||
      cb.DCT_scaled_size != cr.DCT_scaled_size) {
    return std::nullopt;
  }
  const int columns = cb.h_samp_factor * cb.DCT_scaled_size;
  const int rows = cb.v_samp_factor * cb.DCT_scaled_size;
  layout.across = info.max_h_samp_factor * size / columns;
  layout.down = info.max_v_samp_factor * size / rows;
  if (columns * layout.across != info.max_h_samp_factor * size || layout.across > 2 ||
      rows * layout.down != info.max_v_samp_factor * size || layout.down > 2) {
    return std::nullopt;
  }
  layout.count = 3;
  layout.colour_width = static_cast<int>(cb.downsampled_width);
  layout.colour_height = static_cast<int>(cb.downsampled_height);
  layout.colour_band_rows = rows;
  layout.colour_written = static_cast<int>(cb.width_in_blocks) * cb.DCT_scaled_size;
  // As libjpeg-turbo's jdsample.c.
  layout.smooth =
      info.do_fancy_upsampling && size > 1 && (layout.across == 1 || layout.colour_width > 2);
  return layout;
}

void JpegReader::read_planes(int first, int end, PlaneSink& sink) {
  JpegState& state = *state_;
  jpeg_decompress_struct& info = state.info;
  const PlaneLayout layout = planes().value();
  info.raw_data_out = TRUE;
  info.out_color_space = layout.count == 1 ? JCS_GRAYSCALE : JCS_YCbCr;
  if (!start(state)) fail(state, state.text);
  const auto lines = static_cast<JDIMENSION>(info.max_v_samp_factor * info.min_DCT_scaled_size);
  std::vector<JSAMPROW> rows[3];
  JSAMPARRAY planes[MAX_COMPONENTS] = {};
  for (int number = 0; number < layout.count; ++number) {
    auto& of = rows[number];
    of.resize(static_cast<size_t>(number == 0 ? layout.band_rows : layout.colour_band_rows));
    planes[number] = of.data();
  }
  for (int band = 0; band < end; ++band) {
    // Of a band that is not needed, no pixels are computed.
    for (int c = 0; c < info.num_components; ++c) {
      info.comp_info[c].component_needed = band >= first && c < layout.count ? TRUE : FALSE;
    }
    for (int number = 0; number < layout.count && band >= first; ++number) {
      const int count = static_cast<int>(rows[number].size());
      for (int y = 0; y < count; ++y) {
        rows[number][static_cast<size_t>(y)] = sink.row(number, band * count + y);
      }
    }
    if (!read_band(state, planes, lines)) fail(state, state.text);
    if (band >= first) sink.done(band);
  }
  jpeg_abort_decompress(&info);
}

}  // namespace penstock::image
