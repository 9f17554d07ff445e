#include "penstock/image/decoder.h"

#include "penstock/base/error.h"

namespace penstock::image {
namespace {

std::string claim(uint64_t width, uint64_t height) {
  return "its header claims " + std::to_string(width) + " x " + std::to_string(height) + " pixels";
}

}  // namespace

void fail_damaged(const char* format, const std::string& what, size_t at, size_t size) {
  throw Error(Code::kDataLoss, "image.decode",
              std::string("a damaged ") + format + ": " + what + ", at byte " + std::to_string(at) +
                  " of " + std::to_string(size));
}

bool decodable(uint64_t width, uint64_t height) {
  return width > 0 && height > 0 && width <= kMaxPixels / height;
}

std::string claim_beyond_limit(uint64_t width, uint64_t height) {
  return claim(width, height) + "; at least 1 and at most " + std::to_string(kMaxPixels) +
         " are decoded";
}

std::string claim_beyond_bytes(uint64_t width, uint64_t height) {
  return claim(width, height) + ", more than its bytes can hold";
}

}  // namespace penstock::image
