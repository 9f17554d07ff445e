// Any bytes as a tf.Example: the parser returns the values of a plain decoder, or fails if that
// fails, for any previous record.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpp/io/examples.h"
#include "fuzz/require.h"
#include "penstock/io/survey.h"

using namespace penstock;

namespace {

using Type = ExampleFeature::Type;
using Form = ExampleFeature::Form;

// The names and sizes of corpus/example.
std::vector<ExampleFeature> features(bool defaults) {
  std::vector<ExampleFeature> made = {
      {.name = "pair", .type = Type::kInt64, .form = Form::kFixed, .count = 2},
      {.name = "ids", .type = Type::kInt64, .form = Form::kRagged},
      {.name = "n", .type = Type::kInt64, .form = Form::kRagged, .dtype = DType::kInt32},
      {.name = "x", .type = Type::kFloat32, .form = Form::kFixed, .count = 2},
      {.name = "y", .type = Type::kFloat32, .form = Form::kRagged},
      {.name = "raw", .type = Type::kBytes, .form = Form::kFixed, .count = 3},
      {.name = "text", .type = Type::kBytes, .form = Form::kString},
      {.name = "many", .type = Type::kBytes, .form = Form::kStrings},
  };
  for (ExampleFeature& feature : made) {
    if (!defaults) break;
    const size_t count = feature.form == Form::kFixed ? feature.count : 0;
    feature.default_value.emplace().values.resize(count * size_of(feature.output()));
  }
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<ExampleFeature> wanted[] = {features(false), features(true)};
  static std::string before;
  const std::string_view message(reinterpret_cast<const char*>(data), size);
  for (const std::vector<ExampleFeature>& some : wanted) {
    ExampleParser parser(some);
    const auto made = expected(some, message);
    REQUIRE(parse(parser, message) == made);
    REQUIRE((parser.failure().fault == ExampleFault::kNone) == made.has_value());
    REQUIRE(parser.failure().byte <= size);
    REQUIRE(!parser.failure_text().empty());
    REQUIRE(parse(parser, message) == made);
    parse(parser, before);
    REQUIRE(parse(parser, message) == made);
  }
  ExampleSurvey survey;
  survey.add(std::as_bytes(std::span(data, size)));
  REQUIRE(survey.examples() + survey.others() == 1);
  if (plain_map(message, 1)) before = message;
  return 0;
}
