#include "penstock/base/json.h"

#include <gtest/gtest.h>

#include <string>

#include "penstock/base/error.h"

namespace penstock {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

TEST(Base64, is_as_rfc_4648_has_it) {
  const std::pair<const char*, const char*> vectors[] = {{"", ""},
                                                         {"f", "Zg=="},
                                                         {"fo", "Zm8="},
                                                         {"foo", "Zm9v"},
                                                         {"foob", "Zm9vYg=="},
                                                         {"fooba", "Zm9vYmE="},
                                                         {"foobar", "Zm9vYmFy"},
                                                         {"\xff\xef\xbe", "/+++"}};
  for (const auto& [plain, text] : vectors) {
    EXPECT_EQ(to_base64(bytes_of(plain)), text);
    EXPECT_EQ(from_base64(text), bytes_of(plain));
  }
}

TEST(Base64, what_is_none_is_refused) {
  for (const char* wrong :
       {"Z", "Zg", "Zg=", "====", "=g==", "Zm9v=", "Zm 9", "Zm9*", "Z===", "Zg==Zg=="}) {
    EXPECT_THROW(from_base64(wrong), Error) << wrong;
  }
}

}  // namespace
}  // namespace penstock
