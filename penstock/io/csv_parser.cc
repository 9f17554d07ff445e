#include "penstock/io/csv_parser.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/utf8.h"
#include "penstock/io/csv_numbers.h"
#include "penstock/io/csv_scan.h"
#include "penstock/io/sequential_file.h"

namespace penstock {
namespace {

constexpr char kQuote = '"', kLineFeed = '\n', kReturn = '\r';
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct CsvField {
  std::string_view text;  // between the quotes
  bool quoted = false, doubled = false;
};

// Goes through the fields of a record.
class CsvFields {
 public:
  CsvFields(std::string_view record, char delimiter) : left_(record), delimiter_(delimiter) {}

  // nullptr, or why it is none. REQUIRED: more().
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
  // Behind the record's end.
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
      return "something follows a closing quote: within quotes, a quote is written twice";
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

// Without the doubles of its quotes, to `to`, where there is room for all of it.
std::string_view single_quotes(std::string_view text, char* to) {
  char* end = to;
  for (size_t i = 0; i < text.size(); ++i) {
    *end++ = text[i];
    i += text[i] == kQuote;
  }
  return {to, static_cast<size_t>(end - to)};
}

// In messages: its beginning.
std::string shown_field(std::string_view text) {
  constexpr size_t kMost = 40;
  const bool cut = text.size() > kMost;
  return "'" + std::string(text.substr(0, kMost)) + (cut ? "...'" : "'");
}

std::string listed_names(const std::vector<std::string>& names) {
  constexpr size_t kMost = 20;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i)
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  return names.size() > kMost ? text + ", ..." : text;
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

// The record at the front of a file, and the bytes up to its end. A file's header is small.
std::string read_front(SequentialFile& source, char delimiter, uint64_t& bytes) {
  constexpr size_t kPiece = 64 << 10;
  std::string front;
  std::unique_ptr<Framing> framing = csv_framing(delimiter);
  bytes = 0;
  for (bool over = false;;) {
    const std::span rest = std::as_bytes(std::span(front)).subspan(bytes);
    const Framing::Front of{rest, rest.size() + !over};
    const Framing::Cut cut =
        rest.empty() ? Framing::Cut{Framing::Cut::Kind::kMore, 1} : framing->cut(of);
    if (cut.kind == Framing::Cut::Kind::kNothing) {
      bytes += cut.bytes;
    } else if (cut.kind == Framing::Cut::Kind::kRecord) {
      const std::string record(view_of(rest.first(cut.bytes)));
      bytes += cut.bytes;
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
  if (record.empty()) return {bytes, {}};  // and no records either
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
  if (format_->columns.empty()) wrong("no column is wanted");
  if (std::string_view("\"\r\n").find(format_->delimiter) != std::string_view::npos) {
    wrong("the delimiter is a quote or a line's end");
  }
  std::set<std::string_view> names;
  for (const CsvColumn& column : format_->columns) {
    if (!names.insert(column.name).second) wrong("two columns '" + column.name + "' are wanted");
    if (column.kind == CsvColumn::Kind::kText && column.fallback && !is_text(*column.fallback)) {
      wrong("column '" + column.name + "': the default is no UTF-8");
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
    if (column >= header.wanted.size()) continue;  // and is counted
    const int32_t place = header.wanted[column];
    if (place < 0) continue;
    if (field.doubled) {
      char* to = reinterpret_cast<char*>(memory_(field.text.size()));
      field.text = single_quotes(field.text, to);
    }
    const auto wanted = static_cast<size_t>(place);
    if (!give(format_->columns[wanted], column, field.text, field.quoted, values[wanted])) {
      // A field that is missing or too many shifts the others, and is what is wrong then.
      const std::string why = failure_;
      while (fields.more() && fields.next(field) == nullptr) ++column;
      return column + 1 == header.wanted.size() ? refuse(why)
                                                : wrong_count(column + 1, header.wanted.size());
    }
  }
  if (column != header.wanted.size()) return wrong_count(column, header.wanted.size());
  if (empty_lines(std::as_bytes(std::span(fields.left()))) != fields.left().size()) {
    return refuse("another record than when the file was indexed");
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
  if (!number) return refuse(where + shown_field(field) + " is no UTF-8");
  const std::string type(name_of(column.dtype));
  if (field.find_first_not_of(" \t") == field.npos) {
    return refuse(where + "it is empty; give the column a default");
  }
  return refuse(where + shown_field(field) + " is no " + type);
}

bool CsvParser::refuse(const std::string& why) {
  failure_ = why;
  return false;
}

bool CsvParser::wrong_count(size_t columns, size_t wanted) {
  return refuse("it has " + std::to_string(columns) + (columns == 1 ? " column" : " columns") +
                " where " + std::to_string(wanted) + " are wanted");
}

}  // namespace penstock
