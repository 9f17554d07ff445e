#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/train/layout.h"
#include "penstock/train/slab.h"

namespace penstock::train {

// "is nan at (3, 4)": describes the first value that is not finite; "" if all are. `shape`: the
// values' shape.
std::string first_not_finite(std::span<const float> values, const Shape& shape);

// The same for a slab with a value that is not finite, including the block's name.
std::string describe_not_finite(const Slab& gradients);

// Error kInvalidArgument if `scale` is not finite.
void check_scale(const char* operation, double scale);

// Error kInvalidArgument unless `gradients` is another slab of the parameters' layout.
void check_gradients(const Slab& parameters, const Slab& gradients);

// Gradients of some rows of a block, each row once and in ascending order; repeated rows are added
// up in the order given. Keeps its memory from one use to the next. One thread.
class RowGradients {
 public:
  // `values`: rows.size() rows of the block, one after the other. Both spans must live while this
  // is used. Error kInvalidArgument: the block has no rows, a row is out of range, or the values
  // have another size.
  void set(const char* operation, const Block& block, std::span<const int64_t> rows,
           std::span<const float> values);

  std::span<const int64_t> rows() const { return rows_; }
  std::span<const float> values() const { return values_; }  // rows().size() * width()
  size_t width() const { return width_; }                    // floats of a row

 private:
  std::span<const int64_t> rows_;
  std::span<const float> values_;
  size_t width_ = 0;
  std::vector<size_t> order_;
  std::vector<int64_t> own_rows_;
  std::vector<float> own_values_;
};

// The gradient of one block, or of some rows of it.
struct GradientPart {
  std::string block;
  std::span<const float> values;
  bool of_rows = false;
  std::span<const int64_t> rows = {};  // in any order; repeated rows are added up first
};

// A gradient of some blocks, or of some rows of them, as pieces of a slab. Keeps its memory from
// one use to the next. One thread.
class GradientParts {
 public:
  struct Piece {
    size_t at;  // offset in floats
    std::span<const float> values;
  };

  // Each block at most once. The parts' spans must live while this is used. Errors: kNotFound (no
  // such block), kInvalidArgument (a repeated block, a row out of range, values of another size).
  void set(const char* operation, const Layout& layout, std::span<const GradientPart> parts);

  // Error kInvalidArgument: a part's values lie in these weights, which the operation would change
  // while it reads them.
  void check_apart_from(const char* operation, const Slab& weights) const;

  std::span<const Piece> pieces() const {
    return pieces_;
  }                        // in the slab's order, without overlaps
  size_t floats() const;   // of all pieces together
  bool finite() const;     // whether all values are finite
  double squares() const;  // sum of squares; finite if and only if all values are
  // "block 'w' is nan at (3, 4)": describes the first value that is not finite; "" if all are.
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
