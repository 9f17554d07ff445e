#include "ticket_indices.h"

#include <cstring>
#include <utility>

#include "python_op.h"

namespace penstock::python {

Owned Indices::at(size_t row) const {
  if (objects) return Owned::borrow(PyList_GET_ITEM(objects.get(), static_cast<Py_ssize_t>(row)));
  return Owned(PyLong_FromUnsignedLongLong(numbers[row]));
}

bool read_listed(const std::byte* listed, uint32_t begin, uint32_t end, Indices& out) {
  uint64_t header[2];  // 0: numbers, 1: a pickled list; bytes
  std::memcpy(header, listed, sizeof(header));
  listed += sizeof(header);
  if (header[0] == 0) {
    const auto* numbers = reinterpret_cast<const uint64_t*>(listed);
    out.numbers.assign(numbers + begin, numbers + end);
    return true;
  }
  PyObject* load = helper("penstock.base.interop", "load_class");
  Owned bytes(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(listed),
                                        static_cast<Py_ssize_t>(header[1])));
  Owned all(load == nullptr || !bytes ? nullptr : PyObject_CallOneArg(load, bytes.get()));
  if (!all) return false;
  out.objects = Owned(PyList_GetSlice(all.get(), begin, end));
  return static_cast<bool>(out.objects);
}

void TicketIndices::set_length(uint64_t length) {
  Order::Options options = order_.options();
  options.length = length;
  order_ = Order(options);
}

bool TicketIndices::load(Slot& slot) {
  const Ticket& ticket = slot.ticket();
  indices_.objects = Owned();
  if (const std::byte* listed = slot.input()) {
    return read_listed(listed, ticket.begin, ticket.end, indices_);
  }
  indices_.numbers.resize(ticket.end - ticket.begin);
  order_.indices(ticket.epoch, ticket.base, ticket.step, ticket.begin, indices_.numbers);
  return true;
}

uint64_t TicketIndices::key_in(const Indices& indices, uint32_t at, const Ticket& ticket,
                               uint32_t row) const {
  if (!indices.objects) return indices.numbers[at];
  PyObject* item = PyList_GET_ITEM(indices.objects.get(), at);
  // Neither raises nor clears an exception, because the user's exception may be set.
  if (PyLong_CheckExact(item)) return PyLong_AsUnsignedLongLongMask(item);
  return order_.position(ticket.base, ticket.step, row);
}

std::optional<TicketIndices::Replacements> TicketIndices::replacements(Slot& slot,
                                                                       uint32_t row) const {
  const Ticket& ticket = slot.ticket();
  Replacements made(*this, ticket, row);
  made.of_batch_ = slot.input() != nullptr && (indices_.objects || !covers_);
  made.size_ = order_.options().length;
  if (made.of_batch_) {
    if (!read_listed(slot.input(), 0, ticket.rows, made.batch_)) return std::nullopt;
    made.size_ = ticket.rows - 1;
  }
  return made;
}

// Of the batch, the next row's sample is the first.
Owned TicketIndices::Replacements::at(uint32_t n, uint64_t& key) const {
  const uint32_t own = ticket_.begin + row_, at = (own + 1 + n) % ticket_.rows;
  if (batch_.objects) {
    PyObject* list = batch_.objects.get();
    PyObject* index = PyList_GET_ITEM(list, at);
    const int same = PyObject_RichCompareBool(index, PyList_GET_ITEM(list, own), Py_EQ);
    if (same < 0) clear_error();  // arrays have no truth value: they count as different
    if (same > 0 || PyErr_Occurred() != nullptr) return {};
    key = indices_.key_in(batch_, at, ticket_, at);
    return Owned::borrow(index);
  }
  const Order& order = indices_.order_;
  key = of_batch_
            ? batch_.numbers[at]
            : order.replacement(ticket_.epoch, order.position(ticket_.base, ticket_.step, own), n);
  if (key == indices_.key(ticket_, row_)) return {};
  return Owned(PyLong_FromUnsignedLongLong(key));
}

}  // namespace penstock::python
