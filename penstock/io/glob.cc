#include "penstock/io/glob.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "penstock/base/error.h"
#include "penstock/io/folder_index.h"
#include "penstock/io/record_index.h"
#include "penstock/io/remote_files.h"

namespace penstock {
namespace {

bool is_pattern(std::string_view text) { return text.find_first_of("*?[") != text.npos; }

// A path that a pattern leads to. The kind of a name that was not listed is unknown.
struct Found {
  std::string path;
  std::optional<FileSystem::Kind> kind;
};

// Replaces each folder in `found` by the names in it that match `component`.
std::vector<Found> descend(FileSystem& files, const std::vector<Found>& found,
                           const std::string& component) {
  std::vector<Found> next;
  for (const Found& folder : found) {
    if (!is_pattern(component)) {
      next.push_back({folder.path + component, std::nullopt});
      continue;
    }
    for (FileSystem::Entry& entry : files.entries(folder.path)) {
      if (fnmatch(component.c_str(), entry.name.c_str(), FNM_PERIOD) != 0) continue;
      next.push_back({folder.path + entry.name, entry.kind});
    }
  }
  return next;
}

std::vector<std::string> matches(FileSystem& files, const std::string& pattern) {
  std::vector<Found> found{{"", std::nullopt}};
  size_t begin = 0;
  while (true) {
    const size_t slash = pattern.find('/', begin);
    found = descend(files, found, pattern.substr(begin, slash - begin));
    if (slash == pattern.npos) break;
    std::erase_if(found, [](const Found& each) { return each.kind == FileSystem::Kind::kFile; });
    for (Found& folder : found) folder.path += '/';
    begin = slash + 1;
  }
  std::vector<std::string> paths;
  for (Found& each : found) {
    if (each.path.ends_with(kIndexSuffix)) continue;
    if ((each.kind ? *each.kind : files.kind(each.path)) != FileSystem::Kind::kFile) continue;
    paths.push_back(std::move(each.path));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// The same, through the index of the folder in front of the first wildcard.
std::vector<std::string> kept_matches(FileSystem& files, const std::string& pattern) {
  const size_t slash = pattern.rfind('/', pattern.find_first_of("*?["));
  FolderIndex index(files, slash == pattern.npos ? "" : pattern.substr(0, slash + 1));
  std::vector<std::string> found = matches(index, pattern);
  index.store();
  return found;
}

}  // namespace

std::vector<std::string> glob(FileSystem& files, const Paths& paths, bool keep_folders) {
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
    std::vector<std::string> found =
        keep_folders ? kept_matches(files, pattern) : matches(files, pattern);
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

constexpr size_t kMaxExpanded = 1'000'000;

void expand(const std::string& pattern, size_t from, std::vector<std::string>& all) {
  for (size_t open = from; (open = pattern.find('{', open)) != pattern.npos; ++open) {
    const size_t close = pattern.find_first_of("{}", open + 1);
    if (close == pattern.npos || pattern[close] == '{') continue;
    const auto each =
        alternatives(std::string_view(pattern).substr(open + 1, close - open - 1), kMaxExpanded);
    if (each.empty()) continue;
    for (const std::string& part : each) {
      expand(pattern.substr(0, open) + part + pattern.substr(close + 1), open + part.size(), all);
    }
    return;
  }
  if (all.size() == kMaxExpanded) {
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
