#include "penstock/io/arrow.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "dataset.h"
#include "gil.h"
#include "numpy_api.h"
#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/pipeline/sources/arrow_leaf.h"
#include "penstock/pipeline/sources/sources.h"
#include "references.h"
#include "row_groups.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using Columns = std::vector<std::string>;

void refuse_types(const ArrowField& schema) {
  SpecRef spec;
  arrow_leaves(schema, spec);
}

template <class T>
T* in_capsule(nb::handle capsule, const char* name) {
  void* found = PyCapsule_GetPointer(capsule.ptr(), name);
  if (found == nullptr) throw nb::python_error();
  return static_cast<T*>(found);
}

// Reading may take long, and may call Python.
ArrowTable from_stream(nb::object capsule, Columns columns) {
  auto* stream = in_capsule<ArrowArrayStream>(capsule, "arrow_array_stream");
  WithoutGil unlocked;
  return import_arrow(stream, columns, &refuse_types);
}

ArrowTable from_array(nb::object schema, nb::object array, Columns columns) {
  auto* of = in_capsule<ArrowSchema>(schema, "arrow_schema");
  auto* data = in_capsule<ArrowArray>(array, "arrow_array");
  WithoutGil unlocked;
  return import_arrow(of, data, columns, &refuse_types);
}

// (name, kind, dtype, shape) of each leaf.
nb::list leaves_of(const ArrowTable& table) {
  static constexpr const char* kKinds[] = {"array", "ragged", "bytes", "str"};
  SpecRef spec;
  arrow_leaves(table.schema, spec);
  nb::list made;
  for (const Leaf& leaf : spec->leaves()) {
    made.append(nb::make_tuple(leaf.name, kKinds[static_cast<size_t>(leaf.kind)],
                               std::string(name_of(leaf.dtype)), nb::cast(leaf.shape)));
  }
  return made;
}

// ---- parts -------------------------------------------------------------------------------------

nb::tuple field_parts(const ArrowField& field) {
  nb::list children, dictionary;
  for (const ArrowField& child : field.children) children.append(field_parts(child));
  for (const ArrowField& values : field.dictionary) dictionary.append(field_parts(values));
  return nb::make_tuple(
      field.name, field.format, nb::bytes(field.extension.data(), field.extension.size()),
      nb::bytes(field.extension_data.data(), field.extension_data.size()), children, dictionary);
}

nb::tuple column_parts(const ArrowColumn& column) {
  nb::list buffers, children, dictionary;
  for (size_t i = 0; i < column.buffers.size(); ++i) {
    const ArrowColumn::Buffer& buffer = column.buffers[i];
    const bool read = buffer.bytes > 0 && (i > 0 || column.nulls > 0);
    buffers.append(
        read ? nb::object(nb::make_tuple(reinterpret_cast<uintptr_t>(buffer.data), buffer.bytes))
             : nb::none());
  }
  for (const ArrowColumn& child : column.children) children.append(column_parts(child));
  for (const ArrowColumn& values : column.dictionary) dictionary.append(column_parts(values));
  return nb::make_tuple(column.length, column.offset, column.nulls, buffers, children, dictionary);
}

// (schema, chunks); a buffer is (address, bytes), or None.
nb::tuple parts_of(const ArrowTable& table) {
  nb::list chunks;
  for (const ArrowColumn& chunk : table.chunks) chunks.append(column_parts(chunk));
  return nb::make_tuple(field_parts(table.schema), chunks);
}

// A read-only array over memory of the table, which keeps the table.
nb::object memory_of(nb::object table, uintptr_t address, npy_intp bytes) {
  PyObject* made =
      PyArray_New(&PyArray_Type, 1, &bytes, NPY_UINT8, nullptr, reinterpret_cast<void*>(address), 0,
                  NPY_ARRAY_C_CONTIGUOUS, nullptr);
  if (made == nullptr) throw nb::python_error();
  nb::object array = nb::steal(made);
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(made), table.release().ptr()) != 0) {
    throw nb::python_error();
  }
  return array;
}

std::string text_of(nb::handle bytes) {
  const auto text = nb::cast<nb::bytes>(bytes);
  return {text.c_str(), text.size()};
}

ArrowField field_from(nb::handle parts) {
  ArrowField field;
  field.name = nb::cast<std::string>(parts[0]);
  field.format = nb::cast<std::string>(parts[1]);
  field.extension = text_of(parts[2]);
  field.extension_data = text_of(parts[3]);
  for (nb::handle child : parts[4]) field.children.push_back(field_from(child));
  for (nb::handle values : parts[5]) field.dictionary.push_back(field_from(values));
  return field;
}

