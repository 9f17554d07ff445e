#include "penstock/io/line_counter.h"

#include <algorithm>

#include "penstock/base/error.h"

namespace penstock {

std::optional<uint64_t> LineCounter::line_at(const std::string& path, Compression compression,
                                             uint64_t offset) try {
  if (offset > kMost) return std::nullopt;
  if (!source_ || path != path_ || offset < begin_) {
    source_.emplace(pool_->get(pool_->add(path)), compression);
    path_ = path;
    begin_ = bytes_ = lines_ = 0;
  }
  while (offset >= begin_ + bytes_) {
    if (!next_piece()) return std::nullopt;
  }
  const auto at = piece_.begin() + static_cast<std::ptrdiff_t>(offset - begin_);
  return 1 + lines_ + static_cast<uint64_t>(std::count(piece_.begin(), at, std::byte{'\n'}));
} catch (const Error&) {
  source_.reset();
  return std::nullopt;
}

bool LineCounter::next_piece() {
  const auto end = piece_.begin() + static_cast<std::ptrdiff_t>(bytes_);
  lines_ += static_cast<uint64_t>(std::count(piece_.begin(), end, std::byte{'\n'}));
  begin_ += bytes_;
  piece_.resize(64 << 10);
  bytes_ = source_->read(piece_);
  return bytes_ > 0;
}

}  // namespace penstock
