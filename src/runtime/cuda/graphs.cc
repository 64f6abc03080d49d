#include "runtime/cuda/graphs.h"

#include <utility>

namespace quarot::cuda {

void Graphs::clear() {
  for (auto& [key, graph] : graphs_) {
    if (graph.exec != nullptr) cudaGraphExecDestroy(graph.exec);
  }
  graphs_.clear();
}

Result<bool> Graphs::replay(const Key& key, cudaStream_t stream) {
  Graph& graph = graphs_[key];
  if (graph.exec != nullptr) {
    QUAROT_RETURN_IF_ERROR(check(cudaGraphLaunch(graph.exec, stream), "a CUDA graph"));
    return true;
  }
  if (!std::exchange(graph.seen, true)) return false;
  QUAROT_RETURN_IF_ERROR(check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                               "recording a CUDA graph"));
  recording_ = &graph;
  return false;
}

Status Graphs::finish(cudaStream_t stream) {
  Graph& recorded = *std::exchange(recording_, nullptr);
  cudaGraph_t graph = nullptr;
  QUAROT_RETURN_IF_ERROR(check(cudaStreamEndCapture(stream, &graph), "recording a CUDA graph"));
  const cudaError_t code = cudaGraphInstantiate(&recorded.exec, graph, 0);
  cudaGraphDestroy(graph);
  QUAROT_RETURN_IF_ERROR(check(code, "a CUDA graph"));
  return check(cudaGraphLaunch(recorded.exec, stream), "a CUDA graph");
}

}  // namespace quarot::cuda
