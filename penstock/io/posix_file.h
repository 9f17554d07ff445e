#pragma once

#include <memory>
#include <string>

#include "penstock/base/os.h"
#include "penstock/io/file.h"

namespace penstock {

// A file of the machine that is open already. `path`: what errors call it.
std::shared_ptr<File> posix_file(std::string path, os::Fd fd);

}  // namespace penstock
