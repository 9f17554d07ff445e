// The limit of the machine for the work of the Dataset cases: plain loops, in which each thread
// writes one batch of its own that is never delivered.
//
//   dataset_limits parsed THREADS FILE...    read, both CRCs, the three features into a batch
//   dataset_limits raw THREADS FILE...       read, both CRCs, the payload into a batch
//   dataset_limits shuffled THREADS FILE...  as parsed, of mapped files in a random order that is
//                                            known beforehand, fetched ahead; the index is there
//   dataset_limits rows THREADS COUNT        rows of 784 bytes, in such an order, to float32:
//                                            (x - mean) / std
//
// Prints the count, the seconds of the best round, and a checksum: the sum of labels, of payload
// bytes, or of the first values of the rows.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/io/crc32c.h"

namespace {

constexpr size_t kBatch = 256, kFloats = 64, kRaw = 256, kWidth = 784;
constexpr size_t kHeader = 12, kFrame = 16;
constexpr int kRounds = 9;

[[noreturn]] void stop(const char* why) {
  std::fprintf(stderr, "%s\n", why);
  std::exit(1);
}

struct Sums {
  uint64_t count = 0;
  double sum = 0;
};

// ---- tf.Examples with the features label (int64), x (64 floats) and raw (256 bytes)

struct Batch {
  int64_t labels[kBatch];
  float x[kBatch][kFloats];
  uint8_t raw[kBatch][kRaw];
};

struct Bytes {
  const uint8_t* at;
  const uint8_t* end;

  size_t size() const { return static_cast<size_t>(end - at); }
  std::string_view text() const { return {reinterpret_cast<const char*>(at), size()}; }
};

uint64_t take_varint(Bytes& from) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && from.at < from.end; shift += 7) {
    uint8_t byte = *from.at++;
    value |= uint64_t{byte & 127u} << shift;
    if (byte < 128) return value;
  }
  stop("a number has no end");
}

// The next field, which must have a length.
Bytes take_field(Bytes& from, uint64_t* number = nullptr) {
  uint64_t tag = take_varint(from), size = take_varint(from);
  if ((tag & 7) != 2 || size > from.size()) stop("no such field");
  if (number != nullptr) *number = tag >> 3;
  Bytes field{from.at, from.at + size};
  from.at += size;
  return field;
}

void parse(Bytes example, Batch& batch, size_t row) {
  Bytes features = take_field(example);
  while (features.at < features.end) {
    Bytes entry = take_field(features);
    std::string_view name = take_field(entry).text();
    Bytes feature = take_field(entry);
    uint64_t kind = 0;
    Bytes list = take_field(feature, &kind);
    Bytes values = take_field(list);
    if (kind == 3 && name == "label") {
      batch.labels[row] = static_cast<int64_t>(take_varint(values));
    } else if (kind == 2 && name == "x" && values.size() == sizeof batch.x[row]) {
      std::memcpy(batch.x[row], values.at, sizeof batch.x[row]);
    } else if (kind == 1 && name == "raw" && values.size() == kRaw) {
      std::memcpy(batch.raw[row], values.at, kRaw);
    } else {
      stop("no such feature");
    }
  }
}

