#include "penstock/io/example_contents.h"

namespace penstock {

using namespace wire;

namespace {

ExampleFault fault_of(const Fields& fields, ExampleTrouble& trouble) {
  if (fields.fault() != ExampleFault::kNone) trouble.at = fields.begin();
  return fields.fault();
}

// Calls take(type, list) for each list of a Feature, in order.
template <class Take>
ExampleFault each_list(Span message, bool entry, ExampleTrouble& trouble, const Take& take) {
  Fields fields(message);
  while (fields.next()) {
    ExampleFault fault = ExampleFault::kNone;
    if (entry) {
      if (fields.is(2, kBytes)) fault = each_list(fields.body(), false, trouble, take);
    } else if (fields.type() == kBytes && fields.number() <= kInt64List) {
      fault = take(static_cast<uint8_t>(fields.number()), fields.body());
    }
    if (fault != ExampleFault::kNone) return fault;
  }
  return fault_of(fields, trouble);
}

// Calls take(piece) for each piece of a list.
template <class Take>
ExampleFault each_piece(uint8_t type, Span list, ExampleTrouble& trouble, const Take& take) {
  const wire::Type single = type == kFloatList ? kFixed32 : type == kInt64List ? kVarint : kBytes;
  Fields fields(list);
  while (fields.next()) {
    if (!fields.is(1, kBytes) && !fields.is(1, single)) continue;
    if (ExampleFault fault = take(fields.body()); fault != ExampleFault::kNone) return fault;
  }
  return fault_of(fields, trouble);
}

// To the contents of its list.
ExampleFault add_piece(Span piece, ExampleContents& contents, ExampleTrouble& trouble) {
  if (contents.type == kFloatList && piece.size() % 4 != 0) {
    trouble.at = piece.begin;
    return ExampleFault::kFloats;
  }
  ++contents.pieces;
  contents.values += contents.type == kBytesList   ? 1
                     : contents.type == kFloatList ? piece.size() / 4
                                                   : count_varints(piece);
  contents.bytes += piece.size();
  contents.last = piece;
  return ExampleFault::kNone;
}

}  // namespace

ExampleFault contents_of(Span message, bool entry, ExampleContents& contents,
                         ExampleTrouble& trouble) {
  contents = {};
  uint8_t plain = 0;
  if (const Bytes at = entry ? nullptr : plain_values(message.begin, message.end, plain)) {
    const Span run{at, message.end};
    contents = {.type = plain, .lists = 1};
    return add_piece(run, contents, trouble);
  }
  return each_list(message, entry, trouble, [&](uint8_t type, Span list) {
    if (type != contents.type) {
      contents = {.type = type, .first = contents.lists, .lists = contents.lists};
    }
    ++contents.lists;
    return each_piece(type, list, trouble,
                      [&](Span piece) { return add_piece(piece, contents, trouble); });
  });
}

ExampleFault put_contents(Span message, bool entry, const ExampleContents& contents,
                          ExampleOutput& output, ExampleTrouble& trouble) {
  uint64_t list = 0;
  return each_list(message, entry, trouble, [&](uint8_t type, Span values) {
    if (list++ < contents.first) return ExampleFault::kNone;
    return each_piece(type, values, trouble,
                      [&](Span piece) { return output.put(type, piece, trouble); });
  });
}

ExampleFault ExampleOutput::put(uint8_t type, Span piece, ExampleTrouble& trouble) {
  uint64_t bytes = piece.size();
  if (type == kInt64List) {
    const uint64_t count = count_varints(piece);
    trouble.at = piece.begin;
    const ExampleFault fault =
        narrow ? unpack<int32_t>(trouble.at, piece.end, to, count, trouble.found)
               : unpack<int64_t>(trouble.at, piece.end, to, count, trouble.found);
    if (fault != ExampleFault::kNone) return fault;
    if (trouble.at != piece.end) return ExampleFault::kCut;
    bytes = count * (narrow ? 4 : 8);
  } else {
    if (bytes != 0) std::memcpy(to, piece.begin, bytes);
    if (type == kBytesList && lengths != nullptr) *lengths++ = static_cast<int64_t>(bytes);
  }
  to += bytes;
  return ExampleFault::kNone;
}

}  // namespace penstock
