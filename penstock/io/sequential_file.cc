#include "penstock/io/sequential_file.h"

#include <algorithm>
#include <utility>

namespace penstock {

SequentialFile::SequentialFile(std::shared_ptr<File> file, Compression compression)
    : file_(std::move(file)), size_(file_->size()) {
  if (compression != Compression::kNone) inflate_.emplace(file_, compression);
}

size_t SequentialFile::read(std::span<std::byte> to) {
  if (inflate_) return inflate_->read(to);
  const size_t bytes = static_cast<size_t>(std::min<uint64_t>(to.size(), size_ - offset_));
  if (bytes == 0) return 0;
  const File::Segment segment{offset_, to.data(), bytes};
  file_->read({&segment, 1});
  offset_ += bytes;
  return bytes;
}

void SequentialFile::skip(uint64_t bytes) { offset_ += std::min(bytes, size_ - offset_); }

uint64_t SequentialFile::most() const {
  // Deflate's shortest code, of two bits, stands for 258 bytes at most.
  constexpr uint64_t kMostOfAByte = 4 * 258;
  return inflate_ ? size_ * kMostOfAByte : size_;
}

}  // namespace penstock
