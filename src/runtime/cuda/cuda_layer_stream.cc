#include "runtime/cuda/cuda_layer_stream.h"

#include <algorithm>

#include "base/memory.h"

namespace quarot::cuda {

namespace {

constexpr int64_t kWindowTokens = 2048;            // for what the layers need
constexpr int64_t kScoreBytes = int64_t{1} << 28;  // of attention

Result<DeviceArray<float>> zeros(int64_t count) {
  QUAROT_ASSIGN_OR_RETURN(DeviceArray<float> array,
                          DeviceArray<float>::make(count, "second moments"));
  QUAROT_RETURN_IF_ERROR(
      check(cudaMemset(array.data(), 0, static_cast<size_t>(array.bytes())), "second moments"));
  return array;
}

Result<Matrix> download(const DeviceArray<float>& array, int64_t rows) {
  Matrix matrix(rows, array.size() / rows);
  QUAROT_RETURN_IF_ERROR(
      check(cudaMemcpy(matrix.data(), array.data(), static_cast<size_t>(array.bytes()),
                       cudaMemcpyDeviceToHost),
            "second moments"));
  return matrix;
}

// A product need not give both triangles the same bits.
void mirror(Matrix& symmetric) {
  for (int64_t r = 0; r < symmetric.rows(); ++r) {
    for (int64_t c = 0; c < r; ++c) symmetric(c, r) = symmetric(r, c);
  }
}

// B, [width, width]; empty for none.
Result<DeviceArray<float>> upload(const Basis& basis, int64_t width) {
  if (basis.is_identity()) return DeviceArray<float>();
  Matrix columns(width, width, 0.0F);
  for (int64_t i = 0; i < width; ++i) columns(i, i) = 1;
  change_basis(columns, basis);
  const Matrix rows = transposed(columns.view());
  return DeviceArray<float>::upload(rows.elements(), "a basis");
}

}  // namespace

Result<std::unique_ptr<LayerStream>> CudaLayerStream::create(const ModelConfig& config,
                                                             const OnlineTransforms& online,
                                                             const Precision& precision,
                                                             Progress& progress) {
  std::unique_ptr<CudaLayerStream> stream(new CudaLayerStream(config, online, progress));
  Model empty;
  empty.config = stream->model().config;
  empty.online = online;
  QUAROT_ASSIGN_OR_RETURN(stream->backend_, SimulatedCudaBackend::create(empty, precision));
  return std::unique_ptr<LayerStream>(std::move(stream));
}

CudaLayerStream::~CudaLayerStream() { cudaFreeHost(on_host_); }

// A layer, what its operations and a basis need, and the widest moments.
int64_t CudaLayerStream::working_bytes() const {
  const ModelConfig& c = model().config;
  const int64_t heads = c.width(Space::kAttentionOutput);
  const int64_t kv = c.width(Space::kKey);
  const int64_t widest = std::max({c.hidden, c.ffn, heads});
  const int64_t layer = 2 * c.hidden * (heads + kv) + 3 * c.hidden * c.ffn;
  const int64_t rows = kWindowTokens * (6 * c.hidden + 3 * c.ffn + 2 * widest + 4 * heads + 8 * kv);
  const int64_t moments = widest * widest + c.hidden * (widest + c.hidden);
  return static_cast<int64_t>(sizeof(float)) * (layer + rows + moments) + kScoreBytes;
}

Status CudaLayerStream::reserve(int64_t tokens) {
  const int64_t bytes = state_bytes(tokens);
  if (check_memory(bytes + working_bytes(), "calibration").ok()) {
    QUAROT_ASSIGN_OR_RETURN(on_gpu_, DeviceArray<float>::make(bytes / 4, "calibration"));
    free_ = on_gpu_.data();
    return {};
  }
  QUAROT_RETURN_IF_ERROR(check_memory(working_bytes(), "calibration: a layer and its moments"));
  if (const int64_t available = available_bytes(); bytes > available) {
    return error(ErrorCode::kOutOfMemory,
                 "calibration: the residual streams of {} tokens need {:.1f} GB, more than the GPU "
                 "has free and than the machine has, {:.1f} GB; use fewer tokens",
                 tokens, 1e-9 * static_cast<double>(bytes), 1e-9 * static_cast<double>(available));
  }
  void* memory = nullptr;
  QUAROT_RETURN_IF_ERROR(
      check(cudaMallocHost(&memory, static_cast<size_t>(bytes)), "page-locked memory"));
  free_ = on_host_ = static_cast<float*>(memory);
  return {};
}

Status CudaLayerStream::add_window(std::span<const Token> tokens, Matrix embedded) {
  const auto rows = static_cast<int64_t>(tokens.size());
  Window window{
      {{tokens.begin(), tokens.end()}, {{0, 0, rows, 0}}}, free_, free_ + embedded.size()};
  free_ = window.attention + rows * model().config.width(Space::kAttentionOutput);
  QUAROT_RETURN_IF_ERROR(
      check(cudaMemcpy(window.residual, embedded.data(),
                       static_cast<size_t>(embedded.size()) * sizeof(float), cudaMemcpyDefault),
            "calibration"));
  windows_.push_back(std::move(window));
  return {};
}

ConstMatrixRef CudaLayerStream::residual(int64_t window) const {
  const Window& kept = windows_[static_cast<size_t>(window)];
  return {kept.residual, kept.batch.rows(), model().config.hidden};
}

void CudaLayerStream::layer_changed() {
  backend_->put_layer(model().layers[0], model().config.sliding_windows[0]);
}

Status CudaLayerStream::run_window(int64_t window, Step step, SiteObserver* observer) {
  const Window& kept = windows_[static_cast<size_t>(window)];
  backend_->set_observer(observer);
  const int sequence = backend_->add_sequence();  // id 0: the only one at a time
  backend_->resume(kept.batch, kept.residual, kept.attention);
  step(*backend_);
  backend_->leave(kept.residual, kept.attention);
  backend_->drop_sequence(sequence);
  return backend_->status();
}

Status CudaLayerStream::wait() {
  QUAROT_RETURN_IF_ERROR(backend_->status());
  return backend_->context().wait();
}

Result<StreamMoments> CudaLayerStream::moments(Space site, Step step,
                                               const ResidualTarget* target) {
  const int64_t width = model().config.width(site);
  const int64_t hidden = model().config.hidden;
  const Context& context = backend_->context();
  QUAROT_ASSIGN_OR_RETURN(DeviceArray<float> inputs, zeros(width * width));
  DeviceArray<float> cross, basis, lacking;
  if (target != nullptr) {
    QUAROT_ASSIGN_OR_RETURN(cross, zeros(hidden * width));
    QUAROT_ASSIGN_OR_RETURN(basis, upload(target->basis, hidden));
  }
  int64_t tokens = 0;
  for (int64_t window = 0; window < windows(); ++window) {
    QUAROT_RETURN_IF_ERROR(check_progress());
    QUAROT_RETURN_IF_ERROR(run_window(window, step, nullptr));
    const float* x = backend_->input();
    const int64_t rows = windows_[static_cast<size_t>(window)].batch.rows();
    const auto total = static_cast<double>(tokens + rows);
    const auto factor = static_cast<float>(2 / total);
    const auto keep = static_cast<float>(static_cast<double>(tokens) / total);
    tokens += rows;
    QUAROT_RETURN_IF_ERROR(
        context.add_moment(factor, x, width, x, width, rows, keep, inputs.data()));
    if (target == nullptr) continue;
    QUAROT_RETURN_IF_ERROR(
        lack(window, site, target->stream->residual(window).data(), basis, lacking));
    QUAROT_RETURN_IF_ERROR(
        context.add_moment(factor, lacking.data(), hidden, x, width, rows, keep, cross.data()));
  }
  QUAROT_RETURN_IF_ERROR(wait());
  QUAROT_ASSIGN_OR_RETURN(Matrix hessian, download(inputs, width));
  mirror(hessian);
  StreamMoments moments{Hessian(std::move(hessian), tokens), {}};
  if (target != nullptr) {
    QUAROT_ASSIGN_OR_RETURN(Matrix lacked, download(cross, hidden));
    moments.lacking.emplace(std::move(lacked), tokens);
  }
  return moments;
}

// What the residual stream would lack after the writer that reads the site. The backend's own goes
// through that writer; the window has kept what it was before.
Status CudaLayerStream::lack(int64_t window, Space site, const float* target,
                             const DeviceArray<float>& basis, DeviceArray<float>& result) {
  const Context& context = backend_->context();
  const int64_t rows = windows_[static_cast<size_t>(window)].batch.rows();
  const int64_t hidden = model().config.hidden;
  const int64_t size = rows * hidden;
  if (site == Space::kAttentionOutput) {
    backend_->project_output(0);
  } else {
    backend_->project_down(0);
  }
  QUAROT_RETURN_IF_ERROR(backend_->status());
  const Result<bool> grown = result.grow(2 * size, "calibration");
  if (!grown.ok()) return grown.error();
  if (basis.size() == 0) {
    QUAROT_RETURN_IF_ERROR(copy_floats(result.data(), target, size, context.stream()));
  } else {
    float* own = result.data() + size;  // the target may lie in the machine's memory
    QUAROT_RETURN_IF_ERROR(copy_floats(own, target, size, context.stream()));
    QUAROT_RETURN_IF_ERROR(
        context.multiply(own, rows, basis.data(), hidden, hidden, result.data()));
  }
  return context.blas().add(-1, backend_->residual(), size, result.data(), "calibration");
}

}  // namespace quarot::cuda
