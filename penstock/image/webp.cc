#include <webp/decode.h>
#include <webp/demux.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "penstock/image/decoder.h"
#include "penstock/image/exif.h"
#include "penstock/image/pixels.h"

namespace penstock::image {
namespace {

struct WebpState {
  WebPData bytes{};
  WebPDemuxer* file = nullptr;
  WebPIterator frame{};
  DecodeOptions options;
  int width = 0, height = 0;
  std::vector<uint8_t> part, row;

  ~WebpState() { close(); }
  void close() {
    WebPDemuxReleaseIterator(&frame);
    WebPDemuxDelete(file);
    file = nullptr;
    frame = {};
  }
};

[[noreturn]] void fail(WebpState& state, const std::string& what, size_t at) {
  state.close();
  fail_damaged("WebP", what, at, state.bytes.size);
}

// Pixels of one colour take next to no bytes: of images up to 16 million pixels that is believed.
uint64_t most_pixels(size_t bytes) { return (uint64_t{1} << 24) + uint64_t{bytes} * 4096; }

std::string reason_of(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA:
      return "it is cut off";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "it is of no known kind";
    default:
      return "its data is corrupt";
  }
}

// Decodes WebPs by libwebp, of each only the rows and columns that are wanted: with and without
// loss, with alpha. Of an animation the first frame; around one that is smaller than the image,
// pixels are 0.
class WebpReader : public Decoder {
 public:
  void open(std::span<const std::byte> bytes, const DecodeOptions& options) override;
  int width() const override { return state_.width; }
  int height() const override { return state_.height; }
  int orientation() const override;
  void read(int x0, int y0, int x1, int y1, RowTaker& taker) override;

 private:
  WebpState state_;
};

}  // namespace

void WebpReader::open(std::span<const std::byte> bytes, const DecodeOptions& options) {
  WebpState& state = state_;
  state.close();
  state.options = options;
  state.bytes = {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  WebPDemuxState found = WEBP_DEMUX_PARSE_ERROR;
  state.file = WebPDemuxPartial(&state.bytes, &found);
  if (found == WEBP_DEMUX_PARSE_ERROR) fail(state, "its chunks are corrupt", 0);
  if (state.file == nullptr) fail(state, "its header is cut off", bytes.size());
  const uint64_t width = WebPDemuxGetI(state.file, WEBP_FF_CANVAS_WIDTH);
  const uint64_t height = WebPDemuxGetI(state.file, WEBP_FF_CANVAS_HEIGHT);
  if (!decodable(width, height)) fail(state, claim_beyond_limit(width, height), 12);
  if (!options.partial) {
    if (width * height > most_pixels(bytes.size())) {
      fail(state, claim_beyond_bytes(width, height), 12);
    }
    if (found != WEBP_DEMUX_DONE) fail(state, "it is cut off", bytes.size());
  }
  if (WebPDemuxGetFrame(state.file, 1, &state.frame) == 0) {
    fail(state, "it has no image", bytes.size());
  }
  state.width = static_cast<int>(width);
  state.height = static_cast<int>(height);
}

int WebpReader::orientation() const {
  WebPChunkIterator chunk{};
  if (WebPDemuxGetChunk(state_.file, "EXIF", 1, &chunk) == 0) return 1;
  const int orientation =
      exif_orientation(std::as_bytes(std::span(chunk.chunk.bytes, chunk.chunk.size)));
  WebPDemuxReleaseChunkIterator(&chunk);
  return orientation;
}

void WebpReader::read(int x0, int y0, int x1, int y1, RowTaker& taker) {
  WebpState& state = state_;
  const WebPIterator& frame = state.frame;
  const int channels = state.options.channels, part_channels = channels == 4 ? 4 : 3;
  // The part of the frame. Smoothing looks at neighbours: it is made with those beyond a cut.
  // libwebp begins at even places.
  const int left = std::clamp(x0 - frame.x_offset - 2, 0, frame.width) & ~1;
  const int top = std::clamp(y0 - frame.y_offset - 2, 0, frame.height) & ~1;
  const int right = std::clamp(x1 - frame.x_offset + 2, 0, frame.width);
  const int bottom = std::clamp(y1 - frame.y_offset + 2, 0, frame.height);
  const int part_width = right - left;
  if (part_width > 0 && bottom > top) {
    WebPDecoderConfig config;
    WebPInitDecoderConfig(&config);
    config.options.use_cropping = 1;
    config.options.crop_left = left;
    config.options.crop_top = top;
    config.options.crop_width = part_width;
    config.options.crop_height = bottom - top;
    config.options.no_fancy_upsampling = state.options.fast;
    const int stride = part_width * part_channels;
    state.part.assign(static_cast<size_t>(stride) * static_cast<size_t>(bottom - top), 0);
    config.output.colorspace = channels == 4 ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = {state.part.data(), stride, state.part.size()};
    const WebPData& data = frame.fragment;
    VP8StatusCode status = VP8_STATUS_OUT_OF_MEMORY;
    if (!state.options.partial) {
      status = WebPDecode(data.bytes, data.size, &config);
    } else if (WebPIDecoder* decoder = WebPIDecode(nullptr, 0, &config)) {
      status = WebPIUpdate(decoder, data.bytes, data.size);
      WebPIDelete(decoder);
      if (status == VP8_STATUS_SUSPENDED) status = VP8_STATUS_OK;
    }
    if (status == VP8_STATUS_OUT_OF_MEMORY) {
      state.close();
      throw std::bad_alloc();
    }
    if (status != VP8_STATUS_OK) {
      const auto at = static_cast<size_t>(data.bytes - state.bytes.bytes);
      fail(state, reason_of(status) + ", in the image", at);
    }
  }
  const auto wanted = static_cast<size_t>(x1 - x0);
  state.row.assign(wanted * static_cast<size_t>(channels), 0);
  const int from = std::max(x0, frame.x_offset + left);
  const int count = std::min(x1, frame.x_offset + right) - from;
  for (int y = y0; y < y1; ++y) {
    const int row = y - frame.y_offset - top;
    if (row < 0 || row >= bottom - top || count <= 0) {
      std::fill(state.row.begin(), state.row.end(), uint8_t{0});
    } else {
      const int column = from - frame.x_offset - left;
      to_channels(state.part.data() + (static_cast<size_t>(row) * static_cast<size_t>(part_width) +
                                       static_cast<size_t>(column)) *
                                          static_cast<size_t>(part_channels),
                  part_channels, state.row.data() + (from - x0) * channels, channels, count);
    }
    taker.take(state.row.data());
  }
  state.close();
}

std::unique_ptr<Decoder> webp_decoder() { return std::make_unique<WebpReader>(); }

}  // namespace penstock::image
