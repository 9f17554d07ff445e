#pragma once

#include <cstdint>
#include <string>

// Epochs order the processes that have had one role in a server, one after the other: the shard
// with a certain number, or the writer of its snapshots. A process that was thought dead and runs
// again has a lower epoch than its replacement, and is refused by that number. Epochs are files in
// the folder of snapshots, which all hosts of a server see: "shard-3.17.epoch". A file is created
// exclusively, so no two processes get the same epoch. docs/training.md, section 8.
namespace penstock::train {

// The role of the process that writes manifests.
inline constexpr char kWriterRole[] = "writer";
std::string shard_role(size_t shard);

// Takes an epoch above all that the role has had, from 1. Removes the files of earlier ones. Errors
// kNotFound: no such folder; kSystem.
uint64_t claim_epoch(const std::string& folder, const std::string& role);

// The highest epoch of a role; 0: none, or the folder cannot be read.
uint64_t newest_epoch(const std::string& folder, const std::string& role);

// Which processes have the state of a shard with two replicas: the contents of an epoch's file.
struct Assignment {
  uint64_t epoch = 0;     // 0: there is none
  uint64_t server = 0;    // the server's id
  uint64_t leader = 0;    // id of the process that serves
  uint64_t follower = 0;  // of the process that has all that the leader acknowledges; 0: none

  bool operator==(const Assignment&) const = default;
};

// The newest assignment; an older one, or none, if another is made at this moment. An epoch that
// was claimed by claim_epoch() has zeros. Error kSystem: the folder cannot be read; kDataLoss: the
// file has been changed.
Assignment newest_assignment(const std::string& folder, const std::string& role);

// Creates the file of epoch `next.epoch`, which is one above the newest that the caller knows.
// False: another process was faster. Removes the files of earlier ones. Errors kNotFound, kSystem;
// the file may have been created then.
bool assign(const std::string& folder, const std::string& role, const Assignment& next);

}  // namespace penstock::train
