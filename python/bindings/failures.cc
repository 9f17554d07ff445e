#include "failures.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

namespace nb = nanobind;

namespace penstock::python {

Owned failed_result(PyObject* exception, const FailurePlace& place) {
  return Owned(Py_BuildValue("(OIKIL)", exception, place.row,
                             static_cast<unsigned long long>(place.index), place.worker,
                             static_cast<long long>(place.last)));
}

Owned packed_failed_result(PyObject* exception, const Ticket& ticket, const FailurePlace& place) {
  Owned packed = packed_exception(exception, ticket, place);
  return packed ? failed_result(packed.get(), place) : std::move(packed);
}

Owned packed_exception(PyObject* exception, const Ticket& ticket, const FailurePlace& place) {
  PyObject* pack = helper("penstock.errors", "pack_exception");
  if (pack == nullptr) return {};
  std::string name = "worker " + std::to_string(place.worker);
  if (!place.stage.empty()) name += ", " + place.stage;
  return Owned(PyObject_CallFunction(
      pack, "OsKKL", exception, name.c_str(), static_cast<unsigned long long>(ticket.epoch),
      static_cast<unsigned long long>(place.index), static_cast<long long>(place.last)));
}

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
