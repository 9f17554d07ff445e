// Any bytes as an image: pixels, or DataLoss. A part of a sound image is that of the whole;
// decoding with `partial` gives the same; and pixels written as a PNG are read as they were.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fuzz/require.h"
#include "penstock/base/error.h"
#include "penstock/image/encode.h"
#include "penstock/image/picture.h"

using namespace penstock;

namespace {

struct Pixels {
  int width = 0, height = 0;
  std::vector<uint8_t> values;
  bool operator==(const Pixels&) const = default;
};

constexpr int kMaxPixels = 1 << 16;  // larger ones take their time

// Nothing: damaged. Nor are larger images decoded.
std::optional<Pixels> decoded(image::Picture& picture, std::span<const uint8_t> bytes,
                              const image::DecodeOptions& options, bool left_half = false) {
  try {
    picture.open(std::as_bytes(bytes), options);
    const int64_t pixels = int64_t{picture.width()} * picture.height();
    REQUIRE(pixels > 0 && pixels <= int64_t{image::kMaxPixels});
    if (pixels > kMaxPixels) return std::nullopt;
    if (left_half) picture.crop(0, 0, (picture.width() + 1) / 2, (picture.height() + 1) / 2);
    Pixels made{picture.width(), picture.height(), {}};
    made.values.resize(static_cast<size_t>(made.width) * static_cast<size_t>(made.height) *
                       static_cast<size_t>(picture.channels()));
    picture.write(reinterpret_cast<std::byte*>(made.values.data()));
    return made;
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kDataLoss && error.operation() == "image.decode");
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static image::Picture picture;  // what damage left behind must not matter
  const std::span bytes(data, size);
  for (const int channels : {1, 3, 4}) {
    const auto whole = decoded(picture, bytes, {.channels = channels});
    const auto part = decoded(picture, bytes, {.channels = channels, .partial = true});
    const auto half = decoded(picture, bytes, {.channels = channels}, true);
    if (!whole) continue;
    REQUIRE(part == whole && half);
    const auto pixel = static_cast<size_t>(channels);
    for (int y = 0; y < half->height; ++y) {
      const auto row = static_cast<size_t>(y);
      REQUIRE(std::equal(
          half->values.begin() + static_cast<long>(row * static_cast<size_t>(half->width) * pixel),
          half->values.begin() +
              static_cast<long>((row + 1) * static_cast<size_t>(half->width) * pixel),
          whole->values.begin() +
              static_cast<long>(row * static_cast<size_t>(whole->width) * pixel)));
    }
    std::vector<uint8_t> png;
    const size_t stride = static_cast<size_t>(whole->width) * pixel;
    image::encode({whole->values.data(), whole->width, whole->height, channels, stride},
                  {.as = image::Encoding::kPng}, png);
    REQUIRE(decoded(picture, png, {.channels = channels}) == whole);
  }
  return 0;
}
