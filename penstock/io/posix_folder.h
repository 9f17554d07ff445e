#pragma once

#include <memory>
#include <string>
#include <vector>

#include "penstock/io/file.h"

namespace penstock {

// What posix_files() does with folders: names appear in them and are listed.

// Writes to a file in the same folder that has no name until it is complete: a process that is
// killed leaves nothing behind. Where there are no such files, it has a hidden name until then,
// which no pattern of glob() finds, and which is what a killed process leaves. What a symbolic link
// leads to is replaced, and not the link. A device or pipe is written to at once. Error
// kInvalidArgument: a folder, a disk or a socket.
std::unique_ptr<Sink> posix_sink(const std::string& path);

// Where a chain of symbolic links leads to, whether there is a file or not. Error kSystem.
std::string without_links(std::string path);

std::vector<std::string> posix_list(const std::string& folder);

}  // namespace penstock
