#pragma once

#include <string>
#include <vector>

#include "penstock/io/file.h"

namespace penstock {

// Files as a user names them: a path, a pattern, or a list of them.
struct Paths {
  std::vector<std::string> patterns;

  Paths(const char* pattern) : patterns{pattern} {}                    // NOLINT
  Paths(std::string pattern) : patterns{std::move(pattern)} {}         // NOLINT
  Paths(std::vector<std::string> each) : patterns(std::move(each)) {}  // NOLINT
  Paths(std::initializer_list<std::string> each) : patterns(each) {}   // NOLINT
};

// The files that `paths` names. The matches of a pattern are sorted bytewise by name; a list keeps
// its order, and a file named twice is listed twice. In a pattern `*`, `?` and `[...]` have the
// meaning of a shell. None of them matches "/" or a dot at the beginning of a name, and index files
// (record_index.h) never match. If a file has the pattern as its exact name, only that file is
// meant. The braces of a URL are expanded, and its pattern is matched by FileSystem::match_url().
// Any thread.
//
// `keep_folders`: what the folders of a pattern list is stored beside the folder in front of its
// first wildcard, and only folders that changed are listed again (folder_index.h).
//
// Error kNotFound: a path does not exist, or a pattern has no match; kInvalidArgument: an empty
// list.
std::vector<std::string> glob(FileSystem& files, const Paths& paths, bool keep_folders = false);

// The same paths with their braces expanded, as a shell does: `{a,b}` into each of its parts,
// `{000..127}` into numbers (with as many digits as written, if one begins with 0) up or down.
// Other braces stay. Error kInvalidArgument: more than a million paths.
Paths expand_braces(const Paths& paths);

}  // namespace penstock
