#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gil.h"
#include "loader_statistics.h"
#include "module.h"
#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/observe/report.h"
#include "penstock/online/message_queue.h"
#include "penstock/online/push_source.h"
#include "references.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using online::Acknowledge;
using online::Message;
using online::MessageQueue;
using online::MessageSource;
using online::PushSource;
using online::QueueOptions;
using online::StoredMessage;
using online::WhenFull;

std::span<const std::byte> bytes_of(nb::bytes value) {
  return {static_cast<const std::byte*>(value.data()), value.size()};
}

// The end of its source and of its log's thread may need the GIL, and may call Python while an
// exception is raised.
class Queue final : public MessageQueue {
 public:
  using MessageQueue::MessageQueue;
  ~Queue() override {
    const nb::error_scope raised;
    const WithoutGil unlocked;
    close();
  }
};

// Its end needs no GIL: the source may end on a native thread.
std::shared_ptr<PushSource> make_push_source(nb::object acknowledged) {
  const std::shared_ptr<void> function = share(acknowledged.ptr());
  return std::make_shared<PushSource>([function](std::span<const uint64_t> tokens) {
    const WithGil locked;
    try {
      nb::list all;
      for (const uint64_t token : tokens) all.append(token);
      nb::borrow(static_cast<PyObject*>(function.get()))(all);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("the source's acknowledge function");
    }
  });
}

std::unique_ptr<Queue> make_queue(uint64_t max_messages, uint64_t max_bytes,
                                  const std::string& when_full, bool after_train,
                                  const std::optional<std::string>& folder, int64_t fsync_ns,
                                  uint64_t segment_bytes, uint64_t offset) {
  QueueOptions options;
  options.max_messages = max_messages;
  options.max_bytes = max_bytes;
  options.when_full = when_full == "drop_oldest"   ? WhenFull::kDropOldest
                      : when_full == "drop_newest" ? WhenFull::kDropNewest
                                                   : WhenFull::kBlock;
  options.acknowledge = after_train ? Acknowledge::kAfterTrain : Acknowledge::kSpooled;
  if (folder) {
    options.log =
        online::LogOptions{.folder = *folder, .fsync_ns = fsync_ns, .segment_bytes = segment_bytes};
  }
  options.offset = offset;
  options.while_waiting = look_for_signals;
  return std::make_unique<Queue>(std::move(options));
}

// Objects as they were put; messages of bytes as message(topic, payload).
nb::list take(Queue& queue, uint64_t most, uint64_t least, int64_t max_wait_ns, int64_t timeout_ns,
              nb::handle message) {
  std::vector<StoredMessage> taken;
  {
    WithoutGil unlocked;
    taken = queue.take(most, least, max_wait_ns, timeout_ns);
  }
  nb::list items;
  for (const StoredMessage& each : taken) {
    if (each.object != nullptr) {
      items.append(nb::borrow(static_cast<PyObject*>(each.object.get())));
      continue;
    }
    const std::string_view topic = each.topic(), payload = each.payload();
    const nb::object text = nb::steal(PyUnicode_DecodeUTF8(
        topic.data(), static_cast<Py_ssize_t>(topic.size()), "surrogateescape"));
    if (!text.is_valid()) throw nb::python_error();
    items.append(message(text, nb::bytes(payload.data(), payload.size())));
  }
  return items;
}

nb::dict counts(const Queue& queue) {
  online::QueueCounts all;
  std::string source;
  {
    WithoutGil unlocked;
    all = queue.counts();
    if (queue.source() != nullptr) source = queue.source()->state();
  }
  nb::dict dict;
  dict["received"] = all.received;
  dict["spooled"] = all.spooled;
  dict["dropped"] = all.dropped;
  dict["duplicates"] = all.duplicates;
  dict["replayed"] = all.replayed;
  dict["taken"] = all.taken;
  dict["queued"] = all.queued;
  dict["queued_bytes"] = all.queued_bytes;
  dict["torn_bytes"] = all.torn_bytes;
  dict["largest_batch"] = all.largest_batch;
  nb::dict sizes;
  for (size_t i = 0; i < all.batch_sizes.size(); ++i) {
    if (all.batch_sizes[i] != 0) sizes[nb::int_(uint64_t{1} << i)] = all.batch_sizes[i];
  }
  dict["batch_sizes"] = sizes;
  dict["age_p50"] = 1e-9 * static_cast<double>(all.ages.quantile_ns(0.5));
  dict["age_p99"] = 1e-9 * static_cast<double>(all.ages.quantile_ns(0.99));
  dict["age_max"] = 1e-9 * static_cast<double>(all.ages.longest_ns());
  dict["source"] = source;
  return dict;
}

