#include "core.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/observe/analysis.h"
#include "penstock/observe/report.h"

namespace nb = nanobind;

namespace penstock::python {

namespace {

constexpr int64_t kSignalCheckNs = 100'000'000;

template <class T>
T setting(const nb::dict& settings, const char* name) {
  return nb::cast<T>(settings[name]);
}

// What next() returns after the last batch: no value that user code could have made.
PyObject* end_marker() {
  static PyObject* marker = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  return marker;
}

nb::object steal(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

}  // namespace

// ---- tickets of a sampler
// ------------------------------------------------------------------------

bool ListedTickets::describe(const Position& at, Post& post) {
  if (error_) return false;
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
  PyObject* encode = list ? helper("penstock._interop", "encode_indices") : nullptr;
  Owned coded(encode == nullptr ? nullptr : PyObject_CallOneArg(encode, list.get()));
  if (!coded) {
    if (PyErr_Occurred() != nullptr) {
      PyObject *type, *value, *trace;
      PyErr_Fetch(&type, &value, &trace);
      PyErr_NormalizeException(&type, &value, &trace);
      if (trace != nullptr) PyException_SetTraceback(value, trace);
      Py_XDECREF(type);
      Py_XDECREF(trace);
      error_ = Owned(value);
    }
    return false;
  }
  long rows = PyLong_AsLong(PyTuple_GET_ITEM(coded.get(), 0));
  long kind = PyLong_AsLong(PyTuple_GET_ITEM(coded.get(), 1));
  PyObject* bytes = PyTuple_GET_ITEM(coded.get(), 2);
  uint64_t header[2] = {static_cast<uint64_t>(kind),
                        static_cast<uint64_t>(PyBytes_GET_SIZE(bytes))};
  auto* room = static_cast<std::byte*>(arena_.allocate(sizeof(header) + header[1]));
  if (room == nullptr) throw Error(Code::kOutOfMemory, "Loader", "no room for a list of indices");
  std::memcpy(room, header, sizeof(header));
  std::memcpy(room + sizeof(header), PyBytes_AS_STRING(bytes), header[1]);
  post.indices_offset = arena_.region()->offset_of(room);
  post.rows = static_cast<uint32_t>(rows);
  return true;
}

// ---- construction
// --------------------------------------------------------------------------------

Core::Core(nb::dict s)
    : owner_(getpid()), order_([&] {
        Order::Options o;
        o.length = setting<uint64_t>(s, "length");
        o.batch_size = std::max<uint64_t>(setting<uint64_t>(s, "batch_size"), 1);
        o.shuffle = setting<bool>(s, "shuffle");
        o.seed = setting<uint64_t>(s, "seed");
        o.drop_last = setting<bool>(s, "drop_last");
        o.rank = setting<uint32_t>(s, "rank");
        o.world = setting<uint32_t>(s, "world");
        return o;
      }()) {
  plan_.order = order_.options();
  plan_.samples = setting<bool>(s, "samples");
  plan_.retries = setting<uint32_t>(s, "retries");
  plan_.drop_last = order_.options().drop_last;
  plan_.streams = std::max(setting<uint32_t>(s, "streams"), 1u);
  auto on_error = setting<std::string>(s, "on_error");
  plan_.on_error = on_error == "skip"      ? OnError::kSkip
                   : on_error == "replace" ? OnError::kReplace
                                           : OnError::kRaise;
  auto source = setting<std::string>(s, "source");
  if (source == "stream") plan_.source = PlanSettings::Source::kStream;
  processes_ = setting<bool>(s, "processes");

  Feed::Options options;
  options.queue = setting<uint32_t>(s, "queue");
  options.workers = setting<uint32_t>(s, "workers");
  options.max_bytes = setting<uint64_t>(s, "max_bytes");
  options.ordered = setting<bool>(s, "ordered");
  options.pause_at_epochs = setting<bool>(s, "pause");
  options.granule_rows = setting<uint32_t>(s, "granule_rows");
  uint32_t rows = plan_.samples ? static_cast<uint32_t>(order_.options().batch_size) : 1;
  if (source == "listed") rows = setting<uint32_t>(s, "most_rows");
  shape_.granules = (rows + options.granule_rows - 1) / options.granule_rows;
  shape_.workers = std::max(setting<uint32_t>(s, "places"), 1u);
  shape_.posts = 2 * (options.queue + options.workers) + 2;
  board_ = Board::create(shape_, processes_);
  arena_ = std::make_unique<Allocator>(
      Region::create(processes_ ? Region::Kind::kShared : Region::Kind::kPrivate));
  rows_ = std::make_unique<LocalRows>(*arena_);
  if (source == "listed") {
    auto listed = std::make_unique<ListedTickets>(nb::object(s["begin"]), *arena_);
    listed_ = listed.get();
    tickets_ = std::move(listed);
  } else if (source == "stream") {
    tickets_ = std::make_unique<StreamTickets>(plan_.streams, rows);
  } else {
    auto indexed = std::make_unique<IndexedTickets>(order_);
    indexed_ = indexed.get();
    tickets_ = std::move(indexed);
  }
  Supervisor::Policy policy;
  policy.raise = plan_.on_error == OnError::kRaise;
  policy.processes = processes_;
  double timeout = setting<double>(s, "timeout");
  policy.timeout_ns = timeout < 0 ? -1 : static_cast<int64_t>(timeout * 1e9);
  supervisor_ = std::make_unique<Supervisor>(*board_, *arena_, policy);
  feed_ = std::make_unique<Feed>(*board_, *arena_, *tickets_, options,
                                 [this](Unit& unit) { let_go(unit); });
  arena_of_ = [this](uint32_t number) {
    if (supervisor_->knows(number)) return supervisor_->region(number);
    // The thread that hears of it may be waiting for the GIL.
    nb::gil_scoped_release unlocked;
    return supervisor_->region(number);
  };
}

Core::~Core() {
  if (getpid() == owner_) {
    close(0);
    feed_->drain();
    return;
  }
  // A forked child's copy: the threads are not here, and everything else is the parent's.
  for (std::thread& t : threads_) t.detach();
  (void)inline_.release();
  (void)feed_.release();
  (void)supervisor_.release();
  (void)arena_.release();
  (void)board_.release();
}

nb::object EpochIterator::next() {
  if (over_) throw nb::stop_iteration();
  nb::object batch;
  try {
    batch = engine().next(epoch_, serial_);
  } catch (...) {
    over_ = true;
    throw;
  }
  if (batch.ptr() != end_marker()) return batch;
  over_ = true;
  if (engine().is_current(serial_)) finished_(epoch_);
  throw nb::stop_iteration();
}

void Core::close(double grace) {
  if (getpid() != owner_) return;
  {
    nb::gil_scoped_release unlocked;
    supervisor_->close(static_cast<int64_t>(grace * 1e9));
    for (std::thread& t : threads_) t.join();
    threads_.clear();
  }
  // What leads back to Python would otherwise be a cycle that its collector cannot see.
  if (consumer_.try_lock()) {
    inline_.reset();
    columns_.clear();
    consumer_.unlock();
  }
}

void Core::drain() {
  if (getpid() != owner_ || !consumer_.try_lock()) return;  // whoever is in next() goes on to ~Core
  feed_->drain();
  supervisor_->forget_arenas();
  consumer_.unlock();
}

void Core::check_open() {
  if (arena_->region()->inherited()) {
    throw Error(Code::kClosed, "Loader",
                "it belongs to the process that made it; make another one in this process");
  }
  if (!board_->closed()) return;
  // Given away: its traceback will lead back to the loader, a cycle that no collector sees.
  if (fatal_.is_valid()) raise(std::exchange(fatal_, nb::object()));
  throw Error(Code::kClosed, "Loader", "the loader was closed");
}

void Core::raise(nb::object exception) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

void Core::set_fatal(nb::object exception) {
  if (!fatal_.is_valid()) fatal_ = std::move(exception);
  board_->close();
}

// ---- the consumer
// ----------------------------------------------------------------------------------

namespace {
// Taken without the GIL, or two Python threads would wait for each other.
class ConsumerLock {
 public:
  explicit ConsumerLock(std::timed_mutex& mutex) : mutex_(mutex) {
    if (mutex_.try_lock()) return;
    nb::gil_scoped_release unlocked;
    mutex_.lock();
  }
  ~ConsumerLock() { mutex_.unlock(); }

