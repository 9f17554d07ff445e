#include "sample_fetcher.h"

#include <cstddef>
#include <string>
#include <utility>

#include "python_op.h"

namespace penstock::python {

namespace {

// Attempts to replace an item that is a whole batch, whose number of samples is unknown.
constexpr uint32_t kItemAttempts = 16;

}  // namespace

SampleFetcher::SampleFetcher(const SampleSettings& settings, PyObject* source, SampleCalls& calls,
                             SampleLosses& losses)
    : settings_(settings),
      source_(Owned::borrow(source)),
      calls_(calls),
      losses_(losses),
      indices_(settings) {
  if (!settings.samples) return;
  getitems_ = Owned(PyObject_GetAttrString(source, "__getitems__"));
  if (!getitems_) PyErr_Clear();
}

std::optional<FailurePlace> SampleFetcher::fetch(Slot& slot, const Use& use) {
  const Ticket& ticket = slot.ticket();
  // Not kept after the ticket, because its traceback refers to the dataset; also not after
  // penstock's own errors.
  struct Forget {
    Owned& together;
    ~Forget() { together = Owned(); }
  } forget{together_};
  if (!indices_.load(slot)) return FailurePlace{};
  const uint32_t count = ticket.end - ticket.begin;
  std::vector<Owned> fetched;
  if (getitems_) {
    fetched.resize(count);
    fetch_all(slot, fetched);
  }
  if (PyErr_Occurred() != nullptr) return whole(ticket);
  for (uint32_t row = 0; row < count; ++row) {
    if (sample(slot, row, fetched.empty() ? Owned() : std::move(fetched[row]), use)) continue;
    if (PyErr_Occurred() != nullptr) {
      return FailurePlace{.row = row, .index = indices_.key(ticket, row)};
    }
  }
  // Fetched one by one without a failure: __getitems__ raised, but nothing is lost.
  if (together_ && losses_.none()) calls_.count_error();
  return std::nullopt;
}

FailurePlace SampleFetcher::whole(const Ticket& ticket) const {
  FailurePlace place;
  const uint32_t count = ticket.end - ticket.begin;
  if (count > 0) place.index = indices_.key(ticket, 0);
  if (count > 1) place.last = static_cast<int64_t>(indices_.key(ticket, count - 1));
  return place;
}

// __getitems__: all rows in one call. The samples stay null if the call raised, or killed a worker
// before: then they are fetched one by one, to identify the failing sample. An exception to raise
// stays set.
void SampleFetcher::fetch_all(Slot& slot, std::vector<Owned>& samples) {
  const auto count = static_cast<uint32_t>(samples.size());
  if (slot.any_poisoned()) return;
  slot.progress({.what = kAllAtOnce});
  Owned all = calls_.tried(slot, [&] {
    calls_.set_key(slot, indices_.key(slot.ticket(), 0));
    return get_all(count);
  });
  if (!all) {
    if (raised_error()) together_ = exception_in_flight();
    return;
  }
  auto given = static_cast<size_t>(PySequence_Fast_GET_SIZE(all.get()));
  if (given != count) {
    std::string text = "__getitems__ was asked for " + std::to_string(count) +
                       " samples and returned " + std::to_string(given);
    PyObject* type = helper("penstock.errors", "InvalidArgument");
    PyErr_SetString(type != nullptr ? type : PyExc_ValueError, text.c_str());
    return;
  }
  for (uint32_t row = 0; row < count; ++row) {
    samples[row] = Owned::borrow(PySequence_Fast_GET_ITEM(all.get(), row));
  }
}

// One call of __getitems__; its result as a list or tuple.
Owned SampleFetcher::get_all(uint32_t count) {
  Owned list(PyList_New(count));
  for (uint32_t row = 0; list && row < count; ++row) {
    PyList_SET_ITEM(list.get(), row, indices_.at(row).release());
  }
  if (!list) return list;
  return calls_.once(WorkerTimes::kGet, count, [&]() -> PyObject* {
    Owned all(PyObject_CallOneArg(getitems_.get(), list.get()));
    return all ? PySequence_Fast(all.get(), "__getitems__ must return a list") : nullptr;
  });
}

// Fetches one row's sample, unless it was fetched before, and uses it, under the error policy.
// False with an exception set: it must be raised. False without: the row is lost, and noted.
bool SampleFetcher::sample(Slot& slot, uint32_t row, Owned fetched, const Use& use) {
  const uint64_t key = indices_.key(slot.ticket(), row);
  Owned value = fetched ? std::move(fetched) : get(slot, row, key);
  if (value && use(value.get(), row, key)) return true;
  value = Owned();
  if (losses_.replaces()) return substitute(slot, row, key, use);
  losses_.note(row, key);
  return false;
}

// Replaces a sample that failed with the current exception by another sample. Results as sample().
bool SampleFetcher::substitute(Slot& slot, uint32_t row, uint64_t key, const Use& use) {
  Owned first = exception_in_flight();
  std::string reason = text_of_exception(first.get());
  if (PyErr_Occurred() != nullptr) return false;
  const std::optional<TicketIndices::Replacements> others = indices_.replacements(slot, row);
  if (!others) return false;
  uint32_t left = settings_.samples ? slot.ticket().rows : kItemAttempts;
  for (uint32_t n = 0; left > 0 && n < others->size(); ++n) {
    PyErr_Clear();
    uint64_t other = key;
    const Owned index = others->at(n, other);
    if (!index && PyErr_Occurred() != nullptr) return false;
    if (!index) continue;  // the failed sample itself, which does not count
    --left;
    const Call call{row, n + 1};
    SampleCalls::progress(slot, call);
    if (SampleCalls::is_poisoned(slot, call)) continue;
    Owned value = attempt(slot, index.get(), other);
    if (value && use(value.get(), row, other)) {
      losses_.note_replaced(row, key, std::move(reason));
      return true;
    }
    if (!losses_.passes_over()) return false;
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(first.get())), first.get());
  // No sample of the epoch works: raise the error of the sample itself, not of a replacement.
  if (others->of_batch()) losses_.note(row, key);
  return false;
}

Owned SampleFetcher::get(Slot& slot, uint32_t row, uint64_t key) {
  SampleCalls::progress(slot, {row});
  if (SampleCalls::is_poisoned(slot, {row})) {
    SampleCalls::set_poisoned();
    return {};
  }
  return attempt(slot, indices_.at(row).get(), key);
}

Owned SampleFetcher::attempt(Slot& slot, PyObject* index, uint64_t key) {
  Owned value = calls_.tried(slot, [&] {
    calls_.set_key(slot, key);
    return calls_.once(WorkerTimes::kGet, 1,
                       [&] { return PyObject_GetItem(source_.get(), index); });
  });
  if (!value && together_ && raised_error()) tell_together();
  return value;
}

// Fetching all samples at once raised, and fetching one sample raised, too. If samples cannot be
// fetched one by one, the first exception has the reason.
void SampleFetcher::tell_together() {
  if (PyMapping_Check(source_.get()) == 0 || PyErr_ExceptionMatches(PyExc_NotImplementedError)) {
    PyErr_Clear();
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(together_.get())), together_.get());
    return;
  }
  Owned alone = exception_in_flight();
  Owned before(PyException_GetContext(alone.get()));
  if (!before && alone.get() != together_.get()) {
    PyException_SetContext(alone.get(), Py_NewRef(together_.get()));
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(alone.get())), alone.get());
}

}  // namespace penstock::python
