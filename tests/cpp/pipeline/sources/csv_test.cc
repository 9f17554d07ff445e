#include <gtest/gtest.h>

#include <random>

#include "../../io/tfrecords.h"
#include "../stages/stream_contract.h"
#include "penstock/io/csv_parser.h"
#include "penstock/pipeline/sources/sources.h"

namespace penstock {
namespace {

using Record = std::vector<std::string>;
using testing::Made;

// A plain parser of RFC 4180, character by character.
std::vector<Record> plainly_parsed(const std::string& text, char delimiter = ',') {
  std::vector<Record> records;
  size_t i = 0;
  while (i < text.size()) {
    if (text[i] == '\n' || text.compare(i, 2, "\r\n") == 0) {  // an empty line
      i += text[i] == '\n' ? 1 : 2;
      continue;
    }
    Record record;
    for (bool more = true; more;) {
      std::string field;
      if (i < text.size() && text[i] == '"') {
        for (++i; i < text.size(); ++i) {
          if (text[i] == '"' && (i + 1 == text.size() || text[i + 1] != '"')) break;
          if (text[i] == '"') ++i;
          field += text[i];
        }
        ++i;
        if (text.compare(i, 2, "\r\n") == 0) ++i;
      } else {
        while (i < text.size() && text[i] != delimiter && text[i] != '\n') field += text[i++];
        if (i < text.size() && text[i] == '\n' && field.ends_with('\r')) field.pop_back();
      }
      more = i < text.size() && text[i] == delimiter;
      ++i;
      record.push_back(field);
    }
    records.push_back(record);
  }
  return records;
}

// A file of these records, in a random style.
std::string written(const std::vector<Record>& records, std::mt19937& random) {
  std::string text;
  for (const Record& record : records) {
    for (size_t i = 0; i < record.size(); ++i) {
      if (i > 0) text += ',';
      const bool special = record[i].find_first_of(",\"\r\n") != std::string::npos;
      if (!special && (record.size() > 1 || !record[i].empty()) && random() % 4 != 0) {
        text += record[i];
        continue;
      }
      text += '"';
      for (char c : record[i]) text.append(c == '"' ? 2 : 1, c);
      text += '"';
    }
    text += random() % 3 == 0 ? "\r\n" : "\n";
    if (random() % 20 == 0) text += "\r\n\n";
  }
  return text;
}

struct Csv : ::testing::Test {
  std::vector<Made> all(const Node::Ref& node, std::vector<Failure>* failures = nullptr) {
    Built built = Builder(files).build(*node);
    Scratch scratch;
    Context context{scratch};
    Chunk chunk(scratch);
    auto reader = built.indexed->reader(context);
    std::vector<Made> made;
    for (uint64_t begin = 0; begin < built.indexed->length(0); begin += 64) {
      std::vector<uint64_t> positions(std::min<uint64_t>(64, built.indexed->length(0) - begin));
      std::iota(positions.begin(), positions.end(), begin);
      chunk.reset(built.indexed->spec(), static_cast<uint32_t>(positions.size()));
      reader->fetch({}, positions, chunk, 0);
      for (Made& each : testing::elements_of(chunk, 0)) made.push_back(std::move(each));
      if (failures != nullptr) {
        for (auto& [row, failure] : chunk.failures()) failures->push_back(failure);
      }
      scratch.empty();
    }
    return made;
  }
  // The one failure of a file with the columns id (int64), x (float32) and name (text).
  std::string why(const std::string& text, CsvOptions options = {}) {
    (*files)["file"] = text;
    if (options.columns.empty()) options.columns = kColumns;
    std::vector<Failure> failures;
    all(nodes::csv("file", options), &failures);
    EXPECT_EQ(failures.size(), 1u);
    return failures.empty() ? "" : testing::text_of(failures[0]);
  }
  static std::string string_of(const Made& made, const char* name) {
    if (!made) return "<lost>";
    auto bytes = made->at(name).as_span<const uint8_t>();
    return {bytes.begin(), bytes.end()};
  }

