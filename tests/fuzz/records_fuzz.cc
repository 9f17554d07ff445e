// Any bytes as a file of fixed-length records or of CIFAR. The first four bytes determine the
// lengths of record, header and footer, and the kind of file. The index covers the body, or the
// file is an error; reading from the front and inflated gives the same records, and an incomplete
// record is one loss. Records with invalid labels are lost, and no others.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpp/io/tfrecords.h"
#include "fuzz/reading.h"
#include "penstock/io/fixed_records.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/sources.h"

using namespace penstock;

namespace {

struct Lengths {
  uint64_t record, header, footer;
};

std::optional<RecordIndex> index_of(TFRecords& world, const Lengths& lengths) {
  try {
    return index_fixed_records(*world.files->open("file"), lengths.record, lengths.header,
                               lengths.footer);
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kDataLoss);
    REQUIRE(std::string(error.what()).find("file") != std::string::npos);
    return std::nullopt;
  }
}

void check_fixed(const std::string& bytes, const Lengths& lengths) {
  TFRecords world;
  (*world.files)["file"] = bytes;
  (*world.files)["small"] = compressed(bytes, Compression::kZlib);
  const std::optional<RecordIndex> index = index_of(world, lengths);
  for (Compression how : {Compression::kNone, Compression::kGzip, Compression::kZlib}) {
    try {
      check_header_and_footer(world.files->open("file"), how, lengths.header, lengths.footer);
    } catch (const Error& error) {
      REQUIRE(error.code() == Code::kDataLoss);
      REQUIRE(how != Compression::kNone || lengths.header + lengths.footer > bytes.size());
    }
  }
  if (lengths.header + lengths.footer > bytes.size()) return;
  Records expected;
  if (index) {
    REQUIRE(lengths.header + index->size() * lengths.record + lengths.footer == bytes.size());
    for (uint64_t i = 0; i < index->size(); ++i) {
      const RecordIndex::Place place = index->at(i);
      REQUIRE(place.offset == lengths.header + i * lengths.record);
      REQUIRE(place.bytes == lengths.record && !place.damaged);
      expected.push_back(bytes.substr(place.offset, place.bytes));
    }
  }
  const auto read = [&](const char* path, Compression compression, size_t most) {
    return from_the_front({world.pool, {path}, {compression}, {lengths.header}}, "fixed_records",
                          fixed_framing(lengths.record, lengths.footer), most);
  };
  const Records plain = read("file", Compression::kNone, 64);
  if (index) REQUIRE(plain == expected);
  const auto lost = std::count(plain.begin(), plain.end(), std::nullopt);
  REQUIRE(lost == (index ? 0 : 1));
  for (size_t most : {1, 64}) {
    REQUIRE(read("file", Compression::kNone, most) == plain);
    REQUIRE(read("small", Compression::kZlib, most) == plain);
  }
  REQUIRE(read("file", Compression::kGzip, 64) == read("file", Compression::kGzip, 3));
}

// Whether each record was read; nothing: the file is an error.
std::optional<std::vector<bool>> elements_of(const std::shared_ptr<MemoryFiles>& files, bool ten,
                                             bool stream, const std::string& bytes) {
  Builder builder(files);
  const CifarOptions options{.compression = "none", .stream = stream};
  const Node::Ref node = ten ? nodes::cifar10("file", options) : nodes::cifar100("file", options);
  try {
    const StreamedRef stage = builder.as_stream(builder.build(*node));
    Scratch scratch;
    Context context{scratch, 0};
    const std::unique_ptr<ElementReader> reader = stage->reader(context);
    Chunk chunk(scratch);
    std::vector<bool> came;
    reader->begin(0);
    while (const uint32_t count = reader->next(Chunk::kRows, chunk)) {
      const uint64_t labels = ten ? 1 : 2;
      for (uint32_t row = 0; row < count; ++row) {
        const bool alive = (chunk.alive() >> row & 1) != 0;
        if (alive) {
          const uint64_t record = came.size() * (labels + 3072);
          REQUIRE(static_cast<char>(*chunk.at(1, row)) == bytes[record + labels - 1]);
          REQUIRE(std::equal(chunk.at(0, row), chunk.at(0, row) + 3072,
                             reinterpret_cast<const std::byte*>(&bytes[record + labels])));
        }
        came.push_back(alive);
      }
      scratch.empty();
    }
    return came;
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kDataLoss);
    return std::nullopt;
  }
}

void check_cifar(const std::string& bytes, bool ten) {
  auto files = std::make_shared<MemoryFiles>();
  (*files)["file"] = bytes;
  const uint64_t record = (ten ? 1 : 2) + 3072;
  std::vector<bool> expected;
  for (uint64_t at = 0; at + record <= bytes.size(); at += record) {
    const auto first = static_cast<uint8_t>(bytes[at]);
    expected.push_back(ten ? first < 10 : first < 20 && static_cast<uint8_t>(bytes[at + 1]) < 100);
  }
  const bool whole = bytes.size() % record == 0;
  const auto indexed = elements_of(files, ten, false, bytes);
  REQUIRE(indexed.has_value() == whole);
  if (indexed) REQUIRE(*indexed == expected);
  if (!whole) expected.push_back(false);
  const auto streamed = elements_of(files, ten, true, bytes);
  REQUIRE(streamed && *streamed == expected);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 4, size - 4);
  if ((data[3] & 1) == 0) {
    check_fixed(bytes, {uint64_t{data[0]} + 1, data[1], data[2]});
  } else {
    // All labels; the pictures are arbitrary.
    std::string file;
    const bool ten = (data[3] & 2) == 0;
    const size_t labels = ten ? 1 : 2;
    for (size_t at = 0; at + labels <= bytes.size() && at < 8 * labels; at += labels) {
      file += bytes.substr(at, labels) + std::string(3072, bytes.back());
    }
    file += bytes.substr(0, data[0] % 16);
    check_cifar(file, ten);
  }
  return 0;
}
