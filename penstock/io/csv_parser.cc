#include "penstock/io/csv_parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <set>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/io/compression.h"

namespace penstock {

namespace {

bool is_space(char c) { return c == ' ' || c == '\t'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  return text;
}

template <class T>
bool integer(std::string_view text, std::byte* to) {
  T value;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end) return false;
  std::memcpy(to, &value, sizeof(T));
  return true;
}

// For a number outside its type's range: true if it underflows, false if it overflows. Decided by
// the exponent in scientific notation, which depends on both the digits and the written exponent.
bool is_tiny(std::string_view text) {
  const size_t e = std::min(text.find_first_of("eE"), text.size());
  const std::string_view digits = text.substr(0, e);
  const size_t first = digits.find_first_of("123456789");
  if (first == digits.npos) return true;
  const auto point = static_cast<int64_t>(std::min(digits.find('.'), digits.size()));
  const auto at = static_cast<int64_t>(first);
  const int64_t place = at < point ? point - at - 1 : point - at;
  int64_t exponent = 0;
  if (e < text.size()) {
    const char* from = text.data() + e + 1;
    if (*from == '+') ++from;
    const char* const end = text.data() + text.size();
    if (std::from_chars(from, end, exponent).ec == std::errc::result_out_of_range) {
      return *from == '-';  // the exponent dominates: no text is long enough to outweigh it
    }
  }
  return exponent < -place;
}

// The payload of a NaN, "nan(...)", is not accepted.
bool has_payload(std::string_view text) { return text.ends_with(')'); }

template <class T>
bool floating(std::string_view text, std::byte* to) {
  T value;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range && at == end && is_tiny(text)) {
    value = text[0] == '-' ? -T{0} : T{0};
  } else if (error != std::errc() || at != end || has_payload(text)) {
    return false;
  }
  std::memcpy(to, &value, sizeof(T));
  return true;
}

bool boolean(std::string_view text, std::byte* to) {
  const bool yes = text == "1" || text == "true" || text == "True" || text == "TRUE";
  if (!yes && text != "0" && text != "false" && text != "False" && text != "FALSE") return false;
  *to = std::byte{yes};
  return true;
}

}  // namespace

bool read_number(std::string_view text, DType dtype, std::byte* to) {
  text = trimmed(text);
  switch (dtype) {
    case DType::kBool:
      return boolean(text, to);
    case DType::kInt8:
      return integer<int8_t>(text, to);
    case DType::kInt16:
      return integer<int16_t>(text, to);
    case DType::kInt32:
      return integer<int32_t>(text, to);
    case DType::kInt64:
      return integer<int64_t>(text, to);
    case DType::kUint8:
      return integer<uint8_t>(text, to);
    case DType::kUint16:
      return integer<uint16_t>(text, to);
    case DType::kUint32:
      return integer<uint32_t>(text, to);
    case DType::kUint64:
      return integer<uint64_t>(text, to);
    case DType::kFloat32:
      return floating<float>(text, to);
    case DType::kFloat64:
      return floating<double>(text, to);
    default:
      return false;
  }
}

