#include "numpy_memory.h"

#include <cstdlib>
#include <cstring>

#include "numpy_api.h"

namespace penstock::python {

namespace {

struct MemoryContext {
  Allocator* arena;
  size_t threshold;
};

void* allocate(void* context, size_t bytes) {
  auto* c = static_cast<MemoryContext*>(context);
  if (bytes >= c->threshold) {
    if (void* p = c->arena->allocate(bytes)) return p;
  }
  return std::malloc(bytes);
}

void* allocate_zeroed(void* context, size_t count, size_t size) {
  auto* c = static_cast<MemoryContext*>(context);
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) return nullptr;
  if (bytes >= c->threshold) {
    if (void* p = c->arena->allocate(bytes)) return std::memset(p, 0, bytes);
  }
  return std::calloc(count, size);
}

void* resize(void* context, void* p, size_t bytes) {
  auto* c = static_cast<MemoryContext*>(context);
  if (p == nullptr) return allocate(context, bytes);
  if (!c->arena->contains(p)) return std::realloc(p, bytes);
  if (void* q = c->arena->resize(p, bytes)) return q;
  // No space in the arena: use malloc.
  void* q = std::malloc(bytes);
  if (q == nullptr) return nullptr;
  size_t old = c->arena->bytes_of(p);
  std::memcpy(q, p, old < bytes ? old : bytes);
  c->arena->release(p);
  return q;
}

void release(void* context, void* p, size_t) {
  auto* c = static_cast<MemoryContext*>(context);
  if (c->arena->contains(p)) {
    c->arena->release(p);
  } else {
    std::free(p);
  }
}

}  // namespace

bool install_numpy_memory(Allocator& arena, size_t threshold) {
  Owned current(PyDataMem_GetHandler());
  if (!current) {
    PyErr_Clear();
    return false;
  }
  auto* installed =
      static_cast<PyDataMem_Handler*>(PyCapsule_GetPointer(current.get(), "mem_handler"));
  if (installed == nullptr || std::strcmp(installed->name, "default_allocator") != 0) {
    PyErr_Clear();
    return false;
  }
  // Arrays refer to the handler that allocated them, so handler and context are never freed.
  auto* context = new MemoryContext{&arena, threshold};
  auto* handler =
      new PyDataMem_Handler{"penstock", 1, {context, allocate, allocate_zeroed, resize, release}};
  Owned capsule(PyCapsule_New(handler, "mem_handler", nullptr));
  Owned old(capsule ? PyDataMem_SetHandler(capsule.get()) : nullptr);
  if (!old) PyErr_Clear();
  return static_cast<bool>(old);
}

}  // namespace penstock::python
