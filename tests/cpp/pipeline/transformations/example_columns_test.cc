#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/pipeline/transformations/parse_example.h"

namespace penstock {
namespace {

SpecRef spec_with(std::vector<Leaf> leaves, std::string nest = {}) {
  return std::make_shared<ElementSpec>(std::move(leaves), std::move(nest));
}
Leaf record_leaf(std::string name) {
  return {std::move(name), LeafKind::kBytes, DType::kUint8, {-1}};
}
Leaf number_leaf(std::string name) {
  return {std::move(name), LeafKind::kDense, DType::kInt64, {}};
}
const SpecRef kParsed = spec_with({number_leaf("x"), record_leaf("y")});

std::vector<std::string> names_of(const ElementSpec& spec) {
  std::vector<std::string> names;
  for (const Leaf& leaf : spec.leaves()) names.push_back(leaf.name);
  return names;
}
using Names = std::vector<std::string>;

TEST(RecordField, an_element_that_is_a_record_is_replaced) {
  RecordField field("parse", "");
  SpecRef made = field.result(*spec_with({record_leaf("")}), kParsed);
  EXPECT_EQ(*made, *kParsed);
  EXPECT_EQ(field.passes(*spec_with({record_leaf("")}), 2).size(), 2u);
  EXPECT_EQ(field.title(), "parse");
  EXPECT_EQ(RecordField("parse", "a/b").title(), "parse(a/b)");
}

TEST(RecordField, elsewhere_the_features_are_a_dict_in_its_place) {
  const SpecRef in = spec_with({number_leaf("id"), record_leaf("r"), number_leaf("w")});
  RecordField field("parse", "r");
  EXPECT_EQ(field.leaf(*in), 1u);
  const SpecRef made = field.result(*in, kParsed);
  EXPECT_EQ(names_of(*made), (Names{"id", "r/x", "r/y", "w"}));
  EXPECT_EQ(made->nest(), "{2:id.1:r{1:x.1:y.}1:w.}");
  EXPECT_EQ(field.passes(*in, 2),
            (std::vector<std::optional<size_t>>{0, std::nullopt, std::nullopt, 2}));
}

TEST(RecordField, names_in_a_nest_may_look_like_nests) {
  const SpecRef odd = spec_with(
      {number_leaf("0"), number_leaf("1/4:..({"), record_leaf("1/0123456.(."), number_leaf("2")},
      "(.{6:4:..({.10:0123456.(..}.)");
  EXPECT_EQ(RecordField("parse", "").result(*odd, kParsed)->nest(),
            "(.{6:4:..({.10:0123456.(.{1:x.1:y.}}.)");
}

TEST(RecordField, what_cannot_be_meant_is_refused) {
  auto refused = [](const std::string& field, std::vector<Leaf> leaves) {
    try {
      (void)RecordField("parse", field).leaf(*spec_with(std::move(leaves)));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refused("", {number_leaf("a")}).find("no byte string"), std::string::npos);
  EXPECT_NE(refused("", {record_leaf("a"), record_leaf("b")}).find("several"), std::string::npos);
  EXPECT_NE(refused("c", {record_leaf("a")}).find("no field 'c'"), std::string::npos);
  EXPECT_NE(refused("a", {number_leaf("a")}).find("no byte string"), std::string::npos);
  // Two leaves of one name.
  const SpecRef in = spec_with({record_leaf("r"), number_leaf("r/x")});
  EXPECT_THROW((void)RecordField("parse", "r").result(*in, kParsed), Error);
}

}  // namespace
}  // namespace penstock
