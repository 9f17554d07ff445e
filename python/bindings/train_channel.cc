#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <string>
#include <utility>

#include "elements.h"
#include "gil.h"
#include "module.h"
#include "numpy_api.h"
#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/train/channel.h"
#include "penstock/train/producer.h"
#include "train.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using train::Channel;
using train::Items;
using train::Producer;
using train::ProducerCounts;
using train::WhenFull;

WhenFull policy(const std::string& name) {
  if (name == "block") return WhenFull::kBlock;
  if (name == "drop_oldest") return WhenFull::kDropOldest;
  if (name == "drop_newest") return WhenFull::kDropNewest;
  throw Error(Code::kInvalidArgument, "channel",
              "when_full is '" + name + "': give 'block', 'drop_oldest' or 'drop_newest'");
}

std::unique_ptr<Channel> make_channel(const std::string& name, uint64_t capacity,
                                      const std::string& when_full) {
  return std::make_unique<Channel>(name, train::ChannelOptions{.capacity = capacity,
                                                               .when_full = policy(when_full),
                                                               .while_waiting = look_for_signals});
}

// A batch; or a list of items, if they have different specs or `stack` is false; or None.
nb::object get(Channel& channel, uint64_t most, int64_t timeout_ns, bool stack) {
  Items items;
  {
    WithoutGil unlocked;
    items = channel.get(most, timeout_ns);
  }
  if (items.empty()) return nb::none();
  if (stack && items.stacked()) return batch_object(items.blocks()[0]);
  nb::list all;
  for (size_t i = 0; i < items.size(); ++i) {
    const auto [block, row] = items[i];
    all.append(row_object(items.blocks()[block], row));
  }
  return all;
}

nb::list counts(const Channel& channel) {
  nb::list all;
  for (const ProducerCounts& each : channel.stats()) {
    nb::dict one;
    one["pid"] = static_cast<int64_t>(each.pid);
    one["alive"] = each.alive;
    one["put"] = each.put;
    one["got"] = each.got;
    one["dropped_oldest"] = each.dropped;
    one["dropped_newest"] = each.refused;
    one["queued"] = each.queued;
    all.append(one);
  }
  return all;
}

// A Producer with the spec of its last value.
class ValueProducer {
 public:
  ValueProducer(const std::string& name, int64_t timeout_ns, bool reconnect)
      : producer_(
            name,
            {.timeout_ns = timeout_ns, .reconnect = reconnect, .while_waiting = look_for_signals}) {
  }

  Producer& producer() { return producer_; }

  bool put(nb::handle value, int64_t timeout_ns) {
    const uint64_t end = timeout_ns < 0 ? UINT64_MAX : now_ns() + static_cast<uint64_t>(timeout_ns);
    // Used by this thread only: user code that runs here may let another thread call put().
    std::unique_ptr<Workspace> space = std::move(workspace_);
    if (space == nullptr) space = std::make_unique<Workspace>();
    const bool put = put_in(*space, value, end);
    workspace_ = std::move(space);
    return put;
  }

 private:
  struct Workspace {
    SpecRef spec;
    BlockLayout layout;  // of one element, if its size is fixed
    Scratch scratch;
    Chunk chunk{scratch};
  };

  bool put_in(Workspace& space, nb::handle value, uint64_t end) {
    const SpecRef spec = spec_of(value.ptr(), space.spec);
    if (spec != space.spec) {
      space.spec = spec;
      space.layout = spec->fixed() ? BlockLayout(*spec, 1) : BlockLayout();
    }
    space.scratch.empty();
    if (spec->fixed()) {  // directly into the ring
      return attempt(*spec, space.layout.bytes(), end, [&](std::byte* to) {
        space.chunk.reset(spec, 1);
        const RowLayout& fixed = space.layout.fixed();
        for (size_t leaf = 0; leaf < spec->leaves().size(); ++leaf) {
          space.chunk.bind(leaf, fixed.column(to, leaf), fixed.fields()[leaf].row_bytes);
        }
        put_element(value.ptr(), space.chunk, 0, space.scratch);
      });
    }
    space.chunk.reset(spec, 1);
    put_element(value.ptr(), space.chunk, 0, space.scratch);
    const BlockLayout layout = row_layout(space.chunk, 0);
    const bool put = attempt(*spec, layout.bytes(), end,
                             [&](std::byte* to) { write_row(space.chunk, 0, layout, to); });
    space.chunk.reset(spec, 1);  // releases the value's arrays
    return put;
  }

  // Keeps the GIL while an item is written: the caller owns its arrays, and it may take long to get
  // the GIL back.
  bool attempt(const ElementSpec& spec, uint64_t bytes, uint64_t end,
               const Producer::Write& write) {
    for (;;) {
      switch (producer_.try_put(spec, bytes, write)) {
        case Producer::Attempt::kPut:
          return true;
        case Producer::Attempt::kRefused:
          return false;
        case Producer::Attempt::kNotYet: {
          WithoutGil unlocked;
          producer_.wait(spec, bytes, end);
        }
      }
    }
  }

  Producer producer_;
  std::unique_ptr<Workspace> workspace_;
};

}  // namespace

void bind_train_channel(nb::module_& m) {
  using Unlocked = nb::call_guard<WithoutGil>;
  nb::class_<Channel>(m, "ChannelEnd", "Internal: use penstock.train.channel.")
      .def_static("make", &make_channel, nb::arg("name"), nb::arg("capacity"), nb::arg("when_full"),
                  Unlocked())
      .def("get", &get, nb::arg("most"), nb::arg("timeout_ns"), nb::arg("stack"))
      .def("counts", &counts)
      .def("close", &Channel::close, Unlocked())
      .def_prop_ro("capacity", &Channel::capacity)
      .def_prop_ro("producers", &Channel::producers);

  nb::class_<ValueProducer>(m, "ValueProducer", "Internal: use penstock.train.attach_channel.")
      .def_static(
          "attach",
          [](const std::string& name, int64_t timeout_ns, bool reconnect) {
            return std::make_unique<ValueProducer>(name, timeout_ns, reconnect);
          },
          nb::arg("name"), nb::arg("timeout_ns"), nb::arg("reconnect"), Unlocked())
      .def("put", &ValueProducer::put, nb::arg("value"), nb::arg("timeout_ns"))
      .def(
          "close", [](ValueProducer& self) { self.producer().close(); }, Unlocked())
      .def_prop_ro("lost", [](ValueProducer& self) { return self.producer().lost(); })
      .def_prop_ro("alive", [](ValueProducer& self) { return self.producer().alive(); });
}

}  // namespace penstock::python
