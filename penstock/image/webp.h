#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "penstock/image/decoder.h"

namespace penstock::image {

struct WebpState;

// Decodes WebPs by libwebp, of each only the rows and columns that are wanted: with and without
// loss, with alpha. Of an animation the first frame; around one that is smaller than the image,
// pixels are 0.
class WebpReader : public Decoder {
 public:
  WebpReader();
  ~WebpReader() override;

  void open(std::span<const std::byte> bytes, const DecodeOptions& options) override;
  int width() const override;
  int height() const override;
  int orientation() const override;
  void read(int x0, int y0, int x1, int y1, RowTaker& taker) override;

 private:
  std::unique_ptr<WebpState> state_;
};

}  // namespace penstock::image
