// Any bytes as a tf.SequenceExample: the parser returns the values of a plain decoder, or fails if
// that fails, for any previous record.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/io/sequence_examples.h"
#include "fuzz/require.h"

using namespace penstock;

namespace {

using Type = ExampleFeature::Type;
using Form = ExampleFeature::Form;

// The names and sizes of corpus/sequence_example.
const std::vector<ExampleFeature>& context() {
  static const std::vector<ExampleFeature> made = {
      {.name = "label", .type = Type::kInt64, .form = Form::kFixed, .count = 1}};
  return made;
}
std::vector<ExampleFeature> wanted(bool defaults) {
  std::vector<ExampleFeature> made = {
      {.name = "frame", .type = Type::kFloat32, .form = Form::kFixed, .count = 2},
      {.name = "ids", .type = Type::kInt64, .form = Form::kRagged},
      {.name = "n", .type = Type::kInt64, .form = Form::kFixed, .dtype = DType::kInt32},
      {.name = "raw", .type = Type::kBytes, .form = Form::kFixed, .count = 3},
      {.name = "word", .type = Type::kBytes, .form = Form::kString},
  };
  for (ExampleFeature& feature : made) {
    if (defaults) feature.default_value.emplace();
  }
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::string before;
  const std::string_view message(reinterpret_cast<const char*>(data), size);
  for (bool defaults : {false, true}) {
    const size_t features = defaults ? 0 : context().size();
    SequenceExampleParser parser(defaults ? std::vector<ExampleFeature>() : context(),
                                 wanted(defaults));
    const auto made = expected_sequence(parser.features(), features, message);
    REQUIRE(parse(parser, features, message) == made);
    REQUIRE((parser.failure().fault == ExampleFault::kNone) == made.has_value());
    REQUIRE(parser.failure().byte <= size);
    REQUIRE(!parser.failure_text().empty());
    REQUIRE(parse(parser, features, message) == made);
    parse(parser, features, before);
    REQUIRE(parse(parser, features, message) == made);
  }
  if (plain_map(message, 2)) before = message;
  return 0;
}
