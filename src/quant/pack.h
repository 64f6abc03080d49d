// compressed-tensors' "pack-quantized" layout (DESIGN.md section 5): int32 words along the input
// dimension, each holds 32/bits values, q + 2^(bits−1), lowest bits first; rows padded with zeros
// to whole words.
#pragma once

#include "quant/quantizer.h"

namespace quarot {

int64_t packed_words(int64_t width, int bits);
// bits 4 or 8, values in −2^(bits−1)…2^(bits−1)−1.
BasicMatrix<int32_t> pack_int32(MatrixView<const int8_t> values, int bits);
// kUnsupported for other bits; kCorrupt where the words do not fit the width. Padding is not read.
Result<BasicMatrix<int8_t>> unpack_int32(MatrixView<const int32_t> words, int64_t width, int bits);

}  // namespace quarot
