#pragma once

#include <memory>
#include <string>
#include <vector>

#include "penstock/base/os.h"
#include "penstock/io/file.h"

namespace penstock {

// The implementation of posix_files(), and its parts for callers that have a descriptor.

// A File over an open descriptor. `path`: for error texts.
std::shared_ptr<File> posix_file(std::string path, os::Fd fd);

// Writes to an unnamed file in the same folder until commit(), so a killed process leaves nothing
// behind. On file systems without unnamed files it has a hidden name until then, which no pattern
// of glob() matches, and which a killed process leaves. A symbolic link is followed and its target
// replaced. A device or pipe is written to directly. After commit() the file and its name are on
// the disk. Error kInvalidArgument: a folder, a disk or a socket.
std::unique_ptr<Sink> create_posix_sink(const std::string& path);

// The target of a chain of symbolic links, whether or not it exists. Error kSystem.
std::string resolve_links(std::string path);

// Flushes the names of a folder's files to disk, if the file system can. Error kSystem.
void sync_posix_folder(const std::string& folder, const char* operation);

std::vector<std::string> list_posix_folder(const std::string& folder);

}  // namespace penstock