// `facts`: pairs of texts.
Snapshot snapshot(const Queue& queue, const std::string& title, uint64_t max_batch,
                  std::vector<std::pair<std::string, std::string>> facts) {
  Snapshot all = queue.snapshot();
  all.title = title;
  all.batch_size = max_batch;
  all.facts = std::move(facts);
  return all;
}

}  // namespace

void bind_online(nb::module_& m) {
  using Unlocked = nb::call_guard<WithoutGil>;
  nb::class_<MessageSource>(m, "MessageSource", "Internal: a source of train.Online.")
      .def("state", &MessageSource::state, Unlocked())
      .def(
          "publish",
          [](MessageSource& self, const std::string& topic, nb::bytes payload, int qos) {
            const auto bytes = bytes_of(payload);
            WithoutGil unlocked;
            self.publish(topic, bytes, qos);
          },
          nb::arg("topic"), nb::arg("payload"), nb::arg("qos"));

  nb::class_<PushSource, MessageSource>(m, "PushSource",
                                        "Internal: a source of train.Online that is pushed to.")
      .def_static("make", &make_push_source, nb::arg("acknowledged"))
      .def(
          "push",
          [](PushSource& self, const std::string& topic, nb::bytes payload, uint64_t token,
             uint16_t packet_id, bool duplicate, int64_t timeout_ns) {
            const Message message{topic, bytes_of(payload), now_ns(), token, packet_id, duplicate};
            WithoutGil unlocked;
            return self.push(message, timeout_ns);
          },
          nb::arg("topic"), nb::arg("payload"), nb::arg("token") = 0, nb::arg("packet_id") = 0,
          nb::arg("duplicate") = false, nb::arg("timeout_ns") = 60'000'000'000)
      .def("end", &PushSource::end, nb::arg("error") = "", Unlocked());

  nb::class_<Queue>(m, "MessageQueue", "Internal: use penstock.train.Online.")
      .def_static("make", &make_queue, nb::arg("max_messages"), nb::arg("max_bytes"),
                  nb::arg("when_full"), nb::arg("after_train"), nb::arg("folder").none(),
                  nb::arg("fsync_ns"), nb::arg("segment_bytes"), nb::arg("offset"), Unlocked())
      .def("start", &MessageQueue::start, nb::arg("source"), Unlocked())
      .def("close", &MessageQueue::close, Unlocked())
      .def(
          "put",
          [](Queue& self, const std::string& topic, nb::bytes payload) {
            const Message message{topic, bytes_of(payload), now_ns()};
            WithoutGil unlocked;
            return self.put(message);
          },
          nb::arg("topic"), nb::arg("payload"))
      .def(
          "put_object",
          [](Queue& self, nb::handle object, uint64_t bytes) {
            const std::shared_ptr<void> kept = share(object.ptr());
            WithoutGil unlocked;
            return self.put_object(kept, bytes);
          },
          nb::arg("object").none(), nb::arg("bytes"))
      .def("ended", &MessageQueue::ended, nb::arg("error"), Unlocked())
      .def("wait_for_space", &MessageQueue::wait_for_space, nb::arg("timeout_ns"), Unlocked())
      .def("take", &take, nb::arg("most"), nb::arg("least"), nb::arg("max_wait_ns"),
           nb::arg("timeout_ns"), nb::arg("message"))
      .def_prop_ro("finished", &MessageQueue::finished, Unlocked())
      .def_prop_ro("next_offset", &MessageQueue::next_offset, Unlocked())
      .def("aged", &MessageQueue::aged, Unlocked())
      .def("trained", &MessageQueue::trained, nb::arg("offset"), Unlocked())
      .def("sync", &MessageQueue::sync, Unlocked())
      .def("trim", &MessageQueue::trim, nb::arg("offset"), Unlocked())
      .def("counts", &counts)
      .def(
          "report_html",
          [](const Queue& self, const std::string& title, uint64_t max_batch,
             std::vector<std::pair<std::string, std::string>> facts) {
            return report_html(snapshot(self, title, max_batch, std::move(facts)));
          },
          nb::arg("title"), nb::arg("max_batch"), nb::arg("facts"), Unlocked())
      .def(
          "analysis",
          [](const Queue& self, uint64_t max_batch) {
            return dict_of(analyse(snapshot(self, {}, max_batch, {})));
          },
          nb::arg("max_batch"));
}

}  // namespace penstock::python