ArrowColumn column_from(nb::handle parts, nb::handle memory) {
  ArrowColumn column;
  column.length = nb::cast<int64_t>(parts[0]);
  column.offset = nb::cast<int64_t>(parts[1]);
  column.nulls = nb::cast<int64_t>(parts[2]);
  for (nb::handle buffer : parts[3]) {
    if (buffer.is_none()) {
      column.buffers.emplace_back();
      continue;
    }
    const nb::object object = memory[buffer[0]];
    auto* array = reinterpret_cast<PyArrayObject*>(object.ptr());
    const auto offset = nb::cast<uint64_t>(buffer[1]), bytes = nb::cast<uint64_t>(buffer[2]);
    const auto size = static_cast<uint64_t>(PyArray_NBYTES(array));
    if (offset > size || bytes > size - offset) {
      throw Error(Code::kDataLoss, "arrow", "a file of the data was truncated");
    }
    column.buffers.push_back({static_cast<std::byte*>(PyArray_DATA(array)) + offset, bytes});
  }
  for (nb::handle child : parts[4]) column.children.push_back(column_from(child, memory));
  for (nb::handle values : parts[5]) column.dictionary.push_back(column_from(values, memory));
  return column;
}

// The table of parts_of(), with buffers as (number, offset, bytes) in the arrays `memory`.
ArrowTable from_parts(nb::handle schema, nb::handle chunks, nb::list memory) {
  ArrowTable table;
  table.schema = field_from(schema);
  for (nb::handle chunk : chunks) {
    table.chunks.push_back(column_from(chunk, memory));
    check_arrow(table.schema, table.chunks.back(), "");
  }
  table.owners.push_back(share(memory.ptr()));
  return table;
}

// (leaf, dtype, shape, bytes) each.
Example fills_in(nb::list fills) {
  Example made;
  for (nb::handle item : fills) {
    Tensor value = Tensor::make(dtype_named(nb::cast<std::string>(item[1])),
                                nb::cast<std::vector<int64_t>>(item[2]));
    const auto bytes = nb::cast<nb::bytes>(item[3]);
    if (bytes.size() != value.nbytes()) {
      throw Error(Code::kInternal, "arrow", "a value for nulls of another size");
    }
    if (bytes.size() > 0) std::memcpy(value.data(), bytes.c_str(), bytes.size());
    made.set(nb::cast<std::string>(item[0]), std::move(value));
  }
  return made;
}

// rows: an array of int64, or None.
Dataset source(nb::object table, nb::list fills, nb::object rows) {
  ArrowOptions options;
  options.fills = fills_in(std::move(fills));
  if (!rows.is_none()) {
    auto* array = reinterpret_cast<PyArrayObject*>(rows.ptr());
    options.rows = Tensor::view(DType::kInt64, {PyArray_SIZE(array)}, PyArray_DATA(array),
                                share(rows.ptr()), {}, true);
  }
  // The Python object owns the data: an engine thread never calls a release function, which may
  // need the GIL.
  std::shared_ptr<const ArrowTable> data(share(table.ptr()), nb::cast<const ArrowTable*>(table));
  return Dataset(nodes::arrow(std::move(data), options));
}

// `schema`: a table without rows. `groups`: (file, number in the file, rows, bytes) each.
Dataset groups_source(nb::object decoder, const ArrowTable& schema,
                      const std::vector<std::filesystem::path>& files, nb::list groups,
                      nb::list fills, uint64_t cache_bytes, std::string title) {
  RowGroups of;
  of.decoder = share(decoder.ptr());
  arrow_leaves(schema.schema, of.spec);
  of.fills = arrow_fills(fills_in(std::move(fills)), *of.spec);
  for (const auto& file : files) of.files.push_back(escape_invalid_utf8(file.string()));
  uint64_t end = 0, first_row = 0;
  for (nb::handle item : groups) {
    RowGroups::Group group;
    group.file = nb::cast<uint32_t>(item[0]);
    group.number = nb::cast<uint32_t>(item[1]);
    group.rows = nb::cast<uint64_t>(item[2]);
    group.bytes = nb::cast<uint64_t>(item[3]);
    if (group.number == 0) first_row = 0;
    group.first_row = first_row;
    first_row += group.rows;
    group.end = end += group.rows;
    of.groups.push_back(group);
  }
  of.cache_bytes = cache_bytes;
  return Dataset(row_groups(std::move(of), std::move(title)));
}

}  // namespace

void bind_arrow(nb::module_& m) {
  nb::class_<ArrowTable>(m, "ArrowTable", "Arrow data that a Dataset reads. Internal.")
      .def_static("from_stream", &from_stream)
      .def_static("from_array", &from_array)
      .def_static("from_parts", &from_parts)
      .def_prop_ro("rows", &ArrowTable::rows)
      .def("leaves", &leaves_of)
      .def("parts", &parts_of)
      .def("memory", [](nb::object table, uintptr_t address,
                        npy_intp bytes) { return memory_of(std::move(table), address, bytes); })
      .def(
          "__reduce__",
          [](nb::object table) {
            return nb::module_::import_("penstock.dataset.arrow_memory").attr("reduce")(table);
          },
          nb::sig("def __reduce__(self) -> tuple"));
}

void bind_arrow_source(nb::class_<Dataset>& dataset) {
  dataset.def_static("arrow", &source, nb::arg("table"), nb::arg("fills"), nb::arg("rows").none())
      .def_static("row_groups", &groups_source);
}

}  // namespace penstock::python
