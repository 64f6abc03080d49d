// From the layout known at run time to the kernel built for it.
#pragma once

#include "base/error.h"
#include "kernels/cuda/attention/attention.h"

namespace quarot::cuda {

namespace detail {
inline Error unsupported(const PageLayout& layout) {
  return error(ErrorCode::kUnsupported,
               "attention: head_dim {}, keys stored in {} bits, values in {}; expected a head_dim "
               "that is a multiple of 16 up to 128, or 256, and bits of 2, 4 or 8 each or 16 both",
               layout.head_dim, layout.key_bits, layout.value_bits);
}

template <int kHeadDim, typename Launch>
Status with_bits(const PageLayout& layout, Launch&& launch) {
  const int k = layout.key_bits;
  const int v = layout.value_bits;
  if (k == 4 && v == 4) return launch.template operator()<kHeadDim, 4, 4>();
  if (k == 16 && v == 16) return launch.template operator()<kHeadDim, 16, 16>();
  if (k == 8 && v == 8) return launch.template operator()<kHeadDim, 8, 8>();
  if (k == 8 && v == 4) return launch.template operator()<kHeadDim, 8, 4>();
  if (k == 4 && v == 8) return launch.template operator()<kHeadDim, 4, 8>();
  if (k == 4 && v == 2) return launch.template operator()<kHeadDim, 4, 2>();
  if (k == 2 && v == 4) return launch.template operator()<kHeadDim, 2, 4>();
  if (k == 2 && v == 2) return launch.template operator()<kHeadDim, 2, 2>();
  if (k == 8 && v == 2) return launch.template operator()<kHeadDim, 8, 2>();
  if (k == 2 && v == 8) return launch.template operator()<kHeadDim, 2, 8>();
  return unsupported(layout);
}
}  // namespace detail

// launch.operator()<head_dim, key_bits, value_bits>() for this layout.
template <typename Launch>
Status with_layout(const PageLayout& layout, Launch&& launch) {
  switch (layout.head_dim) {
    case 16:
      return detail::with_bits<16>(layout, launch);
    case 32:
      return detail::with_bits<32>(layout, launch);
    case 48:
      return detail::with_bits<48>(layout, launch);
    case 64:
      return detail::with_bits<64>(layout, launch);
    case 80:
      return detail::with_bits<80>(layout, launch);
    case 96:
      return detail::with_bits<96>(layout, launch);
    case 112:
      return detail::with_bits<112>(layout, launch);
    case 128:
      return detail::with_bits<128>(layout, launch);
    case 256:
      return detail::with_bits<256>(layout, launch);
    default:
      return detail::unsupported(layout);
  }
}

inline Status check_attention(const PagedCache& cache, const AttentionShape& shape) {
  if (cache.kv_heads > 0 && shape.query_heads > 0 && shape.query_heads % cache.kv_heads == 0 &&
      shape.sequences > 0 && shape.max_length > 0) {
    return {};
  }
  return error(
      ErrorCode::kInvalidArgument,
      "attention: {} sequences of up to {} tokens, {} query heads on {} KV heads; expected "
      "all positive and the query heads a multiple of the KV heads",
      shape.sequences, shape.max_length, shape.query_heads, cache.kv_heads);
}

}  // namespace quarot::cuda
