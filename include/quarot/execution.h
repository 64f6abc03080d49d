// How and where a model is computed.
#pragma once

namespace quarot {

enum class Execution {
  kAutomatic,  // packed where the model has a packed form, else simulated
  kPacked,     // integers
  kSimulated,  // float32, quantisers simulated: any recipe
};

enum class Device {
  kCpu,
  kCuda,  // an NVIDIA GPU, in builds that know of one
};

}  // namespace quarot
