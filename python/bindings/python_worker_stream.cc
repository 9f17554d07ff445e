// PythonWorker for streams: keeps the position in a generator.
#include <algorithm>
#include <utility>

#include "gil.h"
#include "penstock/base/error.h"
#include "python_worker.h"
#include "random.h"

namespace penstock::python {

void PythonWorker::run_stream(const Ticket& ticket, Slot& slot) {
  Stream& stream = streams_[ticket.stream];
  uint32_t rows = settings_.samples ? ticket.rows : 1;
  uint64_t ordinal = (ticket.base + ticket.step) / settings_.streams;
  auto key = [&](uint64_t at) {
    // Each stream has its own random numbers: its number is in the upper half of the key.
    uint64_t index = at | static_cast<uint64_t>(ticket.stream) << 48;
    set_ticket_key(settings_.order.seed, ticket.epoch, index);
    if (settings_.rekey_globals) rekey_globals(settings_.order.seed, ticket.epoch, index);
  };
  auto next = [&](uint64_t at) {
    key(at);
    StageClock::Piece piece(clock_, gets_, kGet);
    clock_.count(kGet, 1);
    StayWhenEnded stay;
    Owned item(PyIter_Next(stream.iterator.get()));
    stay.returned();
    return item;
  };
  if (!stream.iterator || stream.epoch != ticket.epoch || stream.next != ordinal) {
    stream.iterator = Owned();
    Owned number(PyLong_FromUnsignedLong(ticket.stream));
    key(0);
    Owned iterable(PyObject_CallFunction(source_.get(), "OK", number.get(),
                                         static_cast<unsigned long long>(ticket.epoch)));
    if (iterable) stream.iterator = Owned(PyObject_GetIter(iterable.get()));
    if (!stream.iterator) return fail(ticket, slot, 0, ordinal * rows);
    stream.epoch = ticket.epoch;
    stream.ended = false;
    // Replay up to the position: items that were delivered before are made again and dropped.
    for (uint64_t at = 0; at < ordinal * rows && !stream.ended; ++at) {
      slot.restart_clock();  // the timeout applies to each item
      stream.ended = !next(at);
      if (PyErr_Occurred() == nullptr) continue;
      if (!passes_over()) return fail(ticket, slot, 0, at);
      PyErr_Clear();  // was already counted as a loss, before this position
    }
  }
  stream.next = ordinal + 1;
  slot.restart_clock();
  uint32_t count = 0, last = 0;  // rows made, and the last pulled row
  Owned samples(collate_ ? PyList_New(0) : nullptr);
  Owned item;
  // Under "skip" there may be fewer rows than pulled items.
  for (uint32_t pulled = 0; pulled < rows && !stream.ended; ++pulled) {
    uint64_t at = ordinal * rows + pulled;
    slot.progress({pulled});
    Owned value;
    if (slot.ending({pulled})) {
      PyErr_SetString(PyExc_RuntimeError, kPoisoned);
    } else {
      value = next(at);
    }
    if (!value) {
      // A generator that raised has ended.
      stream.ended = true;
      if (PyErr_Occurred() == nullptr) break;
      if (!note_loss(pulled, at, false)) return fail(ticket, slot, pulled, at);
      break;
    }
    if (!settings_.samples) {
      item = std::move(value);
    } else if (collate_) {
      PyList_Append(samples.get(), value.get());
    } else if (!add_row(ticket, slot, value.get(), count, at, ticket.rows)) {
      if (!note_loss(count, at, false)) return fail(ticket, slot, pulled, at);
      continue;
    }
    ++count;
    last = pulled;
  }
  // A batch that is short because of losses is not the last one: only the stream's end is.
  if (stream.ended && (count == 0 || settings_.drop_last)) {
    return emit(slot, ResultKind::kEnd, list_of(losses_));
  }
  if (count == 0) return emit(slot, ResultKind::kSkipped, list_of(losses_));
  if (!settings_.samples) return emit(slot, ResultKind::kPacket, std::move(item));
  if (!collate_) return finish_rows(ticket, slot, count);
  Owned batch = collated(slot, samples.get(), last);
  samples = Owned();
  if (!batch) {
    const auto index = static_cast<int64_t>(ordinal * rows + last);
    return fail(ticket, slot, 0, ordinal * rows, last == 0 ? -1 : index);
  }
  emit_with_losses(slot, std::move(batch));
}

}  // namespace penstock::python
