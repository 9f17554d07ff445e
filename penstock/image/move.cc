#include "penstock/image/move.h"

#include <algorithm>
#include <cmath>

namespace penstock::image {
namespace {

struct Place {
  double x, y;
};

// The map from pixels of the image to those of the result: a Map is the other way round.
class Inverse {
 public:
  explicit Inverse(const Map& m)
      : a_(m.e - m.f * m.h),
        b_(m.c * m.h - m.b),
        c_(m.b * m.f - m.c * m.e),
        d_(m.f * m.g - m.d),
        e_(m.a - m.c * m.g),
        f_(m.c * m.d - m.a * m.f),
        g_(m.d * m.h - m.e * m.g),
        h_(m.b * m.g - m.a * m.h),
        i_(m.a * m.e - m.b * m.d) {}
  Place operator()(Place at) const {
    const double w = g_ * at.x + h_ * at.y + i_;
    return {(a_ * at.x + b_ * at.y + c_) / w, (d_ * at.x + e_ * at.y + f_) / w};
  }

 private:
  double a_, b_, c_, d_, e_, f_, g_, h_, i_;
};

// Coordinates of edges, before and after. Not finite: no pixel of the result shows the place.
class Mover {
 public:
  explicit Mover(const Move& move) : move_(move), inverse_(move.map) {}
  Place operator()(Place at) const {
    switch (move_.kind) {
      case Move::Kind::kCrop:
        return {at.x - move_.left, at.y - move_.top};
      case Move::Kind::kPad:
        return {at.x + move_.left, at.y + move_.top};
      case Move::Kind::kResize:
        return {at.x * move_.width / move_.in_width, at.y * move_.height / move_.in_height};
      case Move::Kind::kFlip:
        return {move_.flip_x ? move_.width - at.x : at.x,
                move_.flip_y ? move_.height - at.y : at.y};
      case Move::Kind::kTurn:
        if (move_.quarters == 1) return {at.y, move_.height - at.x};
        return {move_.width - at.y, at.x};
      case Move::Kind::kWarp: {
        const Place pixel = inverse_({at.x - 0.5, at.y - 0.5});
        return {pixel.x + 0.5, pixel.y + 0.5};
      }
    }
    return at;
  }

 private:
  const Move& move_;
  Inverse inverse_;
};

bool finite(std::span<const float> numbers) {
  return std::ranges::all_of(numbers, [](float number) { return std::isfinite(number); });
}

}  // namespace

void move_boxes(const Move& move, size_t step, std::span<float> boxes) {
  const Mover mover(move);
  for (; boxes.size() >= step; boxes = boxes.subspan(step)) {
    const std::span<float> box = boxes.first(4);
    if (!finite(box)) continue;
    double left = INFINITY, top = INFINITY, right = -INFINITY, bottom = -INFINITY;
    bool seen = true;
    for (double x : {box[0], box[2]}) {
      for (double y : {box[1], box[3]}) {
        const Place corner = mover({x, y});
        seen = seen && std::isfinite(corner.x) && std::isfinite(corner.y);
        left = std::min(left, corner.x);
        right = std::max(right, corner.x);
        top = std::min(top, corner.y);
        bottom = std::max(bottom, corner.y);
      }
    }
    if (!seen) left = top = right = bottom = 0;
    const double width = move.width, height = move.height;
    box[0] = static_cast<float>(std::clamp(left, 0.0, width));
    box[1] = static_cast<float>(std::clamp(top, 0.0, height));
    box[2] = static_cast<float>(std::clamp(right, 0.0, width));
    box[3] = static_cast<float>(std::clamp(bottom, 0.0, height));
  }
}

void move_keypoints(const Move& move, size_t step, std::span<float> keypoints) {
  const Mover mover(move);
  for (; keypoints.size() >= step; keypoints = keypoints.subspan(step)) {
    const std::span<float> point = keypoints.first(2);
    if (!finite(point)) continue;
    const Place to = mover({point[0] + 0.5, point[1] + 0.5});
    const bool seen = std::isfinite(to.x) && std::isfinite(to.y);
    point[0] = seen ? static_cast<float>(to.x - 0.5) : -1;
    point[1] = seen ? static_cast<float>(to.y - 0.5) : -1;
  }
}

}  // namespace penstock::image