uint32_t load32(const uint8_t* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

uint64_t load64(const uint8_t* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void check_length(const uint8_t* frame) {
  auto* bytes = reinterpret_cast<const std::byte*>(frame);
  if (penstock::masked(penstock::crc32c_of_8(bytes)) != load32(frame + 8)) stop("length damaged");
}

// The payload of a frame, whose length was checked.
Bytes checked_payload(const uint8_t* frame) {
  Bytes payload{frame + kHeader, frame + kHeader + load64(frame)};
  auto* bytes = reinterpret_cast<const std::byte*>(payload.at);
  if (penstock::masked(penstock::crc32c({bytes, payload.size()})) != load32(payload.end)) {
    stop("payload damaged");
  }
  return payload;
}

// ---- one file after the other, in order

class InOrder {
 public:
  InOrder(std::vector<std::string> files, bool parsed)
      : files_(std::move(files)), parsed_(parsed), buffer_(2 * kPiece), room_(kPiece) {}

  Sums operator()() {
    Sums sums;
    size_t filled = 0;
    for (const std::string& name : files_) {
      int file = open(name.c_str(), O_RDONLY | O_CLOEXEC);
      if (file < 0) stop("no such file");
      size_t have = 0;
      ssize_t came;
      while ((came = read(file, buffer_.data() + have, kPiece)) > 0) {
        have += static_cast<size_t>(came);
        size_t at = 0;
        while (have - at >= kHeader) {
          const uint8_t* frame = buffer_.data() + at;
          check_length(frame);
          uint64_t length = load64(frame);
          if (length > kPiece / kBatch) stop("a record is too large for this");
          if (have - at < length + kFrame) break;
          Bytes payload = checked_payload(frame);
          if (parsed_) {
            parse(payload, batch_, filled);
            sums.sum += static_cast<double>(batch_.labels[filled]);
            filled = (filled + 1) % kBatch;
          } else {
            if (filled + length > kPiece) filled = 0;
            std::memcpy(room_.data() + filled, payload.at, length);
            filled += length;
            sums.sum += static_cast<double>(length);
          }
          ++sums.count;
          at += length + kFrame;
        }
        have -= at;
        std::memmove(buffer_.data(), buffer_.data() + at, have);
      }
      close(file);
      if (have != 0) stop("a file ends within a record");
    }
    return sums;
  }

 private:
  static constexpr size_t kPiece = 256 << 10;  // stays in the second-level cache

  std::vector<std::string> files_;
  bool parsed_;
  std::vector<uint8_t> buffer_, room_;
  Batch batch_{};
};

// ---- mapped, in a random order

std::vector<const uint8_t*> frames_of(const std::vector<std::string>& files) {
  std::vector<const uint8_t*> frames;
  for (const std::string& name : files) {
    int file = open(name.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat about {};
    if (file < 0 || fstat(file, &about) != 0) stop("no such file");
    auto size = static_cast<size_t>(about.st_size);
    void* mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    if (mapped == MAP_FAILED) stop("cannot map a file");
    close(file);
    for (size_t at = 0; at + kFrame <= size;) {
      frames.push_back(static_cast<const uint8_t*>(mapped) + at);
      at += load64(frames.back()) + kFrame;
    }
  }
  std::shuffle(frames.begin(), frames.end(), std::mt19937_64(1));
  return frames;
}

template <size_t kBytes>
void fetch(const uint8_t* at) {
  for (size_t byte = 0; byte < kBytes; byte += 64) __builtin_prefetch(at + byte);
}

class Shuffled {
 public:
  explicit Shuffled(std::span<const uint8_t* const> frames) : frames_(frames) {}

  Sums operator()() {
    constexpr size_t kAhead = 8;
    Sums sums;
    for (size_t k = 0; k < frames_.size(); ++k) {
      if (k + kAhead < frames_.size()) fetch<640>(frames_[k + kAhead]);
      check_length(frames_[k]);
      parse(checked_payload(frames_[k]), batch_, k % kBatch);
      sums.sum += static_cast<double>(batch_.labels[k % kBatch]);
    }
    sums.count = frames_.size();
    return sums;
  }

 private:
  std::span<const uint8_t* const> frames_;
  Batch batch_{};
};

// ---- rows of an array

class Rows {
 public:
  Rows(const uint8_t* rows, std::span<const uint32_t> order)
      : rows_(rows), order_(order), batch_(kBatch * kWidth) {}

  Sums operator()() {
    constexpr size_t kAhead = 6;
    Sums sums;
    for (size_t k = 0; k < order_.size(); ++k) {
      if (k + kAhead < order_.size()) fetch<kWidth>(rows_ + order_[k + kAhead] * kWidth);
      const uint8_t* from = rows_ + order_[k] * kWidth;
      float* to = &batch_[k % kBatch * kWidth];
      for (size_t at = 0; at < kWidth; ++at) {
        to[at] = (static_cast<float>(from[at]) - kMean) * (1 / kStd);
      }
      sums.sum += static_cast<double>(std::lround(to[0] * kStd + kMean));
    }
    sums.count = order_.size();
    return sums;
  }

 private:
  static constexpr float kMean = 127.5F, kStd = 73.9F;

  const uint8_t* rows_;
  std::span<const uint32_t> order_;
  std::vector<float> batch_;
};

// ---- rounds

// All data exist before the clock starts; the threads begin each round together.
template <class Part>
void measure(std::vector<Part>& parts) {
  const auto threads = static_cast<std::ptrdiff_t>(parts.size());
  std::barrier line(threads);
  std::vector<Sums> sums(parts.size());
  uint64_t best = UINT64_MAX;
  auto run = [&](size_t me) {
    for (int round = 0; round < kRounds; ++round) {
      line.arrive_and_wait();
      uint64_t began = penstock::now_ns();
      sums[me] = parts[me]();
      line.arrive_and_wait();
      if (me == 0) best = std::min(best, penstock::now_ns() - began);
    }
  };
  std::vector<std::thread> others;
  for (size_t me = 1; me < parts.size(); ++me) others.emplace_back(run, me);
  run(0);
  for (std::thread& other : others) other.join();
  Sums all;
  for (const Sums& part : sums) {
    all.count += part.count;
    all.sum += part.sum;
  }
  std::printf("%lu %.9f %.0f\n", static_cast<unsigned long>(all.count),
              static_cast<double>(best) * 1e-9, all.sum);
}

template <class Item>
std::span<const Item> share(const std::vector<Item>& items, size_t part, size_t parts) {
  size_t begin = items.size() * part / parts, end = items.size() * (part + 1) / parts;
  return std::span(items).subspan(begin, end - begin);
}

void measure_rows(size_t threads, size_t count) {
  const size_t size = count * kWidth;
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) stop("no memory");
  madvise(mapped, size, MADV_HUGEPAGE);  // as NumPy does for large arrays
  auto* rows = static_cast<uint8_t*>(mapped);
  for (size_t row = 0; row < count; ++row) {
    std::memset(rows + row * kWidth, static_cast<int>(row & 255), kWidth);
  }
  std::vector<uint32_t> order(count);
  for (size_t k = 0; k < count; ++k) order[k] = static_cast<uint32_t>(k);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
  std::vector<Rows> parts;
  for (size_t part = 0; part < threads; ++part)
    parts.emplace_back(rows, share(order, part, threads));
  measure(parts);
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) stop("usage: dataset_limits parsed|raw|shuffled|rows THREADS FILE...|COUNT");
  const std::string mode = words[1];
  const size_t threads = std::stoul(words[2]);
  const std::vector<std::string> files(words + 3, words + count);
  if (mode == "rows") {
    measure_rows(threads, std::stoul(files[0]));
  } else if (mode == "shuffled") {
    const std::vector<const uint8_t*> frames = frames_of(files);
    std::vector<Shuffled> parts;
    for (size_t part = 0; part < threads; ++part) parts.emplace_back(share(frames, part, threads));
    measure(parts);
  } else {
    std::vector<InOrder> parts;
    for (size_t part = 0; part < threads; ++part) {
      auto mine = share(files, part, threads);
      parts.emplace_back(std::vector(mine.begin(), mine.end()), mode == "parsed");
    }
    measure(parts);
  }
}
