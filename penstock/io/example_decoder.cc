#include "penstock/io/example_decoder.h"

namespace penstock {

using namespace wire;

namespace {

ExampleFault fault_of(const Fields& fields, ExampleErrorPlace& place) {
  if (fields.fault() != ExampleFault::kNone) place.at = fields.begin();
  return fields.fault();
}

// Calls take(type, list) for each list of a Feature, in order.
template <class Take>
ExampleFault each_list(Span message, bool entry, ExampleErrorPlace& place, const Take& take) {
  Fields fields(message);
  while (fields.next()) {
    ExampleFault fault = ExampleFault::kNone;
    if (entry) {
      if (fields.is(2, kBytes)) fault = each_list(fields.body(), false, place, take);
    } else if (fields.type() == kBytes && fields.number() <= kInt64List) {
      fault = take(static_cast<uint8_t>(fields.number()), fields.body());
    }
    if (fault != ExampleFault::kNone) return fault;
  }
  return fault_of(fields, place);
}

// Calls take(piece) for each piece of a list.
template <class Take>
ExampleFault each_piece(uint8_t type, Span list, ExampleErrorPlace& place, const Take& take) {
  const wire::Type single = type == kFloatList ? kFixed32 : type == kInt64List ? kVarint : kBytes;
  Fields fields(list);
  while (fields.next()) {
    if (!fields.is(1, kBytes) && !fields.is(1, single)) continue;
    if (ExampleFault fault = take(fields.body()); fault != ExampleFault::kNone) return fault;
  }
  return fault_of(fields, place);
}

// Adds a piece to the contents of its list.
ExampleFault add_piece(Span piece, ExampleContents& contents, ExampleErrorPlace& place) {
  if (contents.type == kFloatList && piece.size() % 4 != 0) {
    place.at = piece.begin;
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
                         ExampleErrorPlace& place) {
  contents = {};
  uint8_t plain = 0;
  if (const Pointer at = entry ? nullptr : plain_values(message.begin, message.end, plain)) {
    const Span run{at, message.end};
    contents = {.type = plain, .lists = 1};
    return add_piece(run, contents, place);
  }
  return each_list(message, entry, place, [&](uint8_t type, Span list) {
    if (type != contents.type) {
      contents = {.type = type, .first = contents.lists, .lists = contents.lists};
    }
    ++contents.lists;
    return each_piece(type, list, place,
                      [&](Span piece) { return add_piece(piece, contents, place); });
  });
}

ExampleFault put_contents(Span message, bool entry, const ExampleContents& contents,
                          ExampleOutput& output, ExampleErrorPlace& place) {
  uint64_t list = 0;
  return each_list(message, entry, place, [&](uint8_t type, Span values) {
    if (list++ < contents.first) return ExampleFault::kNone;
    return each_piece(type, values, place,
                      [&](Span piece) { return output.put(type, piece, place); });
  });
}

ExampleFault ExampleOutput::put(uint8_t type, Span piece, ExampleErrorPlace& place) {
  uint64_t bytes = piece.size();
  if (type == kInt64List) {
    const uint64_t count = count_varints(piece);
    place.at = piece.begin;
    const ExampleFault fault = narrow
                                   ? unpack<int32_t>(place.at, piece.end, to, count, place.found)
                                   : unpack<int64_t>(place.at, piece.end, to, count, place.found);
    if (fault != ExampleFault::kNone) return fault;
    if (place.at != piece.end) return ExampleFault::kCut;
    bytes = count * (narrow ? 4 : 8);
  } else {
    if (bytes != 0) std::memcpy(to, piece.begin, bytes);
    if (type == kBytesList && lengths != nullptr) *lengths++ = static_cast<int64_t>(bytes);
  }
  to += bytes;
  return ExampleFault::kNone;
}

namespace {

const std::byte* as_data(Pointer at) { return reinterpret_cast<const std::byte*>(at); }

}  // namespace

ExampleDecoder::ExampleDecoder(const ExampleFeature& feature)
    : type_(static_cast<uint8_t>(feature.type)),
      narrow_(feature.output() == DType::kInt32),
      value_bytes_(size_of(feature.output())),
      count_(feature.count),
      row_bytes_(feature.count * value_bytes_) {
  const bool varints = type_ == kInt64List;
  switch (feature.form) {
    case ExampleFeature::Form::kFixed:
      kind_ = varints ? Kind::kVarintRow : Kind::kRow;
      break;
    case ExampleFeature::Form::kRagged:
      kind_ = varints ? Kind::kVarints : Kind::kFloats;
      break;
    case ExampleFeature::Form::kString:
      kind_ = Kind::kString;
      break;
    case ExampleFeature::Form::kStrings:
      kind_ = Kind::kStrings;
      break;
  }
}

ExampleFault ExampleDecoder::decode(const ExampleEntries::Found& entry, ExampleValue& value,
                                    ExampleMemory& memory, ExampleErrorPlace& place) const {
  if (entry.how == ExampleEntries::Found::kPlain && entry.type == type_) [[likely]] {
    return whole(entry.span, value, memory, place);
  }
  ExampleContents contents{.type = entry.type};
  if (entry.how == ExampleEntries::Found::kEntry) {
    const ExampleFault fault = contents_of(entry.span, true, contents, place);
    if (fault != ExampleFault::kNone) return fault;
  }
  if (contents.type == type_) {
    return contents.pieces == 1 ? whole(contents.last, value, memory, place)
                                : in_pieces(entry.span, contents, value, memory, place);
  }
  place = {entry.span.begin, contents.type};
  return contents.type == 0 ? ExampleFault::kMissing : ExampleFault::kType;
}

// For values in one packed run, or one byte string.
ExampleFault ExampleDecoder::whole(Span run, ExampleValue& value, ExampleMemory& memory,
                                   ExampleErrorPlace& place) const {
  switch (kind_) {
    case Kind::kRow:
      if (run.size() != row_bytes_) [[unlikely]]
        return wrong_count(run.begin, run.size(), place);
      std::memcpy(value.row, run.begin, row_bytes_);
      return ExampleFault::kNone;
    case Kind::kVarintRow:
      return varints(run, value.row, count_, place);
    case Kind::kFloats:
      if (run.size() % 4 != 0) return wrong_count(run.begin, run.size(), place);
      value.data = as_data(run.begin);
      value.count = run.size() / 4;
      return ExampleFault::kNone;
    case Kind::kVarints: {
      value.count = count_varints(run);
      std::byte* to = allocate(memory, value.count * value_bytes_);
      value.data = to;
      return varints(run, to, value.count, place);
    }
    case Kind::kStrings: {
      std::byte* length = allocate(memory, sizeof(int64_t));
      *reinterpret_cast<int64_t*>(length) = static_cast<int64_t>(run.size());
      value.lengths = {reinterpret_cast<int64_t*>(length), 1};
      [[fallthrough]];
    }
    case Kind::kString:
      value.data = as_data(run.begin);
      value.count = run.size();
      return ExampleFault::kNone;
  }
  return ExampleFault::kNone;
}

// For values in no piece, or in several.
ExampleFault ExampleDecoder::in_pieces(Span entry, const ExampleContents& contents,
                                       ExampleValue& value, ExampleMemory& memory,
                                       ExampleErrorPlace& place) const {
  ExampleOutput output{.narrow = narrow_};
  switch (kind_) {
    case Kind::kRow:
    case Kind::kVarintRow:
      if (type_ == kBytesList || contents.values != count_) {
        place = {entry.begin, contents.values};
        return ExampleFault::kCount;
      }
      output.to = value.row;
      break;
    case Kind::kString:
      place = {entry.begin, contents.values};
      return ExampleFault::kCount;
    case Kind::kStrings: {
      output.to = allocate(memory, contents.bytes);
      value.data = output.to;
      value.count = contents.bytes;
      output.lengths =
          reinterpret_cast<int64_t*>(allocate(memory, contents.values * sizeof(int64_t)));
      value.lengths = {output.lengths, contents.values};
      break;
    }
    case Kind::kFloats:
    case Kind::kVarints:
      output.to = allocate(memory, contents.values * value_bytes_);
      value.data = output.to;
      value.count = contents.values;
      break;
  }
  return contents.pieces == 0 ? ExampleFault::kNone
                              : put_contents(entry, true, contents, output, place);
}

ExampleFault ExampleDecoder::varints(Span run, std::byte* to, uint64_t count,
                                     ExampleErrorPlace& place) const {
  Pointer at = run.begin;
  const ExampleFault fault = narrow_ ? unpack<int32_t>(at, run.end, to, count, place.found)
                                     : unpack<int64_t>(at, run.end, to, count, place.found);
  if (fault == ExampleFault::kNone && at == run.end) [[likely]]
    return fault;
  place.at = at;
  if (fault != ExampleFault::kNone && fault != ExampleFault::kCount) return fault;
  // The run has too few or too many values. Check that its last number is complete.
  if (run.size() != 0 && run.end[-1] >= 128) return ExampleFault::kCut;
  place = {run.begin, count_varints(run)};
  return ExampleFault::kCount;
}

ExampleFault ExampleDecoder::wrong_count(Pointer at, uint64_t bytes,
                                         ExampleErrorPlace& place) const {
  place = {at, bytes};
  if (type_ == kBytesList) return ExampleFault::kLength;
  place.found /= 4;
  return bytes % 4 == 0 ? ExampleFault::kCount : ExampleFault::kFloats;
}

}  // namespace penstock
