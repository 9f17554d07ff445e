#include "penstock/io/example_decoder.h"

namespace penstock {

using namespace wire;

namespace {

const std::byte* as_data(Bytes at) { return reinterpret_cast<const std::byte*>(at); }

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
                                    ExampleMemory& memory, ExampleTrouble& trouble) const {
  if (entry.how == ExampleEntries::Found::kPlain && entry.type == type_) [[likely]] {
    return whole(entry.span, value, memory, trouble);
  }
  ExampleContents contents{.type = entry.type};
  if (entry.how == ExampleEntries::Found::kEntry) {
    const ExampleFault fault = contents_of(entry.span, true, contents, trouble);
    if (fault != ExampleFault::kNone) return fault;
  }
  if (contents.type == type_) {
    return contents.pieces == 1 ? whole(contents.last, value, memory, trouble)
                                : in_pieces(entry.span, contents, value, memory, trouble);
  }
  trouble = {entry.span.begin, contents.type};
  return contents.type == 0 ? ExampleFault::kMissing : ExampleFault::kType;
}

// All values are one packed run, or one byte string.
ExampleFault ExampleDecoder::whole(Span run, ExampleValue& value, ExampleMemory& memory,
                                   ExampleTrouble& trouble) const {
  switch (kind_) {
    case Kind::kRow:
      if (run.size() != row_bytes_) [[unlikely]]
        return wrong_count(run.begin, run.size(), trouble);
      std::memcpy(value.row, run.begin, row_bytes_);
      return ExampleFault::kNone;
    case Kind::kVarintRow:
      return varints(run, value.row, count_, trouble);
    case Kind::kFloats:
      if (run.size() % 4 != 0) return wrong_count(run.begin, run.size(), trouble);
      value.data = as_data(run.begin);
      value.count = run.size() / 4;
      return ExampleFault::kNone;
    case Kind::kVarints: {
      value.count = count_varints(run);
      std::byte* to = room(memory, value.count * value_bytes_);
      value.data = to;
      return varints(run, to, value.count, trouble);
    }
    case Kind::kStrings: {
      std::byte* length = room(memory, sizeof(int64_t));
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

// No piece, or several.
ExampleFault ExampleDecoder::in_pieces(Span entry, const ExampleContents& contents,
                                       ExampleValue& value, ExampleMemory& memory,
                                       ExampleTrouble& trouble) const {
  ExampleOutput output{.narrow = narrow_};
  switch (kind_) {
    case Kind::kRow:
    case Kind::kVarintRow:
      if (type_ == kBytesList || contents.values != count_) {
        trouble = {entry.begin, contents.values};
        return ExampleFault::kCount;
      }
      output.to = value.row;
      break;
    case Kind::kString:
      trouble = {entry.begin, contents.values};
      return ExampleFault::kCount;
    case Kind::kStrings: {
      output.to = room(memory, contents.bytes);
      value.data = output.to;
      value.count = contents.bytes;
      output.lengths = reinterpret_cast<int64_t*>(room(memory, contents.values * sizeof(int64_t)));
      value.lengths = {output.lengths, contents.values};
      break;
    }
    case Kind::kFloats:
    case Kind::kVarints:
      output.to = room(memory, contents.values * value_bytes_);
      value.data = output.to;
      value.count = contents.values;
      break;
  }
  return contents.pieces == 0 ? ExampleFault::kNone
                              : put_contents(entry, true, contents, output, trouble);
}

ExampleFault ExampleDecoder::varints(Span run, std::byte* to, uint64_t count,
                                     ExampleTrouble& trouble) const {
  Bytes at = run.begin;
  const ExampleFault fault = narrow_ ? unpack<int32_t>(at, run.end, to, count, trouble.found)
                                     : unpack<int64_t>(at, run.end, to, count, trouble.found);
  if (fault == ExampleFault::kNone && at == run.end) [[likely]]
    return fault;
  trouble.at = at;
  if (fault != ExampleFault::kNone && fault != ExampleFault::kCount) return fault;
  // It ends before or after what is wanted. Do the numbers end at all?
  if (run.size() != 0 && run.end[-1] >= 128) return ExampleFault::kCut;
  trouble = {run.begin, count_varints(run)};
  return ExampleFault::kCount;
}

ExampleFault ExampleDecoder::wrong_count(Bytes at, uint64_t bytes, ExampleTrouble& trouble) const {
  trouble = {at, bytes};
  if (type_ == kBytesList) return ExampleFault::kLength;
  trouble.found /= 4;
  return bytes % 4 == 0 ? ExampleFault::kCount : ExampleFault::kFloats;
}

}  // namespace penstock
