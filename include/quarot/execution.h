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

// How many threads compute, those of all engines of the process: one a core, or what the
// environment's OMP_NUM_THREADS says, unless set (to 1 or more). From any thread.
int thread_count();
void set_thread_count(int count);

}  // namespace quarot
