#pragma once

#include "penstock/base/os.h"

// Of what os.h is about: files that have no name until they are complete.
namespace penstock::os {

// A new file in this folder, to be written, that has no name and dies with its last descriptor,
// however that comes about. Closed on exec. No descriptor: this folder, or this machine, has no
// such files. Any thread. Never throws.
Fd unnamed_file(const char* folder);

// Gives it a name. False, and errno: it has none; EEXIST if something else has it. Any thread.
// Never throws.
bool name_file(int fd, const char* path);

}  // namespace penstock::os
