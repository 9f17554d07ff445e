#include <gtest/gtest.h>

#include <string>

#include "penstock/base/error.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

TEST(UrlTextTest, users_passwords_and_parameters_are_left_out) {
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"no URL: a?b, c@d", "no URL: a?b, c@d"},
      {"/data/x?y.tar", "/data/x?y.tar"},
      {"https://host/a.tar", "https://host/a.tar"},
      {"https://host/a.tar?token=1", "https://host/a.tar?..."},
      {"https://host/a@b/c.tar", "https://host/a@b/c.tar"},
      {"https://bob:pw@host:80/a.tar", "https://host:80/a.tar"},
      {"https://token@host", "https://host"},
      {"https://a@b:c@host/x?q=1&r=2, bytes 0 to 5", "https://host/x?..., bytes 0 to 5"},
      {"no such file: ftp://u:p@h/f?x=1", "no such file: ftp://h/f?..."},
      {"url='http://h/f?x='1'&y=2'. Is it", "url='http://h/f?...'. Is it"},
      {"(see http://h/f?x=1).", "(see http://h/f?...)."},
      {"http://h/f?", "http://h/f?..."},
      {"http://h?x=1", "http://h?..."},
      {"s3://bucket/part-?.tar: none", "s3://bucket/part-?...: none"},
      {"http://h/a?x=http://u:p@h", "http://h/a?..."},
      {"http://u:p@h/a and http://u:p@h/b?c d", "http://h/a and http://h/b?... d"},
      {"simplecache::s3://key:secret@bucket/a?v=1", "simplecache::s3://bucket/a?..."},
      {"zip://in/a.csv::https://u:p@h/a.zip?t=1", "zip://in/a.csv::https://h/a.zip?..."},
      {"zip://a.csv::https://u:p@h/a.zip?t=1", "zip://a.csv::https://h/a.zip?..."},
      {"zip://a.csv::file:///tmp/a.zip", "zip://a.csv::file:///tmp/a.zip"},
      {"abfs://container@account/a?sig=1", "abfs://container@account/a?..."},
      {"://", "://"},
      {"a://?", "a://?..."},
      {"x://@", "x://"},
  };
  for (const auto& [text, shown] : cases) {
    EXPECT_EQ(without_secrets(text), shown);
    EXPECT_EQ(without_secrets(shown), shown);
  }
}

TEST(UrlTextTest, an_error_tells_no_secrets) {
  const Error error(Code::kNotFound, "open", "no such file: https://u:p@host/f?token=1");
  EXPECT_STREQ(error.what(), "open: no such file: https://host/f?...");
}

}  // namespace
}  // namespace penstock