 private:
  std::timed_mutex& mutex_;
};
}  // namespace

void Core::settle() {
  ConsumerLock lock(consumer_);
  for (;;) {
    check_open();
    {
      nb::gil_scoped_release unlocked;
      if (feed_->settle(kSignalCheckNs)) return;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

nb::object Core::next(uint64_t epoch, uint64_t serial) {
  ConsumerLock lock(consumer_);
  for (;;) {
    check_open();
    if (serial != serial_) return nb::borrow(end_marker());
    switch (feed_->poll(epoch)) {
      case Feed::Poll::kEpochEnd:
        if (listed_ != nullptr) {
          if (Owned error = listed_->take_error()) raise(steal(error.release()));
        }
        return nb::borrow(end_marker());
      case Feed::Poll::kBatch: {
        nb::object batch = take();
        if (batch.is_valid()) return batch;
        break;
      }
      case Feed::Poll::kWait:
        if (inline_ != nullptr) {
          if (auto seq = feed_->next_open()) {
            serve_post(*board_, 0, *seq, *inline_, rows_.get());
          }
        } else {
          {
            nb::gil_scoped_release unlocked;
            feed_->wait(kSignalCheckNs);
          }
          if (PyErr_CheckSignals() != 0) throw nb::python_error();
        }
        break;
    }
  }
}

// The arena that a packet speaks of may be gone because the loader was closed meanwhile.
nb::object Core::decoded(PyObject* made) {
  if (made == nullptr && board_->closed()) {
    PyErr_Clear();
    check_open();
  }
  return steal(made);
}

// What a unit carries, as a Python object; it is the unit's no longer.
nb::object Core::unit_value(Unit& unit) {
  ResultKind kind = unit.kind;
  unit.kind = ResultKind::kNone;
  if (!processes_) {
    if (unit.object == 0) return nb::none();
    return nb::steal(reinterpret_cast<PyObject*>(std::exchange(unit.object, 0)));
  }
  if (kind == ResultKind::kNone || unit.length == 0) return nb::none();
  if (unit.length <= Slot::kInline) {
    return decoded(decode({unit.packet, unit.length}, {}, nullptr, arena_of_));
  }
  if (unit.block.arena == kSpilled) {
    std::shared_ptr<Spill> spill(reinterpret_cast<Spill*>(std::exchange(unit.object, 0)));
    uint32_t tree = 0;
    if (spill->size < sizeof(tree)) throw Error(Code::kInternal, "Loader", "an empty packet");
    std::memcpy(&tree, spill->bytes.get(), sizeof(tree));
    uint64_t tail = (uint64_t{tree} + 63) / 64 * 64;
    if (tree > spill->size) throw Error(Code::kInternal, "Loader", "a packet longer than itself");
    tail = std::min(tail, spill->size);
    std::byte* bytes = spill->bytes.get();
    return decoded(decode({bytes, tree}, {bytes + tail, spill->size - tail}, spill, arena_of_));
  }
  auto region = arena_of_(unit.block.arena);
  if (region == nullptr) check_open();
  if (region == nullptr) throw Error(Code::kInternal, "Loader", "a result without its arena");
  Lease lease(region, {unit.block.offset, unit.block.bytes, unit.block.generation, 0});
  return decoded(decode({lease.data(), unit.length}, {}, nullptr, arena_of_));
}

void Core::let_go(Unit& unit) {
  nb::gil_scoped_acquire locked;  // settle() comes without
  try {
    unit_value(unit);
  } catch (...) {
    PyErr_Clear();  // nobody wanted it
  }
}

void Core::note_losses(PyObject* list, uint64_t epoch) {
  ConsumerCounters& counters = board_->consumer();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* loss = PyList_GET_ITEM(list, i);
    bool replaced = PyTuple_GET_ITEM(loss, 3) == Py_True;
    (replaced ? counters.replaced : counters.skipped).add_single_writer();
    const char* reason = PyUnicode_AsUTF8(PyTuple_GET_ITEM(loss, 2));
    if (reason == nullptr) PyErr_Clear();
    losses_.push_back({epoch, PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(loss, 1)),
                       reason == nullptr ? "" : reason});
  }
}

// The batch that poll() found; a null object if it vanished (skipped), to be asked for again.
nb::object Core::take() {
  Post& post = feed_->current();
  uint64_t seq = feed_->current_seq();
  for (uint32_t g = 0; g < post.granules; ++g) {
    Unit& unit = board_->unit_at(seq, g);
    switch (unit.kind) {
      case ResultKind::kError:
      case ResultKind::kTimeout:
      case ResultKind::kLost:
      case ResultKind::kNoRoom:
        raise_failure(unit, ticket_of({&post, &unit, seq, g, 0, 0}));
      default:
        break;
    }
  }
  Unit& unit = board_->unit_at(seq, 0);
  uint64_t bytes = unit.bytes;
  uint64_t samples = post.rows;
  switch (unit.kind) {
    case ResultKind::kPacket: {
      nb::object batch = unit_value(unit);
      feed_->deliver(bytes, samples);
      return batch;
    }
    case ResultKind::kReplaced: {
      nb::object pair = unit_value(unit);
      note_losses(PyTuple_GET_ITEM(pair.ptr(), 1), post.epoch);
      nb::object batch = nb::borrow(PyTuple_GET_ITEM(pair.ptr(), 0));
      feed_->deliver(bytes, samples);
      return batch;
    }
    case ResultKind::kEnd: {
      nb::object lost = unit_value(unit);
      if (PyList_Check(lost.ptr())) note_losses(lost.ptr(), post.epoch);
      feed_->end_stream();
      return nb::object();
    }
    case ResultKind::kSkipped: {
      nb::object lost = unit_value(unit);
      if (PyList_Check(lost.ptr())) note_losses(lost.ptr(), post.epoch);
      feed_->skip();
      return nb::object();
    }
    default:
      return take_rows(post);
  }
}

nb::object Core::take_rows(Post& post) {
  uint64_t seq = feed_->current_seq();
  uint64_t bytes = 0;
  uint64_t rows = 0;
  std::vector<uint32_t> lost;
  nb::object objects;
  uint32_t share = (post.rows + post.granules - 1) / post.granules;
  for (uint32_t g = 0; g < post.granules; ++g) {
    Unit& unit = board_->unit_at(seq, g);
    uint32_t begin = std::min(g * share, post.rows);
    uint32_t end = std::min(begin + share, post.rows);
    bytes += unit.bytes;
    nb::object value = unit_value(unit);
    if (value.is_none()) {
      rows += end - begin;
      continue;
    }
    auto count = static_cast<uint32_t>(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(value.ptr(), 0)));
    PyObject* list = PyTuple_GET_ITEM(value.ptr(), 1);
    PyObject* columns = PyTuple_GET_ITEM(value.ptr(), 2);
    note_losses(list, post.epoch);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
      PyObject* loss = PyList_GET_ITEM(list, i);
      if (PyTuple_GET_ITEM(loss, 3) == Py_True) continue;
      uint32_t row = begin + PyLong_AsUnsignedLong(PyTuple_GET_ITEM(loss, 0));
      if (plan_.source == PlanSettings::Source::kMap) {
        lost.push_back(row);
        --count;
      }
    }
    rows += count;
    if (columns == Py_None) continue;
    if (!objects.is_valid()) {
      objects = nb::borrow(columns);
    } else {
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(columns); ++i) {
        PyObject* to = PyList_GET_ITEM(objects.ptr(), i);
        Py_ssize_t at = PyList_GET_SIZE(to);
        if (PyList_SetSlice(to, at, at, PyList_GET_ITEM(columns, i)) != 0) throw nb::python_error();
      }
    }
  }
  if (rows == 0) {
    feed_->skip();
    return nb::object();
  }
  std::span<const std::byte> spec(post.layout, post.layout_length);
  if (spec_rows_ != post.rows || spec_.size() != spec.size() ||
      std::memcmp(spec_.data(), spec.data(), spec.size()) != 0) {
    layout_ = layout_of(spec, post.rows);
    spec_.assign(spec.begin(), spec.end());
    spec_rows_ = post.rows;
  }
  Lease lease = feed_->take_rows();
  std::byte* base = lease.data();
  if (!lost.empty()) close_gaps(layout_, base, lost);
  nb::object owner = steal(owner_capsule(lease.owner()));
  nb::object batch = steal(batch_of(spec_, layout_, base, rows, owner.ptr(),
                                    objects.is_valid() ? objects.ptr() : nullptr));
  feed_->deliver(bytes, rows);
  return batch;
}

