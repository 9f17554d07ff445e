#include "listed_tickets.h"

#include <cstring>
#include <utility>

#include "penstock/base/error.h"

namespace nb = nanobind;

namespace penstock::python {

Tickets::Described ListedTickets::describe(const Position& at, BatchEntry& entry) {
  if (error_) return Described::kEnd;
  if (!iterator_ || epoch_ != at.epoch || next_ > at.step) {
    Owned epoch(PyLong_FromUnsignedLongLong(at.epoch));
    Owned iterable(PyObject_CallOneArg(begin_.ptr(), epoch.get()));
    iterator_ = Owned(iterable ? PyObject_GetIter(iterable.get()) : nullptr);
    epoch_ = at.epoch;
    next_ = 0;
  }
  Owned list;
  while (iterator_ && next_ <= at.step) {
    list = Owned(PyIter_Next(iterator_.get()));
    if (!list) break;
    ++next_;
  }
  PyObject* encode = list ? helper("penstock.base.interop", "encode_indices") : nullptr;
  Owned coded(encode == nullptr ? nullptr : PyObject_CallOneArg(encode, list.get()));
  if (!coded) {
    error_ = exception_in_flight();
    return Described::kEnd;
  }
  long rows = PyLong_AsLong(PyTuple_GET_ITEM(coded.get(), 0));
  long kind = PyLong_AsLong(PyTuple_GET_ITEM(coded.get(), 1));
  PyObject* bytes = PyTuple_GET_ITEM(coded.get(), 2);
  uint64_t header[2] = {static_cast<uint64_t>(kind),
                        static_cast<uint64_t>(PyBytes_GET_SIZE(bytes))};
  auto* space = static_cast<std::byte*>(arena_.allocate(sizeof(header) + header[1]));
  if (space == nullptr) throw Error(Code::kOutOfMemory, "Loader", "no space for a list of indices");
  std::memcpy(space, header, sizeof(header));
  std::memcpy(space + sizeof(header), PyBytes_AS_STRING(bytes), header[1]);
  entry.input_offset = arena_.region()->offset_of(space);
  entry.rows = static_cast<uint32_t>(rows);
  return Described::kPosted;
}

}  // namespace penstock::python
