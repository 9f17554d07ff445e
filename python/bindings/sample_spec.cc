#include "sample_spec.h"

namespace penstock::python {

namespace {

void describe(SpecReader& in, std::string& out) {
  char kind = in.get<char>();
  auto several = [&](const char* open, const char* close) {
    out += open;
    uint32_t n = in.get<uint32_t>();
    for (uint32_t i = 0; i < n && in.ok(); ++i) {
      if (i != 0) out += ", ";
      describe(in, out);
    }
    out += close;
  };
  switch (kind) {
    case 'x':
      in.get_bytes();
      describe(in, out);
      break;
    case 'a': {
      Owned dtype = in.dtype();
      Owned name(dtype ? PyObject_Str(dtype.get()) : nullptr);
      const char* text = name ? PyUnicode_AsUTF8(name.get()) : nullptr;
      out += text != nullptr ? text : "?";
      Shape shape = in.shape();
      out += " of shape (";
      for (size_t d = 0; d < shape.size(); ++d) {
        if (d != 0) out += ", ";
        out += std::to_string(shape[d]);
      }
      out += shape.size() == 1 ? ",)" : ")";
      break;
    }
    case 'M':
      in.get_bytes();
      [[fallthrough]];
    case 'T':
      several("(", ")");
      break;
    case 'L':
      several("[", "]");
      break;
    case 'D': {
      out += '{';
      uint32_t n = in.get<uint32_t>();
      for (uint32_t i = 0; i < n && in.ok(); ++i) {
        if (i != 0) out += ", ";
        Owned key = in.load_class();
        Owned name(key ? PyObject_Repr(key.get()) : nullptr);
        const char* text = name ? PyUnicode_AsUTF8(name.get()) : nullptr;
        out += text != nullptr ? text : "?";
        out += ": ";
        describe(in, out);
      }
      out += '}';
      break;
    }
    case 'o':
      out += "object";
      break;
    default:
      out += '?';
  }
}

}  // namespace

std::string describe(std::span<const std::byte> spec) {
  SpecReader in(spec);
  std::string out;
  describe(in, out);
  return out;
}

}  // namespace penstock::python