uint64_t Core::index_of(const Ticket& ticket, uint32_t row) {
  if (indexed_ == nullptr) {
    return (ticket.base + ticket.step) * order_.options().batch_size + ticket.begin + row;
  }
  uint64_t index = 0;
  order_.indices(ticket.epoch, ticket.base, ticket.step, ticket.begin + row, {&index, 1});
  return index;
}

void Core::raise_failure(Unit& unit, const Ticket& ticket) {
  static const char* const names[] = {"", "", "", "", "error", "", "", "timeout", "lost", "room"};
  const char* kind = names[static_cast<uint32_t>(unit.kind)];
  uint32_t worker = unit.worker;
  uint64_t row = unit.bytes;
  uint64_t index = 0;
  nb::object detail = nb::none();
  if (unit.kind == ResultKind::kError) {
    detail = unit_value(unit);
  } else if (unit.kind == ResultKind::kNoRoom) {
    detail = nb::str(reinterpret_cast<const char*>(unit.packet), unit.length);
  } else {
    index = index_of(ticket, static_cast<uint32_t>(row));
  }
  feed_->fail();
  PyObject* make = helper("penstock._interop", "failure");
  if (make == nullptr) throw nb::python_error();
  nb::object exception = nb::borrow(make)(kind, detail, ticket.epoch, ticket.step, index, worker);
  raise(exception);
}

