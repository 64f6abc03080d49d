// Uniformly random orthogonal matrices.
#pragma once

#include <cstdint>

#include "tensor/matrix.h"

namespace quarot {

// The n × n factor Q of the QR decomposition of a Gaussian matrix, with the signs that make R's
// diagonal positive, so that Q is uniform (Haar) over the orthogonal group. The reflections are
// drawn directly, each from a Gaussian vector of its own length, which has the same distribution
// (G. W. Stewart, SIAM J. Numer. Anal. 17, 1980): half the work, and no Gaussian matrix.
// The same seed gives the same matrix with any number of threads; the bits may differ between
// machines where their C libraries' logarithms do.
BasicMatrix<double> haar_random(int64_t n, uint64_t seed);

}  // namespace quarot