  inline static const std::vector<CsvColumn> kColumns{
      {"id"}, {"x", CsvColumn::Kind::kNumber, DType::kFloat32}, {"name", CsvColumn::Kind::kText}};
  std::shared_ptr<MemoryFiles> files = std::make_shared<MemoryFiles>();
};

CsvOptions text_columns(size_t count) {
  CsvOptions options;
  for (size_t i = 0; i < count; ++i) {
    options.names.push_back(std::string("c").append(std::to_string(i)));
    options.columns.push_back({options.names.back(), CsvColumn::Kind::kText});
  }
  return options;
}

TEST_F(Csv, fields_are_those_of_the_rfc_indexed_and_as_a_stream) {
  std::mt19937 random(3);
  const std::string alphabet = "ab,\"\r\n ;";
  for (int round = 0; round < 60; ++round) {
    const size_t columns = 1 + random() % 4;
    std::vector<Record> records(random() % 200);
    for (Record& record : records) {
      record.resize(columns);
      for (std::string& field : record) {
        for (unsigned i = random() % 6; i > 0; --i) field += alphabet[random() % alphabet.size()];
        if (random() % 300 == 0) field += std::string(70'000, '"');  // more than one piece
      }
    }
    std::string text = written(records, random);
    if (random() % 2 == 0) text = "\xEF\xBB\xBF" + text;
    (*files)["file"] = text;
    (*files)["small.gz"] = compressed(text, Compression::kGzip);
    const CsvOptions options = text_columns(columns);
    testing::StreamReading stream(nodes::csv("small.gz", options), 0, files);
    for (const std::vector<Made>& made : {all(nodes::csv("file", options)), stream.epoch()}) {
      ASSERT_EQ(made.size(), records.size()) << round;
      for (size_t i = 0; i < records.size(); ++i) {
        for (size_t c = 0; c < columns; ++c) {
          ASSERT_EQ(string_of(made[i], options.names[c].c_str()), records[i][c]) << round;
        }
      }
    }
  }
}

// One file with different options has a separate index for each.
TEST_F(Csv, an_index_beside_the_file_is_that_of_what_is_asked_for) {
  std::string text = "c0,c1\n";
  for (int i = 0; i < 300; ++i) text += "\"a\n" + std::to_string(i) + "\",b;c\n\n";
  (*files)["file"] = "\n\n" + text;
  auto options = [](std::vector<std::string> names, char delimiter) {
    CsvOptions made = text_columns(2);
    made.names = std::move(names);
    if (delimiter == ';') made.columns.resize(0);
    if (delimiter == ';') made.columns.push_back({made.names[1], CsvColumn::Kind::kText});
    made.delimiter = delimiter;
    return made;
  };
  auto texts = [&](CsvOptions wanted, const std::string& index) {
    wanted.index = index;
    const std::string last = wanted.columns.back().name;
    std::vector<std::string> made;
    for (const Made& each : all(nodes::csv("file", wanted))) {
      made.push_back(string_of(each, last.c_str()));
    }
    return made;
  };
  const std::vector<CsvOptions> ways{options({}, ','), options({"c0", "c1"}, ','),
                                     options({"c0", "c1"}, ';')};
  for (const CsvOptions& way : ways) {
    const std::vector<std::string> expected = texts(way, "");
    EXPECT_GE(expected.size(), 300u);
    for (int turn = 0; turn < 2; ++turn) EXPECT_EQ(texts(way, "beside"), expected);
  }
  EXPECT_EQ(files->list("").size(), 2u);
}

// For any bytes, both ways find the same records as the plain parser.
TEST_F(Csv, any_bytes_are_cut_alike) {
  std::mt19937 random(4);
  const std::string alphabet = "a,\"\"\r\n";
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (unsigned i = random() % 30; i > 0; --i) text += alphabet[random() % alphabet.size()];
    (*files)["file"] = text;
    const RecordIndex index = index_csv(*files->open("file"), ',', 0);
    std::unique_ptr<Framing> framing = csv_framing(',');
    std::vector<uint64_t> begins;
    framing->begin();
    for (size_t at = 0; at < text.size();) {
      const std::span rest = std::as_bytes(std::span(text)).subspan(at);
      Framing::Next cut{Framing::Next::Kind::kNeedMore};
      for (size_t part = 1; cut.kind == Framing::Next::Kind::kNeedMore; ++part) {
        ASSERT_LE(part, rest.size());
        cut = framing->next({rest.first(part), rest.size()});
      }
      if (cut.kind == Framing::Next::Kind::kRecord) begins.push_back(at);
      at += cut.bytes;
    }
    ASSERT_EQ(index.size(), begins.size()) << text;
    for (size_t i = 0; i < begins.size(); ++i) ASSERT_EQ(index.at(i).offset, begins[i]) << text;
    // Text after a closing quote is an error, which the plain parser does not detect.
    std::vector<Failure> failures;
    if (index.size() > 0) {
      const auto made = all(nodes::csv("file", text_columns(1)), &failures);
      if (failures.empty()) {
        const auto plain = plainly_parsed(text);
        ASSERT_EQ(made.size(), plain.size()) << text;
        for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(string_of(made[i], "c0"), plain[i][0]);
      }
    }
  }
}

TEST_F(Csv, a_header_says_where_the_columns_are_in_each_file) {
  (*files)["a"] = "\xEF\xBB\xBF\"id\",other,x,name\r\n1,?,0.5,one\r\n2,?,-1e3,\"t\"\"wo\"\r\n";
  (*files)["b"] = "\nname,x,id\nthree, 2.5 ,+3\n\n";
  (*files)["c"] = "";
  (*files)["d"] = "id,x,name";
  for (bool stream : {false, true}) {
    const CsvOptions options{.columns = kColumns, .stream = stream};
    const auto made = nodes::csv(Paths{"a", "b", "c", "d"}, options);
    testing::StreamReading reading(made, 0, files);
    const std::vector<Made> rows = reading.epoch();
    ASSERT_EQ(rows.size(), 3u);
    const char* names[] = {"one", "t\"wo", "three"};
    const float x[] = {0.5F, -1000, 2.5F};
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(rows[i]->at("id").as_span<const int64_t>()[0], i + 1);
      EXPECT_EQ(rows[i]->at("x").as_span<const float>()[0], x[i]);
      EXPECT_EQ(string_of(rows[i], "name"), names[i]);
    }
    testing::check_stream(made, 400, 3, files);
  }
  (*files)["e"] = "id,name\n";
  for (bool stream : {false, true}) {
    const CsvOptions options{.columns = kColumns, .stream = stream};
    const Error error = testing::error_of([&] {
      Builder(files).build(*nodes::csv({"a", "e"}, options));
    });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_STREQ(error.what(), "csv: e has no column 'x'; it has 'id', 'name'");
  }
}

TEST_F(Csv, what_is_wrong_with_a_record_names_record_line_column_and_what_is_there) {
  const std::string head = "id,x,name\n1,2,\"a\nb\"\n\n";  // the second record is in line 5
  EXPECT_EQ(
      why(head + "7,wide,c\n8,1,d"),
      "csv: file, record 1 at byte 21 (9 bytes): line 5, column 2, 'x': 'wide' is not float32");
  EXPECT_NE(why(head + "7,1\n").find("line 5, it has 2 columns, expected 3"), std::string::npos);
  EXPECT_NE(why(head + "?,1,2,3\n").find("it has 4 columns, expected 3"), std::string::npos);
  EXPECT_NE(why(head + "7,,c\n").find("'x': the field is empty and the column has no default"),
            std::string::npos);
  EXPECT_NE(why(head + "7,1,\"c\" d\n8,1,e").find("column 3: text follows a closing quote"),
            std::string::npos);
  EXPECT_NE(why(head + "7,1,\"c\nd").find("column 3: a quote is not closed"), std::string::npos);
  EXPECT_NE(why(head + "9223372036854775808,1,c").find("is not int64"), std::string::npos);
  EXPECT_NE(why(head + "1,1e39,c").find("'1e39' is not float32"), std::string::npos);
  EXPECT_NE(why(head + "1,1,caf\xe9\n").find("column 3, 'name': 'caf\\xe9' is not UTF-8"),
            std::string::npos);
  EXPECT_NE(why(head + "1,1,\"\"\"\xc3\"\"\"").find("'\"\\xc3\"' is not UTF-8"), std::string::npos);
  // As a stream, too.
  (*files)["file"] = head + "7,wide,c\n8,1,d";
  const auto node = nodes::csv("file", CsvOptions{.columns = kColumns, .stream = true});
  testing::StreamReading reading(node, 0, files);
  EXPECT_EQ(reading.epoch().size(), 3u);
  reading.reader().begin(0);
  reading.next(3);
  EXPECT_EQ(
      testing::text_of(reading.failures()[0].second),
      "csv: file, record 1 at byte 21 (9 bytes): line 5, column 2, 'x': 'wide' is not float32");
  testing::check_stream(node, 400, 3, files);
}

TEST_F(Csv, numbers_of_all_kinds_and_defaults) {
  CsvOptions options;
  for (DType dtype : {DType::kBool, DType::kInt8, DType::kUint64, DType::kFloat64}) {
    options.names.emplace_back(name_of(dtype));
    options.columns.push_back({options.names.back(), CsvColumn::Kind::kNumber, dtype, "1"});
  }
  (*files)["file"] = "true,-128,18446744073709551615,1e-400\n,,,\n0 ,\t5,  6,nan\nFALSE,+7,8,-inf";
  const std::vector<Made> rows = all(nodes::csv("file", options));
  ASSERT_EQ(rows.size(), 4u);
  const bool flags[] = {true, true, false, false};
  const int8_t small[] = {-128, 1, 5, 7};
  const uint64_t large[] = {UINT64_MAX, 1, 6, 8};
  const double x[] = {0, 1, NAN, -INFINITY};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(rows[i]->at("bool").as_span<const bool>()[0], flags[i]);
    EXPECT_EQ(rows[i]->at("int8").as_span<const int8_t>()[0], small[i]);
    EXPECT_EQ(rows[i]->at("uint64").as_span<const uint64_t>()[0], large[i]);
    const double value = rows[i]->at("float64").as_span<const double>()[0];
    EXPECT_TRUE(value == x[i] || (value != value && x[i] != x[i])) << value;
  }
}