void Core::begin_epoch() {
  ConsumerLock lock(consumer_);
  check_open();
  feed_->begin_epoch();
}

void Core::seek(uint64_t epoch, uint64_t base, uint64_t step, std::vector<uint64_t> ahead) {
  ConsumerLock lock(consumer_);
  check_open();
  feed_->seek({epoch, base, step}, {ahead.begin(), ahead.end()});
}

nb::tuple Core::position() {
  const Position& at = feed_->position();
  return nb::make_tuple(at.epoch, at.base, at.step);
}

std::vector<uint64_t> Core::ahead() { return {feed_->ahead().begin(), feed_->ahead().end()}; }

uint64_t Core::steps(uint64_t base) { return order_.steps(base); }

void Core::set_length(uint64_t length, uint64_t version) {
  ConsumerLock lock(consumer_);
  Order::Options options = order_.options();
  options.length = length;
  order_ = Order(options);
  plan_.order = options;
  if (indexed_ != nullptr) indexed_->set_order(order_);
  feed_->set_version(version);
}

// ---- workers
// ---------------------------------------------------------------------------------------

void Core::run_thread(uint32_t worker, nb::object source, nb::object collate, nb::object update) {
  PythonWorker python(plan_, source.ptr(), collate.ptr(), update.ptr(), *board_, {});
  serve(*board_, worker, python, rows_.get());
}

