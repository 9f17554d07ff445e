#include "losses.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

namespace nb = nanobind;

namespace penstock::python {

Owned list_of(const std::vector<Loss>& losses) {
  Owned list(PyList_New(0));
  for (const Loss& loss : losses) {
    if (!list) return list;
    Owned reason(PyUnicode_DecodeUTF8(
        loss.reason.data(), static_cast<Py_ssize_t>(loss.reason.size()), "backslashreplace"));
    Owned item(reason
                   ? Py_BuildValue("(IKOOO)", loss.row, static_cast<unsigned long long>(loss.index),
                                   reason.get(), loss.replaced ? Py_True : Py_False,
                                   loss.gap ? Py_True : Py_False)
                   : nullptr);
    if (!item || PyList_Append(list.get(), item.get()) != 0) return {};
  }
  return list;
}

std::vector<Loss> losses_in(PyObject* list) {
  std::vector<Loss> losses;
  if (list == Py_None) return losses;
  for (nb::handle item : nb::borrow(list)) {
    Loss loss;
    loss.row = nb::cast<uint32_t>(item[0]);
    loss.index = nb::cast<uint64_t>(item[1]);
    loss.reason = nb::cast<std::string>(item[2]);
    loss.replaced = nb::cast<bool>(item[3]);
    loss.gap = nb::cast<bool>(item[4]);
    losses.push_back(std::move(loss));
  }
  return losses;
}

}  // namespace penstock::python
