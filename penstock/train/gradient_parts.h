#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/train/layout.h"
#include "penstock/train/row_gradients.h"
#include "penstock/train/slab.h"

namespace penstock::train {

// Gradients of one block: of all of it, or of some rows.
struct GradientPart {
  std::string block;
  std::span<const float> values;
  bool of_rows = false;
  std::span<const int64_t> rows = {};  // in any order; those that come twice are added up first
};

// A gradient of some blocks, or of some rows of them, as pieces of a slab. Keeps its memory from
// one use to the next. One thread.
class GradientParts {
 public:
  struct Piece {
    size_t at;  // in floats from the slab's first
    std::span<const float> values;
  };

  // Each block at most once. What the parts refer to must live while this is used.
  // Errors: kNotFound (no such block), kInvalidArgument (a block that is there twice, rows that are
  // not in it, values of another size).
  void set(const char* operation, const Layout& layout, std::span<const GradientPart> parts);

  // Error kInvalidArgument: a part lies in these weights, which change while it is read.
  void check_apart_from(const Slab& weights) const;

  std::span<const Piece> pieces() const { return pieces_; }  // in the slab's order, none twice
  size_t floats() const;                                     // of all pieces
  bool finite() const;                                       // whether all values are
  double squares() const;  // their sum; finite if and only if all values are
  // "block 'w' is nan at (3, 4)": the first value that is not finite; "" if all are.
  std::string describe_not_finite() const;

 private:
  struct Given {
    std::string block;
    Shape shape;  // of the values
    std::span<const float> values;
    bool of_rows;
  };
  std::vector<Given> given_;
  std::vector<RowGradients> rows_;
  std::vector<Piece> pieces_;
};

}  // namespace penstock::train
