#include "references.h"

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

// Never destroyed: references may end at any time.
struct Ended {
  std::atomic<bool> any{false};
  std::mutex lock;
  std::vector<PyObject*> objects;
};

Ended& ended() {
  static auto* known = new Ended;
  return *known;
}

int release_pending(void*) {
  release_references();
  return 0;
}

struct GiveBack {
  void operator()(PyObject* object) const {
    if (Py_IsInitialized() == 0) return;
    if (PyGILState_Check() != 0) return Py_DECREF(object);
    Ended& all = ended();
    bool first;
    {
      std::lock_guard guard(all.lock);
      first = all.objects.empty();
      all.objects.push_back(object);
      all.any.store(true, std::memory_order_release);
    }
    if (first) Py_AddPendingCall(release_pending, nullptr);
  }
};

}  // namespace

std::shared_ptr<void> share(PyObject* object) {
  return {static_cast<PyObject*>(Py_NewRef(object)), GiveBack()};
}

void release_references() {
  Ended& all = ended();
  if (!all.any.load(std::memory_order_acquire)) return;
  std::vector<PyObject*> objects;
  {
    std::lock_guard guard(all.lock);
    objects = std::exchange(all.objects, {});
    all.any.store(false, std::memory_order_release);
  }
  for (PyObject* object : objects) Py_DECREF(object);
}

}  // namespace penstock::python
