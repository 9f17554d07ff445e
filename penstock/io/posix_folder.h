#pragma once

#include <memory>
#include <string>
#include <vector>

#include "penstock/io/file.h"

namespace penstock {

// What posix_files() does with folders: names appear in them and are listed.

// Writes beside `path` under a hidden name that no pattern of glob() finds, and renames. A process
// that is killed leaves that hidden file behind.
std::unique_ptr<Sink> posix_sink(const std::string& path);

std::vector<std::string> posix_list(const std::string& folder);

}  // namespace penstock
