// The tables that the folders of the instruction sets define.
#pragma once

#include "kernels/cpu/dispatch.h"

namespace quarot::cpu {

extern const FloatKernels kScalarFloats;
extern const Kernels kScalar;
#if defined(__x86_64__)
extern const FloatKernels kAvx2Floats;
extern const FloatKernels kAvx512Floats;
extern const Kernels kAvx2;
extern const Kernels kAvxVnni;
extern const Kernels kAvx512Vnni;
extern const Kernels kAmx;
#elif defined(__aarch64__)
extern const FloatKernels kNeonFloats;
extern const Kernels kNeonDot;
extern const Kernels kNeonI8mm;
#endif

}  // namespace quarot::cpu