bool is_csv_number(DType dtype) {
  return dtype <= DType::kUint64 || dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

namespace {

constexpr char kQuote = '"', kLineFeed = '\n', kReturn = '\r';
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct CsvField {
  std::string_view text;  // between the quotes
  bool quoted = false, doubled = false;
};

// Iterates over the fields of a record.
class CsvFields {
 public:
  CsvFields(std::string_view record, char delimiter) : left_(record), delimiter_(delimiter) {}

  // nullptr, or why the field is invalid. REQUIRED: more().
  const char* next(CsvField& field) {
    field = {};
    if (!left_.empty() && left_[0] == kQuote) return quoted(field);
    const char* const begin = left_.data();
    const char* const end = begin + left_.size();
    const char* at = begin;
    while (at != end && *at != delimiter_ && *at != kLineFeed) ++at;
    field.text = left_.substr(0, static_cast<size_t>(at - begin));
    if (at != end && *at == kLineFeed && field.text.ends_with(kReturn)) {
      field.text.remove_suffix(1);
    }
    return finish(static_cast<size_t>(at - begin));
  }

  bool more() const { return more_; }
  // The bytes after the record's end.
  std::string_view left() const { return left_; }

 private:
  const char* quoted(CsvField& field) {
    size_t at = 1;
    while (true) {
      at = left_.find(kQuote, at);
      if (at == left_.npos) return "a quote is not closed";
      if (at + 1 == left_.size() || left_[at + 1] != kQuote) break;
      field.doubled = true;
      at += 2;
    }
    field.text = left_.substr(1, at - 1);
    field.quoted = true;
    ++at;
    if (at + 1 < left_.size() && left_[at] == kReturn && left_[at + 1] == kLineFeed) ++at;
    if (at < left_.size() && left_[at] != delimiter_ && left_[at] != kLineFeed) {
      return "text follows a closing quote; a quote inside quotes must be doubled";
    }
    return finish(at);
  }

  // The field ends here.
  const char* finish(size_t at) {
    more_ = at < left_.size() && left_[at] == delimiter_;
    left_.remove_prefix(std::min(at + 1, left_.size()));
    return nullptr;
  }

  std::string_view left_;
  const char delimiter_;
  bool more_ = true;
};

std::string_view view_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_text(std::string_view text) { return is_utf8(std::as_bytes(std::span(text))); }

// Copies the text with each doubled quote made single. `to` has space for text.size() bytes.
std::string_view single_quotes(std::string_view text, char* to) {
  char* end = to;
  for (size_t i = 0; i < text.size(); ++i) {
    *end++ = text[i];
    i += text[i] == kQuote;
  }
  return {to, static_cast<size_t>(end - to)};
}

// The beginning of a field, for messages.
std::string shown_field(std::string_view text) {
  constexpr size_t kMaxShown = 40;
  std::string shown = "'";
  shown += text.substr(0, kMaxShown);
  return shown += text.size() > kMaxShown ? "...'" : "'";
}

std::string listed_names(const std::vector<std::string>& names) {
  constexpr size_t kMaxShown = 20;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxShown); ++i)
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  return names.size() > kMaxShown ? text + ", ..." : text;
}

CsvHeader header_of(const std::vector<std::string>& names, const CsvFormat& format,
                    const std::string& path) {
  CsvHeader header;
  header.wanted.assign(names.size(), -1);
  for (size_t i = 0; i < format.columns.size(); ++i) {
    const std::string& name = format.columns[i].name;
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      throw Error(Code::kInvalidArgument, "csv",
                  path + " has no column '" + name + "'; it has " + listed_names(names));
    }
    if (std::find(found + 1, names.end(), name) != names.end()) {
      throw Error(Code::kInvalidArgument, "csv", path + " has two columns '" + name + "'");
    }
    header.wanted[static_cast<size_t>(found - names.begin())] = static_cast<int32_t>(i);
  }
  return header;
}

// The first record of a file, and the bytes up to its end. Reads the record into memory whole: a
// file's header is small.
std::string read_front(SequentialFile& source, char delimiter, uint64_t& bytes) {
  constexpr size_t kPiece = 64 << 10;
  std::string front;
  std::unique_ptr<Framing> framing = csv_framing(delimiter);
  bytes = 0;
  for (bool over = false;;) {
    const std::span rest = std::as_bytes(std::span(front)).subspan(bytes);
    const Framing::Window of{rest, rest.size() + !over};
    const Framing::Next next =
        rest.empty() ? Framing::Next{Framing::Next::Kind::kNeedMore, 1} : framing->next(of);
    if (next.kind == Framing::Next::Kind::kSkip) {
      bytes += next.bytes;
    } else if (next.kind == Framing::Next::Kind::kRecord) {
      const std::string record(view_of(rest.first(next.bytes)));
      bytes += next.bytes;
      return record;
    } else if (over) {
      return {};
    } else {
      const size_t before = front.size();
      front.resize(before + kPiece);
      const size_t got = source.read(std::as_writable_bytes(std::span(front)).subspan(before));
      front.resize(before + got);
      over = got == 0;
      if (before == 0 && front.starts_with(kByteOrderMark)) bytes = kByteOrderMark.size();
    }
  }
}

}  // namespace

CsvHeader read_csv_header(const std::shared_ptr<File>& file, Compression compression,
                          const CsvFormat& format) {
  SequentialFile source(file, compression);
  if (!format.names.empty()) {
    CsvHeader header = header_of(format.names, format, file->path());
    std::array<char, 3> first;
    const size_t got = source.read(std::as_writable_bytes(std::span(first)));
    if (std::string_view(first.data(), got) == kByteOrderMark) header.bytes = got;
    return header;
  }
  uint64_t bytes = 0;
  const std::string record = read_front(source, format.delimiter, bytes);
  if (record.empty()) return {bytes, {}};  // an empty file has no records either
  std::vector<std::string> names;
  CsvFields fields(record, format.delimiter);
  for (CsvField field; fields.more();) {
    if (const char* why = fields.next(field)) {
      throw Error(Code::kDataLoss, "csv", file->path() + ", its header: " + why);
    }
    std::string name(field.text);
    if (field.doubled) name.resize(single_quotes(field.text, name.data()).size());
    names.push_back(std::move(name));
  }
  CsvHeader header = header_of(names, format, file->path());
  header.bytes = bytes;
  return header;
}

