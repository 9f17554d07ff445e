#include "penstock/io/glob.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "penstock/base/error.h"
#include "penstock/io/remote_files.h"
#include "penstock/io/sidecar_index.h"

namespace penstock {
namespace {

bool is_pattern(std::string_view text) { return text.find_first_of("*?[") != text.npos; }

// Replaces each folder in `found` by the names in it that match `component`.
std::vector<std::string> descend(FileSystem& files, const std::vector<std::string>& found,
                                 const std::string& component) {
  std::vector<std::string> next;
  for (const std::string& folder : found) {
    if (!is_pattern(component)) {
      next.push_back(folder + component);
      continue;
    }
    for (const std::string& name : files.list(folder)) {
      if (fnmatch(component.c_str(), name.c_str(), FNM_PERIOD) == 0) next.push_back(folder + name);
    }
  }
  return next;
}

std::vector<std::string> matches(FileSystem& files, const std::string& pattern) {
  std::vector<std::string> found{""};
  size_t begin = 0;
  while (true) {
    const size_t slash = pattern.find('/', begin);
    found = descend(files, found, pattern.substr(begin, slash - begin));
    if (slash == pattern.npos) break;
    for (std::string& folder : found) folder += '/';
    begin = slash + 1;
  }
  std::erase_if(found, [&](const std::string& path) {
    return path.ends_with(kIndexSuffix) || files.kind(path) != FileSystem::Kind::kFile;
  });
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<std::string> glob(FileSystem& files, const Paths& paths) {
  if (paths.patterns.empty()) throw Error(Code::kInvalidArgument, "glob", "no file is given");
  std::vector<std::string> all;
  for (const std::string& pattern : paths.patterns) {
    if (is_url(pattern)) {
      for (const std::string& url : expand_braces(pattern).patterns) {
        const std::vector<std::string> found = files.match_url(url);
        all.insert(all.end(), found.begin(), found.end());
      }
      continue;
    }
    if (!is_pattern(pattern) || files.kind(pattern) == FileSystem::Kind::kFile) {
      if (files.kind(pattern) == FileSystem::Kind::kNothing) {
        throw Error(Code::kNotFound, "open", "no such file: " + pattern);
      }
      all.push_back(pattern);
      continue;
    }
    std::vector<std::string> found = matches(files, pattern);
    if (found.empty()) throw Error(Code::kNotFound, "glob", "no file matches " + pattern);
    all.insert(all.end(), found.begin(), found.end());
  }
  return all;
}

namespace {

// "007": a number and how many digits are written; nullopt: it is none.
struct Bound {
  int64_t value;
  size_t digits;  // 0: no leading zero
};
std::optional<Bound> bound(std::string_view text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return Bound{value, text[0] == '0' && text.size() > 1 ? text.size() : 0};
}

// What stands in place of the braces around `inside`; empty: they stay.
std::vector<std::string> alternatives(std::string_view inside, size_t most) {
  std::vector<std::string> all;
  if (const size_t dots = inside.find(".."); dots != inside.npos) {
    const auto first = bound(inside.substr(0, dots)), last = bound(inside.substr(dots + 2));
    if (!first || !last) return {};
    const size_t digits = std::max(first->digits, last->digits);
    const int64_t step = first->value <= last->value ? 1 : -1;
    for (int64_t value = first->value; all.size() <= most; value += step) {
      std::string text = std::to_string(value);
      if (text.size() < digits) text.insert(0, digits - text.size(), '0');
      all.push_back(std::move(text));
      if (value == last->value) break;
    }
    return all;
  }
  if (inside.find(',') == inside.npos) return {};
  for (size_t begin = 0; begin <= inside.size();) {
    const size_t end = std::min(inside.find(',', begin), inside.size());
    all.emplace_back(inside.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

constexpr size_t kMostExpanded = 1'000'000;

void expand(const std::string& pattern, size_t from, std::vector<std::string>& all) {
  for (size_t open = from; (open = pattern.find('{', open)) != pattern.npos; ++open) {
    const size_t close = pattern.find_first_of("{}", open + 1);
    if (close == pattern.npos || pattern[close] == '{') continue;
    const auto each =
        alternatives(std::string_view(pattern).substr(open + 1, close - open - 1), kMostExpanded);
    if (each.empty()) continue;
    for (const std::string& part : each) {
      expand(pattern.substr(0, open) + part + pattern.substr(close + 1), open + part.size(), all);
    }
    return;
  }
  if (all.size() == kMostExpanded) {
    throw Error(Code::kInvalidArgument, "glob", pattern + " and more: too many paths");
  }
  all.push_back(pattern);
}

}  // namespace

Paths expand_braces(const Paths& paths) {
  std::vector<std::string> all;
  for (const std::string& pattern : paths.patterns) expand(pattern, 0, all);
  return all;
}

}  // namespace penstock
