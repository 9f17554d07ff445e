#pragma once

#include <atomic>
#include <cstdint>

#include "penstock/base/os.h"

// More of what os.h declares, for the few who need it: waking some of those who sleep on a word,
// and timers. What os.h says of threads and errors holds here, too.
namespace penstock::os {

// futex_wait() and futex_wake() on a word that processes share, by groups, a bit each: who sleeps
// is in one or more, and a wake concerns those who are in any of its groups.
Woken futex_wait_in(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns,
                    uint32_t groups);
void futex_wake_in(std::atomic<uint32_t>& word, int how_many, uint32_t groups);

// A descriptor that is readable once the time that was set last (> 0) is over, until clear_event.
// Non-blocking and closed on exec. Setting it wakes nobody now.
Fd timer();
void set_timer(int fd, int64_t after_ns);

}  // namespace penstock::os
