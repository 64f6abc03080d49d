#include "runtime/timed_backend.h"

#include <chrono>

namespace quarot {

void TimedBackend::reset() {
  times_ = {{{"embed"},
             {"normalize"},
             {"project q, k, v"},
             {"append to cache"},
             {"attend"},
             {"mix heads"},
             {"project output"},
             {"project gate, up"},
             {"gate"},
             {"project down"},
             {"logits"}}};
}

template <typename Work>
void TimedBackend::time(Operation operation, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  times_[operation].seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void TimedBackend::embed(const Batch& batch) {
  time(kEmbed, [&] { backend_->embed(batch); });
}

void TimedBackend::normalize(int64_t layer, Space site) {
  time(kNormalize, [&] { backend_->normalize(layer, site); });
}

void TimedBackend::project_qkv(int64_t layer) {
  time(kProjectQkv, [&] { backend_->project_qkv(layer); });
}

void TimedBackend::append_cache(int64_t layer) {
  time(kAppendCache, [&] { backend_->append_cache(layer); });
}

void TimedBackend::attend(int64_t layer) {
  time(kAttend, [&] { backend_->attend(layer); });
}

void TimedBackend::mix_heads(int64_t layer) {
  time(kMixHeads, [&] { backend_->mix_heads(layer); });
}

void TimedBackend::project_output(int64_t layer) {
  time(kProjectOutput, [&] { backend_->project_output(layer); });
}

void TimedBackend::project_gate_up(int64_t layer) {
  time(kProjectGateUp, [&] { backend_->project_gate_up(layer); });
}

void TimedBackend::gate(int64_t layer) {
  time(kGate, [&] { backend_->gate(layer); });
}

void TimedBackend::project_down(int64_t layer) {
  time(kProjectDown, [&] { backend_->project_down(layer); });
}

void TimedBackend::logits(int64_t first, int64_t count, MatrixRef out) {
  time(kLogits, [&] { backend_->logits(first, count, out); });
}

}  // namespace quarot