void Core::set_inline(nb::object source, nb::object collate, nb::object update) {
  inline_ = std::make_unique<PythonWorker>(plan_, source.ptr(), collate.ptr(), update.ptr(),
                                           *board_, PythonWorker::Outlet{});
}

void Core::start_columns(std::vector<nb::object> arrays, nb::object sample, uint32_t threads) {
  Sample taken;
  taken.fixed_width_text = true;
  if (!taken.take_apart(sample.ptr())) throw nb::python_error();
  if (taken.arrays.size() != arrays.size()) {
    throw Error(Code::kInternal, "Loader", "an array whose rows are no columns");
  }
  std::vector<Column> columns;
  for (const nb::object& object : arrays) {
    auto* array = reinterpret_cast<PyArrayObject*>(object.ptr());
    uint64_t rows = PyArray_DIM(array, 0);
    uint64_t bytes = rows == 0 ? 0 : PyArray_NBYTES(array) / rows;
    columns.push_back({static_cast<const std::byte*>(PyArray_DATA(array)), bytes,
                       static_cast<uint64_t>(PyArray_STRIDE(array, 0))});
  }
  columns_ = std::move(arrays);
  RowLayout layout = layout_of(taken.spec, 1);
  if (threads == 0) {
    inline_ = std::make_unique<ColumnsWorker>(columns, layout.fields(), taken.spec, order_);
  }
  for (uint32_t w = 0; w < threads; ++w) {
    threads_.emplace_back([=, this, fields = layout.fields(), spec = taken.spec] {
      os::block_all_signals();
      ColumnsWorker gather(columns, fields, spec, order_);
      serve(*board_, w, gather, rows_.get());
    });
  }
}

