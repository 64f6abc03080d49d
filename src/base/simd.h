// Portable loops, several instruction sets: the compiler makes one clone of the function for each
// and the loader picks. With -ffp-contract=off all clones give the same bits. Hand-written kernels
// live in kernels/.
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QUAROT_SANITIZED 1
#endif
#endif

// Sanitizers are not ready yet when the loader picks; there the baseline serves.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(QUAROT_SANITIZED)
#define QUAROT_SIMD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define QUAROT_SIMD_CLONES
#endif
