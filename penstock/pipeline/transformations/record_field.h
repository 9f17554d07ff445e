#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/pipeline/element/element.h"
#include "penstock/pipeline/element/given.h"

namespace penstock {

// The leaf of an element that is parsed, and in whose place what was parsed stands: of a byte
// string in a dict or tuple a dict of its features, whose leaves have its name and a '/' in front.
// An element that is nothing but the byte string is replaced as a whole. Immutable.
class RecordField {
 public:
  // `operation`: in errors. `field`: the leaf's name; empty: the only byte string that there is.
  // Error kInvalidArgument: it is not UTF-8.
  RecordField(const char* operation, std::string field)
      : operation_(operation), field_(name_of_user(std::move(field), operation)) {}

  // "parse_example", "parse_example(record)".
  std::string title() const;
  // Error kInvalidArgument: there is no such leaf, it is no byte string, or there is not just one.
  size_t leaf(const ElementSpec& in) const;
  // Error as of leaf(), and two leaves of one name.
  SpecRef result(const ElementSpec& in, const SpecRef& parsed) const;
  // As Op::passes: all other leaves are.
  std::vector<std::optional<size_t>> passes(const ElementSpec& in, size_t parsed_leaves) const;

 private:
  const char* operation_;
  std::string field_;
};

}  // namespace penstock
