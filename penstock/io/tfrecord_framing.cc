#include "penstock/io/tfrecord_framing.h"

#include <algorithm>
#include <array>

#include "penstock/io/tfrecord_frame.h"

namespace penstock {

using namespace tfrecord;

namespace {

using Kind = Framing::Cut::Kind;

class TFRecordFraming : public Framing {
 public:
  Cut cut(const Front& front) override {
    const std::byte* const header = front.bytes.data();
    if (front.most < kFrame) return {Kind::kLost};
    if (front.bytes.size() < kFrame) return {Kind::kMore, kFrame};
    if (!sound_length(header, front.most)) return {Kind::kLost};
    const auto length = load<uint64_t>(header);
    if (front.bytes.size() - kFrame < length) return {Kind::kMore, kFrame + length};
    if (payload_agrees(header, length)) {
      return {Kind::kRecord, kFrame + length, kHeader, length};
    }
    return {.kind = Kind::kBad,
            .bytes = kFrame + length,
            .why = "the payload does not agree with its checksum"};
  }

  Gap resume(const Front& front) override {
    const std::span bytes = front.bytes;
    for (uint64_t at = 0;; ++at) {
      const uint64_t left = bytes.size() - at, most = front.most - at;
      if (most < kFrame) return {bytes.size(), !front.whole(), 1};
      if (left < kFrame) return {at, true, kFrame};
      const std::byte* const header = bytes.data() + at;
      if (!sound_length(header, most)) continue;
      const auto length = load<uint64_t>(header);
      if (left - kFrame < length) return {at, true, kFrame + length};
      if (payload_agrees(header, length)) return {at};
    }
  }

 private:
  static bool payload_agrees(const std::byte* header, uint64_t length) {
    return agree({header + kHeader, length}, header + kHeader + length);
  }
};

}  // namespace

std::unique_ptr<Framing> tfrecord_framing() { return std::make_unique<TFRecordFraming>(); }

Compression compression_of_tfrecord(File& file) {
  std::array<std::byte, kHeader> first{};
  const uint64_t bytes = std::min<uint64_t>(file.size(), first.size());
  if (bytes == 0) return Compression::kNone;
  const File::Segment segment{0, first.data(), bytes};
  file.read({&segment, 1});
  if (bytes == kHeader && length_agrees(first.data())) return Compression::kNone;
  const auto begin = std::span(first).first(bytes);
  if (begins_as_gzip(begin) || named_as_gzip(file.path())) return Compression::kGzip;
  // A record whose length was damaged begins so once in a while, but none is so long.
  const bool short_record = bytes >= 8 && load<uint64_t>(first.data()) >> 32 == 0;
  return begins_as_zlib(begin) && !short_record ? Compression::kZlib : Compression::kNone;
}

}  // namespace penstock
