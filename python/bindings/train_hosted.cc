#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gil.h"
#include "module.h"
#include "penstock/base/error.h"
#include "penstock/train/server/epoch.h"
#include "penstock/train/server/hosted_shard.h"
#include "penstock/train/slab.h"
#include "train.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using train::HostedShard;
using train::Optimizer;
using train::partition;
using train::ServerMode;
using train::Slab;
using train::SnapshotFolder;

using Id = std::pair<uint64_t, uint64_t>;  // epoch, generation
// Bytes, CRC-32C, version, epoch of the shard.
using Part = std::tuple<uint64_t, uint32_t, uint64_t, uint64_t>;

// Epoch, server, leader, follower.
using Assigned = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>;

SnapshotFolder::Id id_of(const Id& id) { return {.epoch = id.first, .generation = id.second}; }
Id id_of(const SnapshotFolder::Id& id) { return {id.epoch, id.generation}; }

std::span<const float> floats_of(const nb::bytes& bytes) {
  if (bytes.size() % sizeof(float) != 0) {
    throw Error(Code::kInvalidArgument, "begin", "weights of another size");
  }
  return {static_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace

void bind_train_hosted(nb::module_& m) {
  using Unlocked = nb::call_guard<WithoutGil>;
  nb::class_<HostedShard>(m, "HostedShard", "Internal: a shard of penstock.ray.parameter_server.")
      .def(
          "__init__",
          [](HostedShard* made, const nb::list& blocks, const Optimizer& optimizer, size_t shards,
             size_t shard, uint64_t server, const ServerMode& mode, std::vector<std::string> listen,
             std::string secret, std::optional<bool> encrypt,
             const std::filesystem::path& snapshots, uint32_t replicas, double replica_timeout) {
            train::Layout layout = layout_of(blocks);
            const WithoutGil unlocked;
            new (made) HostedShard(std::move(layout), optimizer,
                                   {.shards = shards,
                                    .shard = shard,
                                    .server = server,
                                    .mode = mode,
                                    .listen = std::move(listen),
                                    .secret = std::move(secret),
                                    .encrypt = encrypt,
                                    .snapshots = snapshots,
                                    .replicas = replicas,
                                    .replica = {.timeout_s = replica_timeout}});
          },
          nb::arg("blocks"), nb::arg("optimizer"), nb::arg("shards"), nb::arg("shard"),
          nb::arg("server"), nb::arg("mode"), nb::arg("listen"), nb::arg("secret"),
          nb::arg("encrypt").none(), nb::arg("snapshots"), nb::arg("replicas"),
          nb::arg("replica_timeout"))
      .def_prop_ro("id", &HostedShard::id)
      .def_prop_ro("replicas", &HostedShard::replicas)
      .def_prop_ro("why_not", &HostedShard::why_not)
      .def("assignment",
           [](const HostedShard& self) {
             train::Assignment found;
             {
               const WithoutGil unlocked;
               found = self.assignment();
             }
             return Assigned{found.epoch, found.server, found.leader, found.follower};
           })
      .def(
          "attend",
          [](HostedShard& self, const Assigned& seen, uint64_t other, std::string address) {
            const auto [epoch, server, leader, follower] = seen;
            switch (self.attend({epoch, server, leader, follower}, {other, std::move(address)})) {
              case HostedShard::Attended::kLeads:
                return "leads";
              case HostedShard::Attended::kOtherFollows:
                return "other follows";
              case HostedShard::Attended::kWaits:
                break;
            }
            return "waits";
          },
          nb::arg("seen"), nb::arg("other"), nb::arg("address"), Unlocked())
      .def("lose_leader", &HostedShard::lose_leader, nb::arg("leader"), Unlocked())
      .def_prop_ro("epoch", &HostedShard::epoch)
      .def_prop_ro("addresses", &HostedShard::addresses)
      .def_prop_ro("damaged_snapshots", &HostedShard::damaged_snapshots)
      .def_prop_ro("unsaved", &HostedShard::unsaved)
      .def(
          "begin",
          [](HostedShard& self, const nb::bytes& weights, uint64_t version) {
            const auto floats = floats_of(weights);
            const WithoutGil unlocked;
            self.begin(floats, version);
          },
          nb::arg("weights"), nb::arg("version"))
      .def(
          "restore",
          [](HostedShard& self, const std::optional<Id>& id) {
            return self.restore(id ? std::optional(id_of(*id)) : std::nullopt);
          },
          nb::arg("id").none(), Unlocked())
      .def("read",
           [](const HostedShard& self) {
             std::vector<float> floats(self.range().size());
             uint64_t version = 0;
             {
               const WithoutGil unlocked;
               version = self.read(floats);
             }
             return std::pair(nb::bytes(floats.data(), floats.size() * sizeof(float)), version);
           })
      .def("fence", &HostedShard::fence, Unlocked())
      .def("hold", &HostedShard::hold, nb::arg("writer"), Unlocked())
      .def("copy", &HostedShard::copy, nb::arg("writer"), Unlocked())
      .def(
          "write",
          [](HostedShard& self, uint64_t writer, uint64_t generation) {
            const SnapshotFolder::Part part = self.write(writer, generation);
            return Part{part.file.bytes, part.file.crc32c, part.version, part.epoch};
          },
          nb::arg("writer"), nb::arg("generation"), Unlocked())
      .def("set_saved", &HostedShard::set_saved, nb::arg("writer"), nb::arg("failure"), Unlocked())
      .def("stats", &HostedShard::stats, Unlocked())
      .def("close", &HostedShard::close, Unlocked());

  nb::class_<SnapshotFolder>(m, "SnapshotFolder",
                             "Internal: the snapshots of penstock.ray.parameter_server.")
      .def(
          "__init__",
          [](SnapshotFolder* made, const std::filesystem::path& folder, const nb::list& blocks,
             const Optimizer& optimizer, size_t shards, bool locked) {
            const train::Layout layout = layout_of(blocks);
            const WithoutGil unlocked;
            if (locked) {
              new (made) SnapshotFolder(folder, partition(layout, shards), optimizer, layout);
            } else {
              new (made) SnapshotFolder(folder, partition(layout, shards), optimizer, layout,
                                        nullptr, train::claim_epoch(folder, train::kWriterRole));
            }
          },
          nb::arg("folder"), nb::arg("blocks"), nb::arg("optimizer"), nb::arg("shards"),
          nb::arg("locked"))
      .def_prop_ro("epoch", &SnapshotFolder::epoch)
      .def_prop_ro("damaged", &SnapshotFolder::damaged)
      .def(
          "find",
          [](SnapshotFolder& self) {
            return self.find() ? std::optional(id_of(self.found())) : std::nullopt;
          },
          Unlocked())
      .def(
          "next", [](const SnapshotFolder& self) { return id_of(self.next()); }, Unlocked())
      .def(
          "commit",
          [](SnapshotFolder& self, const Id& id, const std::vector<Part>& given) {
            std::vector<SnapshotFolder::Part> parts;
            for (const auto& [bytes, crc32c, version, epoch] : given) {
              parts.push_back(
                  {.file = {.bytes = bytes, .crc32c = crc32c}, .version = version, .epoch = epoch});
            }
            self.commit(id_of(id), parts);
          },
          nb::arg("id"), nb::arg("parts"), Unlocked());

  m.def(
      "shard_weights",
      [](const Slab& slab, size_t shards, size_t shard) {
        const auto ranges = partition(slab.layout(), shards);
        const auto floats = slab.values().subspan(ranges.at(shard).begin, ranges.at(shard).size());
        return nb::bytes(floats.data(), floats.size_bytes());
      },
      nb::arg("slab"), nb::arg("shards"), nb::arg("shard"),
      "Internal: a copy of the floats of one shard.");
  m.def(
      "set_shard_weights",
      [](const Slab& slab, size_t shards, size_t shard, const nb::bytes& weights) {
        const train::Range range = partition(slab.layout(), shards).at(shard);
        const auto floats = floats_of(weights);
        if (floats.size() != range.size()) {
          throw Error(Code::kInvalidArgument, "pull", "weights of another size");
        }
        std::ranges::copy(floats, slab.values().subspan(range.begin, range.size()).begin());
      },
      nb::arg("slab"), nb::arg("shards"), nb::arg("shard"), nb::arg("weights"),
      "Internal: copies the floats of one shard into a slab.");
}

}  // namespace penstock::python
