#pragma once

#include <string>
#include <vector>

#include "penstock/io/file.h"

namespace penstock {

// Files, as a user names them: a path, a pattern, or a list of them.
struct Paths {
  std::vector<std::string> patterns;

  Paths(const char* pattern) : patterns{pattern} {}                    // NOLINT
  Paths(std::string pattern) : patterns{std::move(pattern)} {}         // NOLINT
  Paths(std::vector<std::string> each) : patterns(std::move(each)) {}  // NOLINT
  Paths(std::initializer_list<std::string> each) : patterns(each) {}   // NOLINT
};

// The files that are meant. A pattern's files are sorted by name, byte by byte; a list keeps its
// order, and a file that is named twice comes twice. In a pattern `*`, `?` and `[...]` stand for
// what they do in a shell; none stands for "/" or for a dot at the beginning of a name, and indices
// that are kept beside files are none that are meant. A file whose name is the pattern itself is
// meant and nothing else. Any thread.
//
// Error kNotFound for a path that is not there, or a pattern without files; kInvalidArgument for an
// empty list.
std::vector<std::string> glob(FileSystem& files, const Paths& paths);

}  // namespace penstock
