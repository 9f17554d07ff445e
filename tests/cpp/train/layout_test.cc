#include "penstock/train/layout.h"

#include <gtest/gtest.h>

#include "penstock/base/error.h"

namespace penstock::train {
namespace {

std::string refusal(const std::vector<BlockSpec>& specs) {
  try {
    Layout layout(specs);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Layout, blocks_lie_in_order_at_multiples_of_64_bytes) {
  Layout layout{{"w", {3, 5}}, {"b", {5}}, {"scalar", {}}, {"none", {0, 7}}, {"last", {16}}};
  ASSERT_EQ(layout.blocks().size(), 5u);
  EXPECT_EQ(layout.at("w").offset, 0u);
  EXPECT_EQ(layout.at("w").size, 15u);
  EXPECT_EQ(layout.at("b").offset, 16u);
  EXPECT_EQ(layout.at("scalar").offset, 32u);
  EXPECT_EQ(layout.at("scalar").size, 1u);
  EXPECT_EQ(layout.at("none").offset, 48u);
  EXPECT_EQ(layout.at("none").size, 0u);
  EXPECT_EQ(layout.at("last").offset, 48u);
  EXPECT_EQ(layout.floats(), 64u);
  EXPECT_EQ(layout.bytes(), 256u);
  EXPECT_EQ(layout.parameters(), 37u);
  EXPECT_EQ(layout.find("w2"), nullptr);
  EXPECT_EQ((Layout{{"none", {0}}}.floats()), 16u) << "a slab is never empty";
}

TEST(Layout, its_json_and_hash_are_those_of_the_design) {
  Layout layout{{"w", {784, 10}}, {"b", {10}}};
  EXPECT_EQ(layout.to_json(), R"({"blocks":[{"name":"w","shape":[784,10],"offset":0},)"
                              R"({"name":"b","shape":[10],"offset":7840}],"floats":7856})");
  // FNV-1a, 64 bits, of that text.
  uint64_t expected = 14695981039346656037u;
  for (unsigned char c : layout.to_json()) expected = (expected ^ c) * 1099511628211u;
  EXPECT_EQ(layout.hash(), expected);
}

TEST(Layout, json_leads_back_to_an_equal_layout) {
  Layout layout{{"a \"quoted\" n\u00e4me", {2, 0}}, {"/", {}}, {std::string("nul\0", 4), {7}}};
  Layout again = Layout::from_json(layout.to_json());
  EXPECT_EQ(again, layout);
  EXPECT_EQ(again.hash(), layout.hash());
  EXPECT_EQ(again.blocks()[2].offset, layout.blocks()[2].offset);
}

TEST(Layout, invalid_blocks_are_refused_by_name) {
  EXPECT_NE(refusal({}).find("no blocks"), std::string::npos);
  EXPECT_NE(refusal({{"", {1}}}).find("no name"), std::string::npos);
  EXPECT_NE(refusal({{"a", {1}}, {"a", {2}}}).find("two blocks are named 'a'"), std::string::npos);
  EXPECT_NE(refusal({{"w", {2, -1}}}).find("'w' cannot have the shape (2, -1)"), std::string::npos);
  EXPECT_NE(refusal({{"w", {1l << 40, 1l << 40}}}).find("'w'"), std::string::npos);
  EXPECT_NE(refusal({{"w", {0, 1l << 62, 1l << 62}}}).find("'w'"), std::string::npos);
  EXPECT_NE(refusal({{"w", Shape(33, 1)}}).find("33 axes"), std::string::npos);
  EXPECT_NE(refusal({{"\xff", {1}}}).find("UTF-8"), std::string::npos);
  EXPECT_NE(refusal({{"__metadata__", {1}}}).find("__metadata__"), std::string::npos);
  EXPECT_NE(refusal({{"optimizer/0/w", {1}}}).find("optimizer/0/w"), std::string::npos);
  EXPECT_NE(refusal({{"a", {1l << 56}}, {"b", {1l << 56}}}).find("too large together"),
            std::string::npos);
}

TEST(Layout, a_name_that_is_not_there_is_answered_with_those_that_are) {
  try {
    (void)Layout{{"w", {1}}, {"b", {1}}}.at("v");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kNotFound);
    EXPECT_STREQ(error.what(), "layout: there is no block 'v'; there are 'w', 'b'");
  }
}

TEST(Layout, text_that_is_no_layout_is_refused) {
  const std::string good = Layout{{"w", {2, 3}}}.to_json();
  EXPECT_NO_THROW(Layout::from_json(good));
  for (size_t cut = 0; cut < good.size(); ++cut) {
    EXPECT_THROW(Layout::from_json(good.substr(0, cut)), Error) << cut;
  }
  for (const char* text :
       {"", "[]", "{}", R"({"blocks":{}})", R"({"blocks":[1],"floats":16})",
        R"({"blocks":[{"name":"w"}],"floats":16})",
        R"({"blocks":[{"name":1,"shape":[1],"offset":0}],"floats":16})",
        R"({"blocks":[{"name":"w","shape":[-1],"offset":0}],"floats":16})",
        R"({"blocks":[{"name":"w","shape":[1.5],"offset":0}],"floats":16})",
        R"({"blocks":[{"name":"w","shape":[18446744073709551615],"offset":0}],"floats":16})",
        R"({"blocks":[{"name":"w","shape":[1],"offset":16}],"floats":32})",
        R"({"blocks":[{"name":"w","shape":[1],"offset":0}],"floats":32})",
        R"({"blocks":[{"name":"w","shape":[1],"offset":0}],"floats":16,"more":1})"}) {
    EXPECT_THROW(Layout::from_json(text), Error) << text;
  }
  EXPECT_THROW(Layout::from_json(std::string(1 << 20, '[')), Error);
}

TEST(Layout, a_difference_names_the_first_block_that_differs) {
  Layout a{{"w", {2, 3}}, {"b", {3}}};
  EXPECT_EQ(a.difference(a), "");
  EXPECT_EQ((a.difference(Layout{{"w", {2, 3}}, {"b", {4}}})),
            "block 'b' is (3,) here and (4,) there");
  EXPECT_EQ((a.difference(Layout{{"v", {2, 3}}, {"b", {3}}})), "block 0 is 'w' here and 'v' there");
  EXPECT_EQ((a.difference(Layout{{"w", {2, 3}}})), "block 'b' is only here");
  EXPECT_EQ((Layout{{"w", {2, 3}}}.difference(a)), "block 'b' is only there");
  EXPECT_NE(a, (Layout{{"b", {3}}, {"w", {2, 3}}})) << "order is part of a layout";
  EXPECT_NO_THROW(a.require_equal(Layout(a), "test", "the copy"));
  try {
    a.require_equal(Layout{{"w", {2, 3}}}, "apply", "the gradient");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "apply: the gradient has another layout: block 'b' is only here");
  }
}

}  // namespace
}  // namespace penstock::train
