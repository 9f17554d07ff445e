#pragma once

#include <cstdio>
#include <cstdlib>

// A condition that must hold for every input of a fuzz target; also in builds without assertions.
#define REQUIRE(what)                                                           \
  do {                                                                          \
    if (!(what)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #what); \
      std::abort();                                                             \
    }                                                                           \
  } while (false)
