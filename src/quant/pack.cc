#include "quant/pack.h"

#include <algorithm>
#include <cassert>

#include "base/error.h"
#include "base/parallel.h"

namespace quarot {

namespace {

constexpr int kWordBits = 32;
constexpr int64_t kRowsPerThread = 16;

bool packable(int bits) { return bits == 4 || bits == 8; }

}  // namespace

int64_t packed_words(int64_t width, int bits) {
  const int64_t per_word = kWordBits / bits;
  return width / per_word + (width % per_word != 0 ? 1 : 0);
}

BasicMatrix<int32_t> pack_int32(MatrixView<const int8_t> values, int bits) {
  assert(packable(bits));
  const int64_t per_word = kWordBits / bits;
  const int32_t offset = 1 << (bits - 1);
  BasicMatrix<int32_t> words(values.rows(), packed_words(values.cols(), bits));
  parallel_for(values.rows(), kRowsPerThread, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      for (int64_t i = 0; i < words.cols(); ++i) {
        const int64_t begin = i * per_word;
        const int64_t count = std::min(per_word, values.cols() - begin);
        uint32_t word = 0;
        for (int64_t j = 0; j < count; ++j) {
          word |= static_cast<uint32_t>(values(r, begin + j) + offset) << (j * bits);
        }
        words(r, i) = static_cast<int32_t>(word);
      }
    }
  });
  return words;
}

Result<BasicMatrix<int8_t>> unpack_int32(MatrixView<const int32_t> words, int64_t width, int bits) {
  if (!packable(bits)) {
    return error(ErrorCode::kUnsupported, "packed weights of {} bits; expected 4 or 8", bits);
  }
  if (width < 0 || words.cols() != packed_words(width, bits)) {
    return error(
        ErrorCode::kCorrupt,
        "packed weights: {} words a row cannot hold {} values of {} bits; expected {} words",
        words.cols(), width, bits, packed_words(std::max<int64_t>(width, 0), bits));
  }
  const int64_t per_word = kWordBits / bits;
  const uint32_t mask = (1U << bits) - 1;
  const int32_t offset = 1 << (bits - 1);
  BasicMatrix<int8_t> values(words.rows(), width);
  parallel_for(words.rows(), kRowsPerThread, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        const auto word = static_cast<uint32_t>(words(r, c / per_word));
        const uint32_t field = word >> (c % per_word * bits) & mask;
        values(r, c) = static_cast<int8_t>(static_cast<int32_t>(field) - offset);
      }
    }
  });
  return values;
}

}  // namespace quarot
