#include "penstock/io/fixed_records.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/io/compression.h"
#include "penstock/io/lines.h"

namespace penstock {
namespace {

class FixedFraming : public Framing {
 public:
  FixedFraming(uint64_t record_bytes, uint64_t footer_bytes)
      : record_(record_bytes), footer_(footer_bytes) {}

  Next next(const Window& window) override {
    const uint64_t there = window.bytes.size();
    if (there >= record_ && there - record_ >= footer_) {
      return {Next::Kind::kRecord, record_, 0, record_};
    }
    if (!window.complete()) return {Next::Kind::kNeedMore, record_ + footer_};
    if (there == footer_) return {Next::Kind::kSkip, there};
    return {.kind = Next::Kind::kCorrupt, .bytes = there, .why = "left over: not a whole record"};
  }

 private:
  const uint64_t record_, footer_;
};

Error too_short(const File& file, uint64_t bytes) {
  return {
      Code::kDataLoss, "fixed_records",
      file.path() + " has " + std::to_string(bytes) + " bytes, fewer than its header and footer"};
}

}  // namespace

RecordIndex index_fixed_records(File& file, uint64_t record_bytes, uint64_t header_bytes,
                                uint64_t footer_bytes) {
  const uint64_t size = file.size();
  if (header_bytes > size || footer_bytes > size - header_bytes) {
    throw too_short(file, size);
  }
  const uint64_t body = size - header_bytes - footer_bytes;
  if (body % record_bytes != 0) {
    throw Error(Code::kDataLoss, "fixed_records",
                file.path() + " has " + std::to_string(body) +
                    " bytes of records, which is not a whole number of " +
                    std::to_string(record_bytes) +
                    " bytes each: " + std::to_string(body % record_bytes) + " are left over");
  }
  return RecordIndex::equal(header_bytes, record_bytes, body / record_bytes);
}

std::unique_ptr<Framing> fixed_framing(uint64_t record_bytes, uint64_t footer_bytes) {
  return std::make_unique<FixedFraming>(record_bytes, footer_bytes);
}

Compression compression_of_fixed(File& file) { return compression_of_text(file); }

void check_header_and_footer(const std::shared_ptr<File>& file, Compression compression,
                             uint64_t header_bytes, uint64_t footer_bytes) {
  SequentialFile source(file, compression);
  const uint64_t wanted =
      header_bytes + std::min(footer_bytes, std::numeric_limits<uint64_t>::max() - header_bytes);
  std::vector<std::byte> piece(std::min<uint64_t>(wanted, 64 << 10));
  for (uint64_t left = wanted; left > 0;) {
    const size_t got = source.read(std::span(piece).first(std::min<uint64_t>(left, piece.size())));
    if (got == 0) throw too_short(*file, wanted - left);
    left -= got;
  }
}

}  // namespace penstock