nb::tuple Core::supervise() {
  Supervisor::Event event;
  {
    nb::gil_scoped_release unlocked;
    event = supervisor_->wait();
  }
  static const char* const names[] = {"nothing", "died", "abandoned", "failed", "closed"};
  return nb::make_tuple(names[static_cast<int>(event.kind)], event.worker, event.ready,
                        nb::bytes(event.detail.data(), event.detail.size()));
}

void Core::attach(uint32_t worker, int pidfd, int link, int64_t pid) {
  board_->place(worker).pid.store(pid);
  supervisor_->attach(worker, os::Fd(pidfd), os::Fd(link));
}

void Core::send_update(uint64_t version, int fd, int64_t worker) {
  nb::gil_scoped_release unlocked;
  if (worker < 0) {
    supervisor_->send_update(version, fd);
  } else {
    supervisor_->send_update_to(static_cast<uint32_t>(worker), version, fd);
  }
}

// ---- observation
// -----------------------------------------------------------------------------------

Snapshot Core::snapshot(nb::dict about) {
  Snapshot s;
  s.title = setting<std::string>(about, "title");
  s.mode = setting<std::string>(about, "mode");
  s.batch_size = plan_.samples ? order_.options().batch_size : 0;
  s.queue_size = setting<uint64_t>(about, "queue");
  s.max_bytes = setting<uint64_t>(about, "max_bytes");
  s.cores = os::usable_cores();
  for (auto [key, value] : setting<nb::dict>(about, "facts")) {
    s.facts.emplace_back(nb::cast<std::string>(key), nb::cast<std::string>(value));
  }
  s.taken_ns = now_ns();
  s.consumer = figures_of(board_->consumer());
  s.consumer_trace = events_of(board_->consumer_trace());
  auto kind = setting<std::string>(about, "kind");
  auto workers = setting<uint32_t>(about, "workers");
  for (uint32_t w = 0; w < workers; ++w) {
    WorkerPlace& place = board_->place(w);
    WorkerSnapshot worker;
    worker.name = "worker " + std::to_string(w);
    worker.kind = kind;
    worker.pid = place.pid.load();
    worker.figures = figures_of(place.counters);
    worker.trace = events_of(place.trace);
    s.workers.push_back(std::move(worker));
  }
  s.depth = feed_->depths().read();
  s.losses = losses_;
  return s;
}

