// llama.cpp's quantised blocks, each as it lies in a file: little-endian, no padding. The values
// are defined by the float32 operations below in this order; the `gguf` Python package computes the
// same bits. https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
//
// In every struct `d` (and `m`, `dmin`) is a float16. dequantize() writes kElements floats.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/dtype.h"

namespace quarot::ggml {

// w = d·(q − 8). Byte j: element j in the low nibble, j + 16 in the high one.
struct Q4_0 {
  static constexpr int kElements = 32;
  uint16_t d;
  uint8_t q[16];

  void dequantize(float* out) const {
    const float scale = f16_to_float(d);
    for (int j = 0; j < 16; ++j) {
      out[j] = scale * static_cast<float>((q[j] & 15) - 8);
      out[j + 16] = scale * static_cast<float>((q[j] >> 4) - 8);
    }
  }
};

// w = d·q + m. Nibbles as in Q4_0.
struct Q4_1 {
  static constexpr int kElements = 32;
  uint16_t d;
  uint16_t m;
  uint8_t q[16];

  void dequantize(float* out) const {
    const float scale = f16_to_float(d);
    const float minimum = f16_to_float(m);
    for (int j = 0; j < 16; ++j) {
      out[j] = scale * static_cast<float>(q[j] & 15) + minimum;
      out[j + 16] = scale * static_cast<float>(q[j] >> 4) + minimum;
    }
  }
};

// The fifth bit of element j of a Q5_0 or Q5_1 block: bit j of `high`, in its place.
inline int fifth_bit(const uint8_t (&high)[4], int j) {
  return ((high[j / 8] >> (j % 8)) & 1) << 4;
}

// w = d·(q − 16). Low four bits as in Q4_0, fifth bits apart.
struct Q5_0 {
  static constexpr int kElements = 32;
  uint16_t d;
  uint8_t high[4];
  uint8_t low[16];

  void dequantize(float* out) const {
    const float scale = f16_to_float(d);
    for (int j = 0; j < 16; ++j) {
      out[j] = scale * static_cast<float>(((low[j] & 15) | fifth_bit(high, j)) - 16);
      out[j + 16] = scale * static_cast<float>(((low[j] >> 4) | fifth_bit(high, j + 16)) - 16);
    }
  }
};

// w = d·q + m. Bits as in Q5_0.
struct Q5_1 {
  static constexpr int kElements = 32;
  uint16_t d;
  uint16_t m;
  uint8_t high[4];
  uint8_t low[16];

  void dequantize(float* out) const {
    const float scale = f16_to_float(d);
    const float minimum = f16_to_float(m);
    for (int j = 0; j < 16; ++j) {
      out[j] = scale * static_cast<float>((low[j] & 15) | fifth_bit(high, j)) + minimum;
      out[j + 16] = scale * static_cast<float>((low[j] >> 4) | fifth_bit(high, j + 16)) + minimum;
    }
  }
};

// w = d·q.
struct Q8_0 {
  static constexpr int kElements = 32;
  uint16_t d;
  int8_t q[32];

  void dequantize(float* out) const {
    const float scale = f16_to_float(d);
    for (int j = 0; j < 32; ++j) out[j] = scale * static_cast<float>(q[j]);
  }
};

// w = d·kLevels[q]: sixteen levels spaced for Gaussian weights. Nibbles as in Q4_0.
struct Iq4Nl {
  static constexpr int kElements = 32;
  static constexpr float kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
  uint16_t d;
  uint8_t q[16];

  void dequantize(float* out) const {
    const float scale = f16_to_float(d);
    for (int j = 0; j < 16; ++j) {
      out[j] = scale * kLevels[q[j] & 15];
      out[j + 16] = scale * kLevels[q[j] >> 4];
    }
  }
};

// The K formats: 256 elements in runs of 16 or 32, each run with a small integer scale (and
// minimum) of its own. Two-bit parts lie so that byte 32h + i holds elements 128h + 32k + i,
// k = 0…3, from the low bits up.

// w = (d·s)·q − (dmin·m), runs of 16; a run's s is the low nibble of its scale byte, m the high.
struct Q2K {
  static constexpr int kElements = 256;
  uint8_t scales[16];
  uint8_t q[64];
  uint16_t d;
  uint16_t dmin;

  void dequantize(float* out) const {
    const float scale = f16_to_float(d);
    const float minimum = f16_to_float(dmin);
    for (int run = 0; run < 16; ++run) {
      const uint8_t* bytes = q + run / 8 * 32 + run % 2 * 16;
      const int shift = run % 8 / 2 * 2;
      const float s = scale * static_cast<float>(scales[run] & 15);
      const float m = minimum * static_cast<float>(scales[run] >> 4);
      for (int i = 0; i < 16; ++i) {
        out[run * 16 + i] = s * static_cast<float>((bytes[i] >> shift) & 3) - m;
      }
    }
  }
};

// w = (d·(s − 32))·(q − 4), runs of 16. q has three bits: two as in Q2_K, and the third of element
// 32b + i in bit b of high[i]. s has six: run r's low four in nibble r / 8 of scales[r % 8], its
// high two in bits 2(r / 4)… of scales[8 + r % 4].
struct Q3K {
  static constexpr int kElements = 256;
  uint8_t high[32];
  uint8_t low[64];
  uint8_t scales[12];
  uint16_t d;

