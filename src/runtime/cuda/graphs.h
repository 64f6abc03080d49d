// CUDA graphs of whole passes, so that a pass of many small kernels costs one launch.
#pragma once

#include <map>

#include "runtime/cuda/device.h"

namespace quarot::cuda {

class Graphs {
 public:
  // Passes alike in these enqueue the same kernels on the same memory, until clear().
  struct Key {
    int64_t rows;
    int64_t max_length;
    auto operator<=>(const Key&) const = default;
  };

  Graphs() = default;
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;
  ~Graphs() { clear(); }

  // To be called when memory that a pass uses has moved.
  void clear();

  // True: the whole pass has been launched. Else it is to be enqueued as usual and, where
  // recording() says so, ended by finish(): the second pass of a kind is recorded, for the first
  // has loaded its kernels, and runs then.
  Result<bool> replay(const Key& key, cudaStream_t stream);
  bool recording() const { return recording_ != nullptr; }
  Status finish(cudaStream_t stream);

 private:
  struct Graph {
    bool seen = false;
    cudaGraphExec_t exec = nullptr;
  };
  std::map<Key, Graph> graphs_;
  Graph* recording_ = nullptr;
};

}  // namespace quarot::cuda
