// float16 wgmma with its operand A in registers and float32 accumulators (sm_90a).
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda {

// Before a barrier after which wgmma reads what this thread has stored in shared memory.
__device__ __forceinline__ void wgmma_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// An operand B of float16 [n, k], or with kTransposed [k, n], in planes of 64 elements of a row,
// 128 bytes, swizzled (swizzled_descriptor). Transposed, planes of n lie `plane` bytes apart and 16
// of k are 2048 bytes.
__device__ __forceinline__ uint64_t transposed_descriptor(uint32_t shared, uint32_t plane) {
  return (swizzled_descriptor(shared) & ~(uint64_t{0x3fff} << 16)) | uint64_t{plane >> 4} << 16;
}

// Of 32 elements of n in rows of 64 bytes, swizzled in fours of two rows (SWIZZLE_64B): 16 of k are
// 1024 bytes.
__device__ __forceinline__ uint64_t narrow_descriptor(uint32_t shared) {
  constexpr uint64_t kStrideBytes = 512;
  constexpr uint64_t kSwizzle64 = 2;
  return (shared & 0x3ffffU) >> 4 | kStrideBytes >> 4 << 32 | kSwizzle64 << 62;
}

// d [64, n] (+)= A [64, 16] · B; adds to d where `add` is not 0. Warp w of the warpgroup holds rows
// 16w…16w+15 of A and d as mma m16n8k16 does: d[4j…4j+3] is the accumulator of columns 8j…8j+7.
// Asynchronous: a and d are not to be touched before wgmma_wait. n = 32:
template <bool kTransposed>
__device__ __forceinline__ void wgmma_f16(float (&d)[16], const uint32_t (&a)[4], uint64_t b,
                                          int add) {
  asm volatile(
      "{\n.reg .pred add;\n"
      "setp.ne.b32 add, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, add, 1, 1, %22;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(int{kTransposed}));
}

// n = 64:
template <bool kTransposed>
__device__ __forceinline__ void wgmma_f16(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                          int add) {
  asm volatile(
      "{\n.reg .pred add;\n"
      "setp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(int{kTransposed}));
}

// n = 128:
template <bool kTransposed>
__device__ __forceinline__ void wgmma_f16(float (&d)[64], const uint32_t (&a)[4], uint64_t b,
                                          int add) {
  asm volatile(
      "{\n.reg .pred add;\n"
      "setp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, add, 1, 1, %70;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(int{kTransposed}));
}

// Keeps the compiler from moving what makes or uses x across this place.
template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
__device__ __forceinline__ void wgmma_pin(uint32_t (&x)[4]) {
  asm volatile("" : "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3])::"memory");
}

}  // namespace quarot::cuda