  void dequantize(float* out) const {
    const float scale = f16_to_float(d);
    for (int run = 0; run < 16; ++run) {
      const uint8_t* low_bytes = low + run / 8 * 32 + run % 2 * 16;
      const uint8_t* high_bytes = high + run % 2 * 16;
      const int shift = run % 8 / 2 * 2;
      const int bit = run / 2;
      const float s = scale * static_cast<float>(run_scale(run) - 32);
      for (int i = 0; i < 16; ++i) {
        const int value = ((low_bytes[i] >> shift) & 3) | ((high_bytes[i] >> bit) & 1) << 2;
        out[run * 16 + i] = s * static_cast<float>(value - 4);
      }
    }
  }

 private:
  int run_scale(int run) const {
    const int low_bits = (scales[run % 8] >> (run / 8 * 4)) & 15;
    const int high_bits = (scales[8 + run % 4] >> (run / 4 * 2)) & 3;
    return low_bits | high_bits << 4;
  }
};

// Scale and minimum of run r of Q4_K and Q5_K, six bits each. Runs 0…3: the low six bits of byte r
// and of byte r + 4. Runs 4…7: the nibbles of byte r + 4, topped by the two high bits of bytes
// r − 4 and r.
struct ScaleAndMinimum {
  int scale;
  int minimum;
};
inline ScaleAndMinimum scale_and_minimum(const uint8_t (&packed)[12], int run) {
  if (run < 4) return {packed[run] & 63, packed[run + 4] & 63};
  return {(packed[run + 4] & 15) | packed[run - 4] >> 6 << 4,
          packed[run + 4] >> 4 | packed[run] >> 6 << 4};
}

// w = (d·s)·q − (dmin·m), runs of 32. Byte 32c + i: element 64c + i low, 64c + 32 + i high.
struct Q4K {
  static constexpr int kElements = 256;
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t q[128];

  void dequantize(float* out) const {
    const float scale = f16_to_float(d);
    const float minimum = f16_to_float(dmin);
    for (int run = 0; run < 8; ++run) {
      const auto [run_scale, run_minimum] = scale_and_minimum(scales, run);
      const uint8_t* bytes = q + run / 2 * 32;
      const int shift = run % 2 * 4;
      const float s = scale * static_cast<float>(run_scale);
      const float m = minimum * static_cast<float>(run_minimum);
      for (int i = 0; i < 32; ++i) {
        out[run * 32 + i] = s * static_cast<float>((bytes[i] >> shift) & 15) - m;
      }
    }
  }
};

// Q4_K with a fifth bit: that of element 32b + i in bit b of high[i].
struct Q5K {
  static constexpr int kElements = 256;
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t high[32];
  uint8_t low[128];

  void dequantize(float* out) const {
    const float scale = f16_to_float(d);
    const float minimum = f16_to_float(dmin);
    for (int run = 0; run < 8; ++run) {
      const auto [run_scale, run_minimum] = scale_and_minimum(scales, run);
      const uint8_t* bytes = low + run / 2 * 32;
      const int shift = run % 2 * 4;
      const float s = scale * static_cast<float>(run_scale);
      const float m = minimum * static_cast<float>(run_minimum);
      for (int i = 0; i < 32; ++i) {
        const int value = ((bytes[i] >> shift) & 15) | ((high[i] >> run) & 1) << 4;
        out[run * 32 + i] = s * static_cast<float>(value) - m;
      }
    }
  }
};

// w = (d·s)·(q − 32), runs of 16. Low four bits: byte 64h + j holds element 128h + j low and
// 128h + 64 + j high. High two as in Q2_K.
struct Q6K {
  static constexpr int kElements = 256;
  uint8_t low[128];
  uint8_t high[64];
  int8_t scales[16];
  uint16_t d;

  void dequantize(float* out) const {
    const float scale = f16_to_float(d);
    for (int run = 0; run < 16; ++run) {
      const uint8_t* low_bytes = low + run / 8 * 64 + run % 4 * 16;
      const uint8_t* high_bytes = high + run / 8 * 32 + run % 2 * 16;
      const int low_shift = run % 8 / 4 * 4;
      const int high_shift = run % 8 / 2 * 2;
      const float s = scale * static_cast<float>(scales[run]);
      for (int i = 0; i < 16; ++i) {
        const int value = ((low_bytes[i] >> low_shift) & 15) | ((high_bytes[i] >> high_shift) & 3)
                                                                   << 4;
        out[run * 16 + i] = s * static_cast<float>(value - 32);
      }
    }
  }
};

}  // namespace quarot::ggml