nb::dict Core::stats() {
  nb::dict out;
  ConsumerFigures consumer = figures_of(board_->consumer());
  for (const auto& field : ConsumerFigures::fields()) {
    out[nb::str(field.name.data(), field.name.size())] = consumer.*field.member;
  }
  nb::list losses;
  for (const LostItem& loss : losses_) {
    losses.append(
        nb::make_tuple(loss.epoch, loss.index, nb::str(loss.reason.data(), loss.reason.size())));
  }
  out["losses"] = losses;
  nb::list workers;
  WorkerFigures total{};
  for (uint32_t w = 0; w < board_->workers(); ++w) {
    WorkerFigures figures = figures_of(board_->place(w).counters);
    total += figures;
    nb::dict one;
    for (const auto& field : WorkerFigures::fields()) {
      one[nb::str(field.name.data(), field.name.size())] = figures.*field.member;
    }
    one["pid"] = board_->place(w).pid.load();
    workers.append(one);
  }
  out["workers"] = workers;
  nb::dict copies;
  for (size_t r = 0; r < kCopyReasons; ++r) {
    std::string_view name = name_of(static_cast<CopyReason>(r));
    copies[nb::str(name.data(), name.size())] = total.copies[r];
  }
  out["copies"] = copies;
  nb::dict copied;
  for (size_t r = 0; r < kCopyReasons; ++r) {
    std::string_view name = name_of(static_cast<CopyReason>(r));
    copied[nb::str(name.data(), name.size())] = total.bytes_copied[r];
  }
  out["bytes_copied"] = copied;
  out["copies_avoided"] = total.copies_avoided;
  out["bytes_avoided"] = total.bytes_avoided;
  out["queue"] = nb::make_tuple(board_->posted() - board_->head(), feed_->depth());
  return out;
}

void bind_core(nb::module_& m) {
  m.attr("END") = nb::borrow(end_marker());
  nb::class_<EpochIterator>(m, "EpochIterator")
      .def(nb::init<nb::object, uint64_t, uint64_t, nb::object>())
      .def(
          "__iter__", [](nb::handle self) { return self; },
          nb::sig("def __iter__(self) -> EpochIterator"))
      .def("__next__", &EpochIterator::next);
  nb::class_<Core>(m, "Core", "One Loader's engine. Internal: use penstock.Loader.")
      .def(nb::init<nb::dict>())
      .def("next", &Core::next)
      .def("begin_epoch", &Core::begin_epoch)
      .def("seek", &Core::seek)
      .def("position", &Core::position)
      .def("ahead", &Core::ahead)
      .def("steps", &Core::steps)
      .def("set_length", &Core::set_length)
      .def("closed", &Core::closed)
      .def("close", &Core::close)
      .def("drain", &Core::drain)
      .def("settle", &Core::settle)
      .def("run_thread", &Core::run_thread, nb::arg("worker"), nb::arg("source"),
           nb::arg("collate").none(), nb::arg("update"))
      .def("set_inline", &Core::set_inline, nb::arg("source"), nb::arg("collate").none(),
           nb::arg("update"))
      .def("set_serial", &Core::set_serial)
      .def("check_open", &Core::check_open)
      .def("count_restart", &Core::count_restart)
      .def("start_columns", &Core::start_columns)
      .def("supervise", &Core::supervise)
      .def("attach", &Core::attach)
      .def("send_update", &Core::send_update)
      .def("board_fd", &Core::board_fd)
      .def("arena_fd", &Core::arena_fd)
      .def("set_fatal", &Core::set_fatal)
      .def("stats", &Core::stats)
      .def("report_html",
           [](Core& core, nb::dict about) { return report_html(core.snapshot(about)); })
      .def("chrome_trace",
           [](Core& core, nb::dict about) { return chrome_trace(core.snapshot(about)); })
      .def("analysis", [](Core& core, nb::dict about) {
        Analysis a = analyse(core.snapshot(about));
        nb::dict out;
        std::string_view name = name_of(a.bottleneck);
        out["bottleneck"] = nb::str(name.data(), name.size());
        out["verdict"] = a.verdict;
        out["recommendations"] = a.recommendations;
        out["seconds"] = a.seconds;
        out["batches_per_second"] = a.batches_per_second;
        out["samples_per_second"] = a.samples_per_second;
        out["wait_share"] = a.wait_share;
        out["step_ms"] = a.step_ms;
        out["work_ms"] = a.work_ms;
        out["workers_enough"] = a.workers_enough;
        return out;
      });
}

}  // namespace penstock::python
