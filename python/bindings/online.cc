#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gil.h"
#include "module.h"
#include "observe.h"
#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/observe/report.h"
#include "penstock/online/message_queue.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using online::Acknowledge;
using online::Message;
using online::MessageQueue;
using online::MessageSink;
using online::MessageSource;
using online::QueueOptions;
using online::StoredMessage;
using online::WhenFull;

std::span<const std::byte> bytes_of(nb::bytes value) {
  return {static_cast<const std::byte*>(value.data()), value.size()};
}

// A source whose messages are pushed by Python code, which is told what is acknowledged.
class PushSource final : public MessageSource {
 public:
  explicit PushSource(nb::object acknowledged) : acknowledged_(std::move(acknowledged)) {}
  ~PushSource() override {
    if (!acknowledged_.is_valid()) return;
    const WithGil locked;
    acknowledged_.reset();
  }

  void start(MessageSink& sink) override {
    std::lock_guard lock(mutex_);
    sink_ = &sink;
  }
  void acknowledge(std::span<const uint64_t> tokens) override {
    const WithGil locked;
    try {
      nb::list all;
      for (const uint64_t token : tokens) all.append(token);
      acknowledged_(all);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("the source's acknowledge function");
    }
  }
  void space() override {}
  void stop() override {
    std::lock_guard lock(mutex_);
    sink_ = nullptr;
  }
  std::string state() const override { return "{}"; }
  void publish(std::string_view, std::span<const std::byte>, int) override {
    throw Error(Code::kInvalidArgument, "publish", "this source cannot publish");
  }

  bool push(const Message& message) {
    std::lock_guard lock(mutex_);
    if (sink_ == nullptr) throw Error(Code::kClosed, "Online", "the source is not started");
    return sink_->put(message);
  }
  bool full() {
    std::lock_guard lock(mutex_);
    return sink_ != nullptr && sink_->full();
  }
  void end(const std::string& error) {
    std::lock_guard lock(mutex_);
    if (sink_ != nullptr) sink_->ended(error);
  }

 private:
  nb::object acknowledged_;
  std::mutex mutex_;
  MessageSink* sink_ = nullptr;
};

std::unique_ptr<MessageQueue> make_queue(uint64_t max_messages, uint64_t max_bytes,
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
  return std::make_unique<MessageQueue>(std::move(options));
}

nb::object object_of(const StoredMessage& message) {
  if (message.object != nullptr) {
    return nb::borrow(static_cast<PyObject*>(message.object.get()));
  }
  const std::string_view topic = message.topic(), payload = message.payload();
  return nb::make_tuple(
      nb::steal(PyUnicode_DecodeUTF8(topic.data(), static_cast<Py_ssize_t>(topic.size()),
                                     "surrogateescape")),
      nb::bytes(payload.data(), payload.size()));
}

// (items, whether they are objects): objects, or pairs (topic, payload).
nb::object take(MessageQueue& queue, uint64_t most, uint64_t least, int64_t max_wait_ns,
                int64_t timeout_ns) {
  std::vector<StoredMessage> taken;
  {
    WithoutGil unlocked;
    taken = queue.take(most, least, max_wait_ns, timeout_ns);
  }
  nb::list items;
  for (const StoredMessage& message : taken) items.append(object_of(message));
  const bool objects = !taken.empty() && taken.front().object != nullptr;
  return nb::make_tuple(items, objects);
}

nb::dict counts(const MessageQueue& queue) {
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
Snapshot snapshot(const MessageQueue& queue, const std::string& title, uint64_t max_batch,
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
      .def_static(
          "make",
          [](nb::object acknowledged) -> std::shared_ptr<PushSource> {
            return std::make_shared<PushSource>(std::move(acknowledged));
          },
          nb::arg("acknowledged"))
      .def(
          "push",
          [](PushSource& self, const std::string& topic, nb::bytes payload, uint64_t token,
             uint16_t packet_id, bool duplicate) {
            const Message message{topic, bytes_of(payload), now_ns(), token, packet_id, duplicate};
            WithoutGil unlocked;
            return self.push(message);
          },
          nb::arg("topic"), nb::arg("payload"), nb::arg("token") = 0, nb::arg("packet_id") = 0,
          nb::arg("duplicate") = false)
      .def_prop_ro("full", &PushSource::full, Unlocked())
      .def("end", &PushSource::end, nb::arg("error") = "", Unlocked());

  nb::class_<MessageQueue>(m, "MessageQueue", "Internal: use penstock.train.Online.")
      .def_static("make", &make_queue, nb::arg("max_messages"), nb::arg("max_bytes"),
                  nb::arg("when_full"), nb::arg("after_train"), nb::arg("folder").none(),
                  nb::arg("fsync_ns"), nb::arg("segment_bytes"), nb::arg("offset"), Unlocked())
      .def("start", &MessageQueue::start, nb::arg("source"), Unlocked())
      .def("close", &MessageQueue::close, Unlocked())
      .def(
          "put",
          [](MessageQueue& self, const std::string& topic, nb::bytes payload) {
            const Message message{topic, bytes_of(payload), now_ns()};
            WithoutGil unlocked;
            return self.put(message);
          },
          nb::arg("topic"), nb::arg("payload"))
      .def(
          "put_object",
          [](MessageQueue& self, nb::object object) {
            const std::shared_ptr<void> kept(object.release().ptr(), [](void* mine) {
              const WithGil locked;
              Py_DECREF(static_cast<PyObject*>(mine));
            });
            WithoutGil unlocked;
            return self.put_object(kept, 0);
          },
          nb::arg("object"))
      .def("ended", &MessageQueue::ended, nb::arg("error"), Unlocked())
      .def("wait_for_space", &MessageQueue::wait_for_space, nb::arg("timeout_ns"), Unlocked())
      .def("take", &take, nb::arg("most"), nb::arg("least"), nb::arg("max_wait_ns"),
           nb::arg("timeout_ns"))
      .def_prop_ro("finished", &MessageQueue::finished, Unlocked())
      .def_prop_ro("next_offset", &MessageQueue::next_offset, Unlocked())
      .def("aged", &MessageQueue::aged, Unlocked())
      .def("trained", &MessageQueue::trained, nb::arg("offset"), Unlocked())
      .def("sync", &MessageQueue::sync, Unlocked())
      .def("trim", &MessageQueue::trim, nb::arg("offset"), Unlocked())
      .def("counts", &counts)
      .def(
          "report_html",
          [](const MessageQueue& self, const std::string& title, uint64_t max_batch,
             std::vector<std::pair<std::string, std::string>> facts) {
            return report_html(snapshot(self, title, max_batch, std::move(facts)));
          },
          nb::arg("title"), nb::arg("max_batch"), nb::arg("facts"), Unlocked())
      .def(
          "analysis",
          [](const MessageQueue& self, uint64_t max_batch) {
            return dict_of(analyse(snapshot(self, {}, max_batch, {})));
          },
          nb::arg("max_batch"));
}

}  // namespace penstock::python
