// The instructions CUDA C++ has no name for, one thin function each. PTX ISA 9.0,
// https://docs.nvidia.com/cuda/parallel-thread-execution/. Guard what needs sm_90 or sm_90a with
// __CUDA_ARCH__ >= 900 or __CUDA_ARCH_FEAT_SM90_ALL where it is used.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>

namespace quarot::cuda {

// ---- Shared memory
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Lane l gives the address of row l (16 bytes) of matrix l / 8; register i then holds, of matrix i,
// row lane / 4 bytes 4·(lane % 4)…+3.
__device__ __forceinline__ void load_matrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// What one thread of the block stored before, another sees that has loaded the word stored.
__device__ __forceinline__ void store_release(uint32_t shared, int word) {
  asm volatile("st.release.cta.shared::cta.s32 [%0], %1;" ::"r"(shared), "r"(word) : "memory");
}
__device__ __forceinline__ int load_acquire(uint32_t shared) {
  int word;
  asm volatile("ld.acquire.cta.shared::cta.s32 %0, [%1];" : "=r"(word) : "r"(shared) : "memory");
  return word;
}
__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// ---- Global memory
// What will not be read again: L1 keeps it not.
__device__ __forceinline__ uint4 load_once_16(const void* pointer) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer));
  return v;
}
__device__ __forceinline__ float load_once_4(const void* pointer) {
  float v;
  asm volatile("ld.global.L1::no_allocate.f32 %0, [%1];" : "=f"(v) : "l"(pointer));
  return v;
}
__device__ __forceinline__ uint2 load_once_8(const void* pointer) {
  uint2 v;
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(pointer));
  return v;
}
// Brings the 128-byte line into L2, without waiting.
__device__ __forceinline__ void prefetch_l2(const void* pointer) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
}

// The same into L1.
__device__ __forceinline__ void touch(const void* pointer) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(pointer));
}
// Orders what this thread, and those it met at a barrier, wrote before what it writes after it.
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// ---- cp.async (sm_80): 16 bytes, or zeros instead where `valid` is false.
__device__ __forceinline__ void copy_async_16(uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
// With a policy of the L2 cache.
__device__ __forceinline__ void copy_async_16_policy(uint32_t shared, const void* global,
                                                     uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared),
               "l"(global), "l"(policy)
               : "memory");
}
// For what will not be read again.
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- Words that blocks of one grid exchange while it runs: never from or into L1, whole.
__device__ __forceinline__ ulonglong2 load_relaxed(const ulonglong2* pointer) {
  ulonglong2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(v.x), "=l"(v.y)
               : "l"(pointer)
               : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_relaxed(const uint4* pointer) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer)
               : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_relaxed(const uint2* pointer) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(pointer)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_relaxed(const float* pointer) {
  uint32_t x;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(pointer) : "memory");
  return x;
}
__device__ __forceinline__ void store_relaxed(void* pointer, uint32_t x) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(pointer), "r"(x) : "memory");
}
// Each of the two is whole, not both together.
__device__ __forceinline__ void store_relaxed(void* pointer, uint32_t x, uint32_t y) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(pointer), "r"(x), "r"(y)
               : "memory");
}
// Returns what was there.
__device__ __forceinline__ uint64_t fetch_add_relaxed(uint64_t* pointer, uint64_t x) {
  uint64_t before;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(pointer), "l"(x)
               : "memory");
  return before;
}
__device__ __forceinline__ void add_relaxed(uint64_t* pointer, uint64_t x) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(pointer), "l"(x) : "memory");
}

// ---- mma.sync, D += A·B with int32 accumulators
// m16n8k32: lane (g, t) = (lane / 4, lane % 4) holds A rows g, g+8, g, g+8 at k 4t, 4t, 16+4t,
// 16+4t (…+3); B column g at k 4t, 16+4t; D rows g, g, g+8, g+8 at columns 2t, 2t+1, 2t, 2t+1.
__device__ __forceinline__ void mma_s8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                       uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// m16n8k64: the same with eight nibbles, low first, in place of four bytes.
__device__ __forceinline__ void mma_s4(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                       uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- Named barriers among `threads` threads of a block; 0 is __syncthreads'.
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- mbarrier, sm_90
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes the inits visible to the copy engine and to the other blocks of the cluster.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// On the barrier at the same offset in block `rank` of the cluster. Orders what this thread read of
// its own shared memory; released at the cluster's scope it would cost a fence of global memory.
__device__ __forceinline__ void mbarrier_arrive_remote(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// Arrives and announces the bytes that copies will deliver.
__device__ __forceinline__ void mbarrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Until the phase of this parity has completed.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- Between ordinary accesses of shared memory and bulk copies into the same place.
__device__ __forceinline__ void fence_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- Bulk copies, sm_90. Completion is announced on an mbarrier.
// Contiguous bytes, a multiple of 16, both ends aligned to 16.
__device__ __forceinline__ void copy_bulk(uint32_t shared, const void* global, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}
// The box of a tensor map (a const __grid_constant__ CUtensorMap parameter) at (x, y), x innermost.
__device__ __forceinline__ void copy_tensor(uint32_t shared, const void* map, int x, int y,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// The same into every block of the cluster whose bit is set in `blocks`, at the same offset, each
// block's own barrier at that offset being told.
__device__ __forceinline__ void copy_tensor_multicast(uint32_t shared, const void* map, int x,
                                                      int y, uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---- Clusters, sm_90
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// 16 bytes at this address of shared memory in block `rank` of the cluster.
__device__ __forceinline__ int4 load_cluster(uint32_t shared, uint32_t rank) {
  int4 v;
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.s32 {%0, %1, %2, %3}, [remote];\n}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "r"(shared), "r"(rank)
      : "memory");
  return v;
}

// One float at this address in block `rank` of the cluster.
__device__ __forceinline__ void store_cluster(uint32_t shared, uint32_t rank, float x) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "st.shared::cluster.f32 [remote], %2;\n}" ::"r"(shared),
      "r"(rank), "f"(x)
      : "memory");
}

// ---- Dependent launches, sm_90: the next kernel of the stream may start; the results of the one
// before are complete. Both do nothing where the launch did not ask for it.
__device__ __forceinline__ void dependents_launch() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void dependency_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// ---- wgmma, sm_90a
template <int kRegisters>
__device__ __forceinline__ void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// A K-major operand in rows of 128 bytes, swizzled as a tensor map's SWIZZLE_128B does it; groups
// of 8 rows 1024 bytes apart, the tile aligned to 1024. Advance along K by adding bytes / 16.
__device__ __forceinline__ uint64_t swizzled_descriptor(uint32_t shared) {
  constexpr uint64_t kStrideBytes = 1024;
  constexpr uint64_t kSwizzle128 = 1;
  return (shared & 0x3ffffU) >> 4 | uint64_t{1} << 16 | kStrideBytes >> 4 << 32 | kSwizzle128 << 62;
}

}  // namespace quarot::cuda
