#pragma once

#include <cstdio>
// After cstdio, which it takes FILE from.
#include <jpeglib.h>
#include <png.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "penstock/image/picture.h"

// Pictures for tests, and their files.
namespace penstock::testing {

using Bytes = std::vector<std::byte>;

// Slopes, edges and noise; contiguous.
struct Pixels {
  int width, height, channels;
  std::vector<uint8_t> values;

  const uint8_t* at(int x, int y) const {
    return values.data() + static_cast<size_t>((y * width + x) * channels);
  }
  image::ImageView view() const {
    return {values.data(), width, height, channels, static_cast<size_t>(width * channels)};
  }
  bool operator==(const Pixels&) const = default;
};

inline Pixels pixels_of(int width, int height, int channels = 3) {
  Pixels made{width, height, channels, {}};
  uint32_t noise = 1;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        noise = noise * 1664525 + 1013904223;
        const int edge = x * (c + 1) > y * 2 ? 60 : 0;
        made.values.push_back(
            static_cast<uint8_t>(40 + edge + x % 50 + y % 40 + static_cast<int>(noise >> 29)));
      }
    }
  }
  return made;
}

// `sampling`: of luminance, 1 or 2, horizontally and vertically.
inline Bytes jpeg_of(const Pixels& pixels, bool progressive = false, int sampling = 2) {
  jpeg_error_mgr errors;
  jpeg_compress_struct info;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&info, &memory, &bytes);
  info.image_width = static_cast<JDIMENSION>(pixels.width);
  info.image_height = static_cast<JDIMENSION>(pixels.height);
  info.input_components = pixels.channels;
  info.in_color_space = pixels.channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
  jpeg_set_defaults(&info);
  info.comp_info[0].h_samp_factor = info.comp_info[0].v_samp_factor = sampling;
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < pixels.height; ++y) {
    auto* row = const_cast<uint8_t*>(pixels.at(0, y));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const auto* from = reinterpret_cast<const std::byte*>(memory);
  Bytes made(from, from + bytes);
  std::free(memory);
  return made;
}

inline Bytes png_of(const Pixels& pixels) {
  png_image about{};
  about.version = PNG_IMAGE_VERSION;
  about.width = static_cast<png_uint_32>(pixels.width);
  about.height = static_cast<png_uint_32>(pixels.height);
  about.format = pixels.channels == 1   ? PNG_FORMAT_GRAY
                 : pixels.channels == 3 ? PNG_FORMAT_RGB
                                        : PNG_FORMAT_RGBA;
  png_alloc_size_t bytes = 0;
  png_image_write_to_memory(&about, nullptr, &bytes, 0, pixels.values.data(), 0, nullptr);
  Bytes made(bytes);
  if (png_image_write_to_memory(&about, made.data(), &bytes, 0, pixels.values.data(), 0, nullptr) ==
      0) {
    throw std::runtime_error(about.message);
  }
  made.resize(bytes);
  return made;
}

inline Pixels written(image::Picture& picture) {
  Pixels made{picture.width(), picture.height(), picture.channels(), {}};
  made.values.resize(static_cast<size_t>(made.width * made.height * made.channels));
  picture.write(reinterpret_cast<std::byte*>(made.values.data()));
  return made;
}

inline Pixels decoded(const Bytes& bytes, const image::DecodeOptions& options = {}) {
  image::Picture picture;
  picture.open(bytes, options);
  return written(picture);
}

inline Pixels cut(const Pixels& pixels, int x, int y, int width, int height) {
  Pixels made{width, height, pixels.channels, {}};
  for (int row = y; row < y + height; ++row) {
    const uint8_t* from = pixels.at(x, row);
    made.values.insert(made.values.end(), from, from + width * pixels.channels);
  }
  return made;
}

}  // namespace penstock::testing