TEST_F(Csv, a_file_that_changed_fails_what_it_concerns) {
  std::string& text = (*files)["file"] = "id,x,name\n1,1,a\n2,2,b\n3,3,c\n";
  const Node::Ref node = nodes::csv("file", {.columns = kColumns});
  EXPECT_EQ(all(node).size(), 3u);
  text = "id,x,name\n1,1,a\n2\n2,b\n3,3,c\n";
  std::vector<Made> rows = all(node);
  EXPECT_TRUE(rows[0] && !rows[1] && rows[2]);
  text = "id,x,name\n1,1,a\n2,";
  rows = all(node);
  EXPECT_TRUE(rows[0] && !rows[1] && !rows[2]);
}

TEST_F(Csv, arguments_that_cannot_be) {
  auto code = [](CsvOptions options) {
    return testing::error_of([&] { nodes::csv("file", options); }).code();
  };
  EXPECT_EQ(code({}), Code::kInvalidArgument);
  EXPECT_EQ(code({.columns = {{"a"}, {"a"}}}), Code::kInvalidArgument);
  EXPECT_EQ(code({.columns = {{"a"}}, .delimiter = '"'}), Code::kInvalidArgument);
  EXPECT_EQ(code({.columns = {{"a", CsvColumn::Kind::kNumber, DType::kFloat16}}}),
            Code::kInvalidArgument);
  EXPECT_EQ(code({.columns = {{"a", CsvColumn::Kind::kNumber, DType::kInt8, "1000"}}}),
            Code::kInvalidArgument);
  EXPECT_EQ(code({.columns = {{"a", CsvColumn::Kind::kText, DType::kUint8, "\xff"}}}),
            Code::kInvalidArgument);
  EXPECT_EQ(nodes::csv("in/a.csv", {.columns = kColumns, .delimiter = '\t'})->title,
            "csv(a.csv, {id: int64 (), x: float32 (), name: text}, delimiter='\\x09')");
}

}  // namespace
}  // namespace penstock
