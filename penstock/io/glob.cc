#include "penstock/io/glob.h"

#include <fnmatch.h>

#include <algorithm>
#include <string_view>

#include "penstock/base/error.h"
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

}  // namespace penstock
