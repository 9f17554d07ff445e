#include "generator_items.h"

#include <utility>

namespace penstock::python {

GeneratorItems::GeneratorItems(const SampleSettings& settings, PyObject* open, SampleCalls& calls,
                               SampleLosses& losses)
    : settings_(settings),
      open_(Owned::borrow(open)),
      calls_(calls),
      losses_(losses),
      streams_(settings.streams) {}

// Each stream has its own random numbers: its number is in the upper half of the key.
void GeneratorItems::set_key(Slot& slot, uint64_t ordinal) {
  calls_.set_key(slot, ordinal | static_cast<uint64_t>(slot.ticket().stream) << 48);
}

// Null without an exception: the generator has ended.
Owned GeneratorItems::next(Slot& slot, Stream& stream, uint64_t ordinal) {
  set_key(slot, ordinal);
  return calls_.once(WorkerTimes::kGet, 1, [&] { return PyIter_Next(stream.iterator.get()); });
}

// Opens the stream anew, and replays up to the position: items that were delivered before are made
// again and dropped.
std::optional<FailurePlace> GeneratorItems::open(Slot& slot, Stream& stream, uint64_t first) {
  const Ticket& ticket = slot.ticket();
  stream.iterator = Owned();
  Owned number(PyLong_FromUnsignedLong(ticket.stream));
  set_key(slot, 0);
  Owned iterable(PyObject_CallFunction(open_.get(), "OK", number.get(),
                                       static_cast<unsigned long long>(ticket.epoch)));
  if (iterable) stream.iterator = Owned(PyObject_GetIter(iterable.get()));
  if (!stream.iterator) return FailurePlace{.index = first};
  stream.epoch = ticket.epoch;
  stream.ended = false;
  for (uint64_t at = 0; at < first && !stream.ended; ++at) {
    slot.restart_clock();  // the timeout applies to each item
    stream.ended = !next(slot, stream, at);
    if (PyErr_Occurred() == nullptr) continue;
    if (!losses_.passes_over()) return FailurePlace{.index = at};
    PyErr_Clear();  // was already counted as a loss, before this position
  }
  return std::nullopt;
}

GeneratorItems::Pulled GeneratorItems::pull(Slot& slot, const Use& use) {
  const Ticket& ticket = slot.ticket();
  Stream& stream = streams_[ticket.stream];
  const uint32_t rows = settings_.samples ? ticket.rows : 1;
  const uint64_t at = (ticket.base + ticket.step) / settings_.streams;
  Pulled pulled;
  pulled.first = at * rows;
  if (!stream.iterator || stream.epoch != ticket.epoch || stream.next != at) {
    pulled.failed = open(slot, stream, pulled.first);
    if (pulled.failed) return pulled;
  }
  stream.next = at + 1;
  slot.restart_clock();
  for (uint32_t row = 0; row < rows && !stream.ended; ++row) {
    const uint64_t ordinal = pulled.first + row;
    slot.progress({row});
    Owned item;
    if (SampleCalls::is_poisoned(slot, {row})) {
      SampleCalls::set_poisoned();
    } else {
      item = next(slot, stream, ordinal);
    }
    if (item && use(item.get(), pulled.count, ordinal)) {
      ++pulled.count;
      pulled.last = row;
      continue;
    }
    if (!item) stream.ended = true;  // also a generator that raised has ended
    if (PyErr_Occurred() == nullptr) break;
    if (!losses_.note(item ? pulled.count : row, ordinal)) {
      pulled.failed = FailurePlace{.row = row, .index = ordinal};
      return pulled;
    }
  }
  pulled.ended = stream.ended;
  return pulled;
}

}  // namespace penstock::python
