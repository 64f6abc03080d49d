// How the elements of a RowTable are stored. Apart from it so that files compiled for one
// instruction set can include it: there is no function here.
#pragma once

namespace quarot {

enum class Storage { kF32, kF16, kBF16, kInt8, kInt4 };

}  // namespace quarot
