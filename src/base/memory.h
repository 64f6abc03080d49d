// Aligned buffers, and what the process has used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace quarot {

// Every kernel may assume this alignment of a buffer's first byte.
inline constexpr size_t kAlignment = 64;

template <typename T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}  // NOLINT: the allocator requirements ask for it
  T* allocate(size_t count) {
    return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{kAlignment}));
  }
  void deallocate(T* pointer, size_t) { ::operator delete (pointer, std::align_val_t{kAlignment}); }
  // Elements are left uninitialised by resize(n): a large buffer is touched once, by who fills it.
  template <typename U>
  void construct(U* pointer) noexcept {
    ::new (static_cast<void*>(pointer)) U;
  }
  template <typename U, typename... Args>
  void construct(U* pointer, Args&&... args) {
    ::new (static_cast<void*>(pointer)) U(std::forward<Args>(args)...);
  }
  template <typename U>
  bool operator==(const AlignedAllocator<U>&) const {
    return true;
  }
};

template <typename T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

// Gives back to the system what was freed. Freed blocks of less than a few MiB stay with the
// process otherwise, and loading a model frees many.
void return_freed_memory();

// What the process holds in memory, in bytes: now, and at most so far.
int64_t resident_bytes();
int64_t peak_resident_bytes();

// What the machine could still give, in bytes; a very large number where it does not say.
int64_t available_bytes();

}  // namespace quarot
