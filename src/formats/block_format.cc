#include "formats/block_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "formats/ggml_blocks.h"
#include "tensor/dtype.h"

namespace quarot {

static_assert(std::endian::native == std::endian::little, "the file formats are little-endian");

namespace {

// `data` may lie at any address: each value is copied out before it is looked at.
template <typename Stored, auto kConvert>
void decode_numbers(const std::byte* __restrict data, int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    Stored stored;
    std::memcpy(&stored, data + i * static_cast<int64_t>(sizeof(Stored)), sizeof(Stored));
    out[i] = kConvert(stored);
  }
}

template <typename Block>
void decode_blocks(const std::byte* data, int64_t blocks, float* out) {
  for (int64_t i = 0; i < blocks; ++i) {
    Block block;
    std::memcpy(&block, data + i * static_cast<int64_t>(sizeof(Block)), sizeof(Block));
    block.dequantize(out + i * Block::kElements);
  }
}

template <typename Number>
constexpr BlockFormat number(std::string_view name) {
  constexpr auto kConvert = [](Number value) { return static_cast<float>(value); };
  return {name, 1, sizeof(Number), decode_numbers<Number, kConvert>};
}

template <typename Block>
constexpr BlockFormat block(std::string_view name) {
  return {name, Block::kElements, sizeof(Block), decode_blocks<Block>};
}

constexpr BlockFormat opaque(std::string_view name, int64_t elements, int64_t bytes) {
  return {name, elements, bytes, nullptr};
}

constexpr BlockFormat kF16 = {"F16", 1, 2, decode_numbers<uint16_t, f16_to_float>};
constexpr BlockFormat kBF16 = {"BF16", 1, 2, decode_numbers<uint16_t, bf16_to_float>};

constexpr std::array kSafetensors = {
    number<double>("F64"),
    number<float>("F32"),
    kF16,
    kBF16,
    number<int64_t>("I64"),
    number<int32_t>("I32"),
    number<int16_t>("I16"),
    number<int8_t>("I8"),
    number<uint64_t>("U64"),
    number<uint32_t>("U32"),
    number<uint16_t>("U16"),
    number<uint8_t>("U8"),
    opaque("BOOL", 1, 1),
    opaque("F8_E4M3", 1, 1),
    opaque("F8_E5M2", 1, 1),
    opaque("F8_E8M0", 1, 1),
    opaque("C64", 1, 8),
    opaque("F4", 2, 1),
};

struct GgmlRow {
  uint32_t type;
  BlockFormat format;
};

// Numbers as in ggml.h; those missing were removed from it.
constexpr std::array kGgml = {
    GgmlRow{0, number<float>("F32")},
    GgmlRow{1, kF16},
    GgmlRow{2, block<ggml::Q4_0>("Q4_0")},
    GgmlRow{3, block<ggml::Q4_1>("Q4_1")},
    GgmlRow{6, block<ggml::Q5_0>("Q5_0")},
    GgmlRow{7, block<ggml::Q5_1>("Q5_1")},
    GgmlRow{8, block<ggml::Q8_0>("Q8_0")},
    GgmlRow{9, opaque("Q8_1", 32, 40)},
    GgmlRow{10, block<ggml::Q2K>("Q2_K")},
    GgmlRow{11, block<ggml::Q3K>("Q3_K")},
    GgmlRow{12, block<ggml::Q4K>("Q4_K")},
    GgmlRow{13, block<ggml::Q5K>("Q5_K")},
    GgmlRow{14, block<ggml::Q6K>("Q6_K")},
    GgmlRow{15, opaque("Q8_K", 256, 292)},
    GgmlRow{16, opaque("IQ2_XXS", 256, 66)},
    GgmlRow{17, opaque("IQ2_XS", 256, 74)},
    GgmlRow{18, opaque("IQ3_XXS", 256, 98)},
    GgmlRow{19, opaque("IQ1_S", 256, 50)},
    GgmlRow{20, block<ggml::Iq4Nl>("IQ4_NL")},
    GgmlRow{21, opaque("IQ3_S", 256, 110)},
    GgmlRow{22, opaque("IQ2_S", 256, 82)},
    GgmlRow{23, opaque("IQ4_XS", 256, 136)},
    GgmlRow{24, number<int8_t>("I8")},
    GgmlRow{25, number<int16_t>("I16")},
    GgmlRow{26, number<int32_t>("I32")},
    GgmlRow{27, number<int64_t>("I64")},
    GgmlRow{28, number<double>("F64")},
    GgmlRow{29, opaque("IQ1_M", 256, 56)},
    GgmlRow{30, kBF16},
    GgmlRow{34, opaque("TQ1_0", 256, 54)},
    GgmlRow{35, opaque("TQ2_0", 256, 66)},
    GgmlRow{39, opaque("MXFP4", 32, 17)},
};

}  // namespace

Result<int64_t> BlockFormat::bytes(std::span<const int64_t> shape) const {
  const int64_t cols = shape.empty() ? 1 : shape.back();
  if (cols % block_elements != 0) {
    return error(ErrorCode::kCorrupt, "rows of {} elements, expected a multiple of {} for {}", cols,
                 block_elements, name);
  }
  int64_t product =
      block_bytes;  // times the elements: stricter than the bytes, far beyond any file
  bool empty = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0) {
      return error(ErrorCode::kCorrupt, "shape [{}] has a negative dimension",
                   fmt::join(shape, ", "));
    }
    empty |= dimension == 0;
    if (__builtin_mul_overflow(product, std::max<int64_t>(dimension, 1), &product)) {
      return error(ErrorCode::kCorrupt, "shape [{}] is too large", fmt::join(shape, ", "));
    }
  }
  return empty ? 0 : product / block_elements;
}

const BlockFormat* safetensors_format(std::string_view dtype) {
  const auto* row = std::ranges::find(kSafetensors, dtype, &BlockFormat::name);
  return row == kSafetensors.end() ? nullptr : &*row;
}

const BlockFormat* ggml_format(uint32_t type) {
  const auto* row = std::ranges::find(kGgml, type, &GgmlRow::type);
  return row == kGgml.end() ? nullptr : &row->format;
}

}  // namespace quarot
