#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "penstock/image/image.h"

namespace penstock::image {

// Where the pixel (x, y) of a result is in the image: at ((a x + b y + c) / w, (d x + e y + f) / w)
// with w = g x + h y + 1. Both count pixels; (0, 0) is the centre of the first one.
struct Map {
  double a = 1, b = 0, c = 0;
  double d = 0, e = 1, f = 0;
  double g = 0, h = 0;

  bool affine() const { return g == 0 && h == 0; }
};

enum class Sampling : uint8_t { kNearest, kBilinear };
std::optional<Sampling> sampling_named(std::string_view name);
std::string_view name_of(Sampling sampling);

// What lies beyond the border, of an image a b c d. The names and the meanings are those of
// scipy.ndimage, and of Keras.
enum class Beyond : uint8_t {
  kNearest,   // a a a | a b c d | d d d
  kConstant,  // one value; nothing is blended with it
  kReflect,   // c b a | a b c d | d c b
  kWrap,      // coordinates repeat with a period of size - 1, so that d and a coincide
};
std::optional<Beyond> beyond_named(std::string_view name);
std::string_view name_of(Beyond beyond);

// How pixels are found between pixels, and beyond the border.
struct WarpOptions {
  Sampling sampling = Sampling::kBilinear;
  Beyond beyond = Beyond::kNearest;
  double value = 0;  // of kConstant
};

// Computes rows of a warped image, each by itself. The result has the size of the image. The bits
// are the same on every machine: coordinates are multiples of 2^-24; sums of bytes are integers,
// with weights that are multiples of 2^-14. One thread.
class Warper {
 public:
  // REQUIRED: the pixels stay valid; of an affine map a, b, d and e are at most 4096.
  void begin(const ImageView& in, const Map& map, const WarpOptions& options);
  // Columns [x0, x1) of row y.
  void row(int y, int x0, int x1, uint8_t* to) const;

 private:
  ImageView in_;
  Map map_;
  WarpOptions options_;
};

}  // namespace penstock::image
