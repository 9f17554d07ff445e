#include "penstock/base/url_text.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr std::string_view kSeparator = "://";
constexpr std::string_view kLeftOut = "...";
constexpr std::string_view kSpaces = " \t\r\n";

bool of_scheme(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' ||
         c == '-' || c == '.' || c == ':';
}

size_t end_of(std::string_view text, std::string_view ends, size_t from) {
  return std::min(text.find_first_of(ends, from), text.size());
}

// Azure's names of a container, before the '@'.
bool names_container(std::string_view scheme) {
  scheme = scheme.substr(scheme.rfind(':') + 1);  // of "simplecache::abfs"
  return scheme == "abfs" || scheme == "abfss" || scheme == "az" || scheme == "adl" ||
         scheme == "wasb" || scheme == "wasbs";
}

// What follows the URL in the text begins in `query`, which has no spaces, at the result: a quote
// like the one in front of the URL, or punctuation at the end. A query that was left out before
// stays as it is.
size_t end_of_query(std::string_view query, char before) {
  if (query.starts_with(kLeftOut)) return kLeftOut.size();
  if (before == '\'' || before == '"' || before == '`') {
    const size_t quote = query.rfind(before);
    if (quote != query.npos) return quote;
  }
  const size_t last = query.find_last_not_of(",.;:)]}>'\"`");
  return last == query.npos ? 0 : last + 1;
}

}  // namespace

std::string without_secrets(std::string_view text) {
  size_t separator = text.find(kSeparator);
  if (separator == text.npos) return std::string(text);
  std::string shown;
  size_t copied = 0;  // of the text
  while (separator != text.npos) {
    size_t scheme = separator;
    while (scheme > copied && of_scheme(text[scheme - 1])) --scheme;
    const size_t host = separator + kSeparator.size();
    const size_t end = end_of(text, "/?# \t\r\n\"'`<>", host);
    shown += text.substr(copied, host - copied);
    copied = host;
    separator = text.find(kSeparator, host);
    if (separator != text.npos && separator + 1 == end) continue;  // "zip://file::https://..."
    const size_t at = text.substr(host, end - host).rfind('@');
    if (at != text.npos && !names_container(text.substr(scheme, host - scheme - 3))) {
      copied = host + at + 1;
    }
    const size_t query = text.find('?', end);
    const size_t space = end_of(text, kSpaces, end);
    if (query < std::min(space, separator)) {
      const char before = scheme > 0 ? text[scheme - 1] : ' ';
      shown += text.substr(copied, query + 1 - copied);
      shown += kLeftOut;
      copied = query + 1 + end_of_query(text.substr(query + 1, space - query - 1), before);
      separator = text.find(kSeparator, space);
    }
  }
  return shown.append(text.substr(copied));
}

}  // namespace penstock