CsvParser::CsvParser(std::shared_ptr<const CsvFormat> format,
                     std::function<std::byte*(size_t)> memory)
    : format_(std::move(format)), memory_(std::move(memory)) {
  auto wrong = [](const std::string& why) { throw Error(Code::kInvalidArgument, "csv", why); };
  if (format_->columns.empty()) wrong("no columns are given");
  if (std::string_view("\"\r\n").find(format_->delimiter) != std::string_view::npos) {
    wrong("the delimiter must not be a quote or a line end");
  }
  std::set<std::string_view> names;
  for (const CsvColumn& column : format_->columns) {
    if (!names.insert(column.name).second) wrong("two columns '" + column.name + "' are wanted");
    if (column.kind == CsvColumn::Kind::kText && column.fallback && !is_text(*column.fallback)) {
      wrong("column '" + column.name + "': the default is not UTF-8");
    }
    if (column.kind != CsvColumn::Kind::kNumber) continue;
    if (!is_csv_number(column.dtype)) {
      wrong("column '" + column.name + "' cannot be " + std::string(name_of(column.dtype)) +
            "; give bool, an integer, float32 or float64");
    }
    std::array<std::byte, 8> value;
    if (column.fallback && !read_number(*column.fallback, column.dtype, value.data())) {
      wrong("column '" + column.name + "': the default " + shown_field(*column.fallback) +
            " is no " + std::string(name_of(column.dtype)));
    }
  }
}

bool CsvParser::parse(std::span<const std::byte> record, const CsvHeader& header,
                      std::span<Value> values) {
  CsvFields fields(view_of(record), format_->delimiter);
  size_t column = 0;
  for (CsvField field; fields.more(); ++column) {
    if (const char* why = fields.next(field)) {
      return refuse("column " + std::to_string(column + 1) + ": " + why);
    }
    if (column >= header.wanted.size()) continue;  // too many fields: counted below
    const int32_t place = header.wanted[column];
    if (place < 0) continue;
    if (field.doubled) {
      char* to = reinterpret_cast<char*>(memory_(field.text.size()));
      field.text = single_quotes(field.text, to);
    }
    const auto wanted = static_cast<size_t>(place);
    if (!give(format_->columns[wanted], column, field.text, field.quoted, values[wanted])) {
      // A missing or extra field shifts the others, so report the number of fields instead.
      const std::string why = failure_;
      while (fields.more() && fields.next(field) == nullptr) ++column;
      return column + 1 == header.wanted.size() ? refuse(why)
                                                : wrong_count(column + 1, header.wanted.size());
    }
  }
  if (column != header.wanted.size()) return wrong_count(column, header.wanted.size());
  if (empty_lines(std::as_bytes(std::span(fields.left()))) != fields.left().size()) {
    return refuse("the record has changed since the file was indexed");
  }
  return true;
}

bool CsvParser::give(const CsvColumn& column, size_t place, std::string_view field, bool quoted,
                     Value& value) {
  const bool number = column.kind == CsvColumn::Kind::kNumber;
  if (field.empty() && column.fallback && (number || !quoted)) field = *column.fallback;
  value.text = field;
  const bool fine = number ? read_number(field, column.dtype, value.row)
                           : column.kind == CsvColumn::Kind::kBytes || is_text(field);
  if (fine) return true;
  const std::string where = "column " + std::to_string(place + 1) + ", '" + column.name + "': ";
  if (!number) return refuse(where + shown_field(field) + " is not UTF-8");
  const std::string type(name_of(column.dtype));
  if (field.find_first_not_of(" \t") == field.npos) {
    return refuse(where + "the field is empty and the column has no default");
  }
  return refuse(where + shown_field(field) + " is not " + type);
}

bool CsvParser::refuse(const std::string& why) {
  failure_ = why;
  return false;
}

bool CsvParser::wrong_count(size_t columns, size_t wanted) {
  return refuse("it has " + std::to_string(columns) + (columns == 1 ? " column" : " columns") +
                ", expected " + std::to_string(wanted));
}

}  // namespace penstock
