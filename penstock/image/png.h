#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "penstock/image/image.h"

namespace penstock::image {

struct PngState;

// Decodes PNGs by libpng: all colour types and depths, interlaced or not. Of 16 bits the upper 8
// count, as in Pillow. With 3 channels alpha is left out, with 1 colours become grey. One thread.
//
// Error kDataLoss, operation "image.decode", with the byte: no PNG, cut off, a wrong checksum of
// any chunk, a header that claims more pixels than kMaxPixels or than the compressed bytes can
// hold, bytes that libpng finds corrupt. Nothing is in use after an error.
class PngReader {
 public:
  PngReader();
  ~PngReader();
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  // Reads the header and goes over the chunks. `channels`: 1, 3 or 4. The bytes stay valid until
  // the last read().
  void open(std::span<const std::byte> bytes, int channels);
  int width() const;
  int height() const;
  // Columns [x0, x1) of rows [y0, y1), once for each open(). All of the file is read, for its
  // checksums.
  void read(int x0, int y0, int x1, int y1, RowTaker& taker);

 private:
  std::unique_ptr<PngState> state_;
};

}  // namespace penstock::image
