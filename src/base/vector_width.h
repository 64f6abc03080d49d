// Which width of vector the hand-vectorised float loops use, chosen once at run time. All widths
// give the same bits.
#pragma once

namespace quarot {

enum class VectorWidth { kBaseline, kAvx2, kAvx512 };

// True where this build has loops of that width and this machine can run them.
bool available(VectorWidth width);

// The widest available; no wider than AVX2 where QUAROT_ISA asks for avx2 or avxvnni.
VectorWidth vector_width();

}  // namespace quarot
