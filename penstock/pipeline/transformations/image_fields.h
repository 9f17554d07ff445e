#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace penstock::image {

// Names of the leaves that an operation works on. Those beside the images follow the first of them
// through operations that move pixels, and are passed on by others.
struct Fields {
  Fields(std::initializer_list<std::string> names) : images(names) {}
  Fields(std::vector<std::string> names) : images(std::move(names)) {}

  std::vector<std::string> images;
  // Of the image's height and width, uint8 or float32; no value becomes another one.
  std::vector<std::string> masks;
  // float32 {..., 4 or more}, {..., 2 or more}: see move_boxes and move_keypoints. Coordinates are
  // those of the decoded image.
  std::vector<std::string> boxes, keypoints;
  uint8_t mask_fill = 0;  // of a mask's pixels where the image is filled with one value

  bool alone() const { return masks.empty() && boxes.empty() && keypoints.empty(); }
  bool operator==(const Fields&) const = default;
};

}  // namespace penstock::image
