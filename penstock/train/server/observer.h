#pragma once

#include <functional>
#include <string>

namespace penstock::train {

// What the shard at an address says of itself: JSON, see Shard::stats(). Whoever only asks this is
// no worker: nobody waits for it. Connects, asks and leaves. Secret and encryption are the
// server's. while_waiting is called several times a second and may throw. Any thread.
//
// Errors: those of net::connect(); kTimeout, kClosed, kDataLoss (what answers is no shard).
std::string shard_stats(const std::string& address, const std::string& secret, bool encrypt,
                        double timeout_s, const std::function<void()>& while_waiting = {});

}  // namespace penstock::train
