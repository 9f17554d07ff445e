#include "penstock/io/deflate.h"

#include <isa-l/igzip_lib.h>

#include <algorithm>
#include <array>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {
namespace {

class Deflated : public Sink {
 public:
  Deflated(std::unique_ptr<Sink> sink, Compression compression) : sink_(std::move(sink)) {
    isal_deflate_init(&isal_);
    isal_.gzip_flag = compression == Compression::kGzip ? IGZIP_GZIP : IGZIP_ZLIB;
    isal_.level = 1;
    isal_.level_buf = memory_.data();
    isal_.level_buf_size = static_cast<uint32_t>(memory_.size());
  }

  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const size_t part = std::min<size_t>(bytes.size(), 1 << 30);
      run(bytes.first(part));
      bytes = bytes.subspan(part);
    }
  }

  void commit() override {
    isal_.end_of_stream = 1;
    run({});
    sink_->commit();
  }

 private:
  void run(std::span<const std::byte> bytes) {
    // ISA-L does not write to what it reads.
    isal_.next_in = const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(bytes.data()));
    isal_.avail_in = static_cast<uint32_t>(bytes.size());
    do {
      isal_.next_out = output_.data();
      isal_.avail_out = static_cast<uint32_t>(output_.size());
      if (isal_deflate(&isal_) != COMP_OK) {
        throw Error(Code::kInternal, "deflate", "ISA-L refuses its settings");
      }
      sink_->write(std::as_bytes(std::span(output_)).first(output_.size() - isal_.avail_out));
    } while (isal_.avail_out == 0);
  }

  const std::unique_ptr<Sink> sink_;
  isal_zstream isal_;
  std::array<uint8_t, ISAL_DEF_LVL1_DEFAULT> memory_;
  std::array<uint8_t, 64 << 10> output_;
};

}  // namespace

std::unique_ptr<Sink> deflated(std::unique_ptr<Sink> sink, Compression compression) {
  return std::make_unique<Deflated>(std::move(sink), compression);
}

}  // namespace penstock
