#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "numpy_api.h"
#include "penstock/pipeline/element/element.h"

namespace penstock::python {

// The structure of an element's value in user code: the parsed ElementSpec::nest(). Leaves are in
// the order of the spec; their names are for C++ and for messages.
//
//   nest   := ""                           a dict of the leaves by their names, or the only leaf
//                                          itself if its name is ""
//           | node
//   node   := '.'                          the next leaf
//           | '(' node* ')'                a tuple
//           | '[' node* ']'                a list
//           | '{' (string node)* '}'       a dict, its keys in this order
//           | '<' string string (string node)* '>'
//                                          a named tuple: module and name of its class, fields
//   string := bytes in decimal, ':', UTF-8
//
// spec_of() writes one text for each nest: "" if that is sufficient. The name of a leaf is its
// path, "image", "meta/id", "0"; an element that is one leaf has no name.
//
// Immutable except for reference counts. REQUIRED: made, used and released with the GIL held.
struct Nest {
  struct Node {
    char kind = '.';     // '.', '(', '[', '{' or '<'
    uint32_t count = 0;  // of the nodes inside
    uint32_t leaf = 0;
    Owned key;     // of a dict's item
    Owned type;    // of a named tuple, or of a similar one if its class was not imported
    Owned module;  // and the name of its class
    Owned name;
    Owned fields;
  };
  struct LeafForm {
    LeafKind kind;
    DType dtype;
    bool fixed;
    Owned descr;                  // NumPy's dtype; null: NumPy has none for it
    std::vector<npy_intp> shape;  // -1: differs
    Owned axes;                   // of a ragged leaf: the axes that differ, a tuple
    size_t bytes;                 // of one element, if fixed
  };
  SpecRef spec;
  std::vector<Node> nodes;  // each before the nodes inside
  std::vector<LeafForm> leaves;
};
using NestRef = std::shared_ptr<const Nest>;

inline constexpr int kDeepestNest = 64;

// The nest of a spec; parsed once for equal specs. Error kDataLoss: the text is invalid.
NestRef nest_of(const SpecRef& spec);

// "{image: uint8 (28, 28), meta: (int64 (), bytes)}": for messages.
std::string describe(const Nest& nest);

// The text of a nest, piece by piece.
void write_string(std::string& nest, const char* utf8, size_t bytes);

}  // namespace penstock::python
