#include "runtime/cuda/blas.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace quarot::cuda {

namespace {

struct Library {
  void* handle = nullptr;  // null: not to be had
  std::string reason;
  decltype(&cublasCreate) create = nullptr;
  decltype(&cublasDestroy) destroy = nullptr;
  decltype(&cublasGetStatusString) message = nullptr;
  decltype(&cublasSetStream) set_stream = nullptr;
  decltype(&cublasSetMathMode) set_math_mode = nullptr;
  decltype(&cublasSgemm) gemm = nullptr;
  decltype(&cublasSgemmStridedBatched) gemm_each = nullptr;
  // Its name has overloads.
  cublasStatus_t (*gemm_ex)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                            const void*, const void*, cudaDataType, int, const void*, cudaDataType,
                            int, const void*, void*, cudaDataType, int, cublasComputeType_t,
                            cublasGemmAlgo_t) = nullptr;
  decltype(&cublasSaxpy) axpy = nullptr;

  Library();

 private:
  template <typename Function>
  bool find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    return function != nullptr;
  }
  bool find_all();
};

// By the names that the header's declarations stand for.
bool Library::find_all() {
  return find("cublasCreate_v2", create) && find("cublasDestroy_v2", destroy) &&
         find("cublasGetStatusString", message) && find("cublasSetStream_v2", set_stream) &&
         find("cublasSetMathMode", set_math_mode) && find("cublasSgemm_v2", gemm) &&
         find("cublasSgemmStridedBatched", gemm_each) && find("cublasGemmEx", gemm_ex) &&
         find("cublasSaxpy_v2", axpy);
}

Library::Library() {
  const std::string name = fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR);
  handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr && find_all()) return;
  const char* said = dlerror();
  reason = said != nullptr ? said : name;
  if (handle != nullptr) dlclose(handle);
  handle = nullptr;
}

// Loaded once, never unloaded: what runs at the program's end may still need it.
const Library& library() {
  static const Library loaded;
  return loaded;
}

int narrow(int64_t x) { return static_cast<int>(x); }

Status check(cublasStatus_t code, const char* what) {
  if (code == CUBLAS_STATUS_SUCCESS) return {};
  return error(ErrorCode::kUnsupported, "{}: cuBLAS: {}", what, library().message(code));
}

}  // namespace

Blas::~Blas() {
  if (handle_ != nullptr) library().destroy(handle_);
}

Status Blas::prepare() const {
  if (handle_ != nullptr) return {};
  const Library& found = library();
  if (found.handle == nullptr) {
    return error(ErrorCode::kUnsupported,
                 "cuBLAS {} is needed here and was not found ({}); install it, or name its folder "
                 "in LD_LIBRARY_PATH",
                 CUBLAS_VER_MAJOR, found.reason);
  }
  QUAROT_RETURN_IF_ERROR(check(found.create(&handle_), "cuBLAS"));
  QUAROT_RETURN_IF_ERROR(check(found.set_stream(handle_, stream_), "cuBLAS"));
  // Sums in float32 throughout; float32 operands are not cut to TF32 unless one asks.
  constexpr auto kMode = static_cast<cublasMath_t>(
      CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  return check(found.set_math_mode(handle_, kMode), "cuBLAS");
}

Status Blas::multiply(const Product& p, Columns<const float> a, Columns<const float> b,
                      Columns<float> c, const char* what) const {
  QUAROT_RETURN_IF_ERROR(prepare());
  return check(
      library().gemm(handle_, a.op, b.op, narrow(p.m), narrow(p.n), narrow(p.k), &p.alpha, a.data,
                     narrow(a.stride), b.data, narrow(b.stride), &p.beta, c.data, narrow(c.stride)),
      what);
}

Status Blas::multiply_each(const Product& p, Columns<const float> a, Columns<const float> b,
                           Columns<float> c, int64_t count, const char* what) const {
  QUAROT_RETURN_IF_ERROR(prepare());
  return check(library().gemm_each(handle_, a.op, b.op, narrow(p.m), narrow(p.n), narrow(p.k),
                                   &p.alpha, a.data, narrow(a.stride), a.batch_stride, b.data,
                                   narrow(b.stride), b.batch_stride, &p.beta, c.data,
                                   narrow(c.stride), c.batch_stride, narrow(count)),
               what);
}

Status Blas::multiply_halves(const Product& p, cudaDataType_t type, Columns<const void> a,
                             Columns<const void> b, cudaDataType_t result, Columns<void> c,
                             const char* what) const {
  QUAROT_RETURN_IF_ERROR(prepare());
  return check(
      library().gemm_ex(handle_, a.op, b.op, narrow(p.m), narrow(p.n), narrow(p.k), &p.alpha,
                        a.data, type, narrow(a.stride), b.data, type, narrow(b.stride), &p.beta,
                        c.data, result, narrow(c.stride), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      what);
}

Status Blas::add(float factor, const float* x, int64_t count, float* y, const char* what) const {
  QUAROT_RETURN_IF_ERROR(prepare());
  return check(library().axpy(handle_, narrow(count), &factor, x, 1, y, 1), what);
}

}  // namespace quarot::cuda
