// What this processor can do and the operating system lets it.
#pragma once

namespace quarot::cpu {

bool has_avx2();         // with FMA
bool has_avx_vnni();     // and AVX2
bool has_avx512_vnni();  // and AVX-512 F, BW, DQ and VL
bool has_amx_int8();     // and AVX512-VNNI; asks the kernel for leave to use the tiles
bool has_neon_dot();     // Armv8.2 dot product
bool has_neon_i8mm();    // and products of 8-bit matrices

}  // namespace quarot::cpu
