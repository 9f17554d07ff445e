#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/image/warp.h"

namespace penstock::image {

// One step that moved the pixels of an image, so that masks, boxes and keypoints can follow it. A
// value.
struct Move {
  enum class Kind : uint8_t { kCrop, kResize, kFlip, kTurn, kPad, kWarp };
  Kind kind = Kind::kCrop;
  int in_width = 0, in_height = 0;  // of the image before
  int width = 0, height = 0;        // and after
  int left = 0, top = 0;            // kCrop: what is cut off; kPad: the border
  bool flip_x = false, flip_y = false;
  int quarters = 0;  // kTurn: 1 or 3, counter-clockwise
  Map map{};         // kWarp
  Beyond beyond = Beyond::kNearest;
};

// Boxes are x0, y0, x1, y1, each in the first four of `step` numbers. Coordinates are those of
// edges: an image lies between 0 and its width and height, and a pixel (x, y) is the box x, y,
// x + 1, y + 1. A turned box becomes the smallest upright box around it. What lies beyond the
// image is cut off; of a box that lies beyond, a box without an area remains. Boxes with numbers
// that are not finite stay.
void move_boxes(const Move& move, size_t step, std::span<float> boxes);

// Keypoints are x, y, each in the first two of `step` numbers. They count pixels: (x, y) is the
// centre of the pixel in column x and row y. They may come to lie beyond the image. Keypoints with
// numbers that are not finite stay.
void move_keypoints(const Move& move, size_t step, std::span<float> keypoints);

}  // namespace penstock::image
