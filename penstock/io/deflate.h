#pragma once

#include <memory>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"

namespace penstock {

// What is written to it reaches `sink` compressed, as one gzip member or zlib stream, by ISA-L at
// its fast level. Memory: some 600 KiB. REQUIRED: `compression` is not kNone.
std::unique_ptr<Sink> deflated(std::unique_ptr<Sink> sink, Compression compression);

}  // namespace penstock
