#include "runtime/cuda/growing_memory.h"

#include <algorithm>

#include "kernels/cuda/driver.h"
#include "runtime/cuda/device.h"

namespace quarot::cuda {

namespace {

struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
};

template <typename Function>
Status find(const char* name, Function& function) {
  QUAROT_ASSIGN_OR_RETURN(function, driver_function<Function>(name));
  return {};
}

Result<Driver> find_driver() {
  Driver d{};
  QUAROT_RETURN_IF_ERROR(find("cuMemGetAllocationGranularity", d.granularity));
  QUAROT_RETURN_IF_ERROR(find("cuMemAddressReserve", d.reserve));
  QUAROT_RETURN_IF_ERROR(find("cuMemAddressFree", d.free));
  QUAROT_RETURN_IF_ERROR(find("cuMemCreate", d.create));
  QUAROT_RETURN_IF_ERROR(find("cuMemRelease", d.release));
  QUAROT_RETURN_IF_ERROR(find("cuMemMap", d.map));
  QUAROT_RETURN_IF_ERROR(find("cuMemUnmap", d.unmap));
  QUAROT_RETURN_IF_ERROR(find("cuMemSetAccess", d.set_access));
  return d;
}

const Result<Driver>& driver() {
  static const Result<Driver> found = find_driver();
  return found;
}

Status check(CUresult code, const char* what) {
  if (code == CUDA_SUCCESS) return {};
  return error(code == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::kOutOfMemory : ErrorCode::kUnsupported,
               "{}: the driver's error {}", what, static_cast<int>(code));
}

Result<CUmemLocation> current_location() {
  int device = 0;
  QUAROT_RETURN_IF_ERROR(cuda::check(cudaGetDevice(&device), "cudaGetDevice"));
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

CUmemAllocationProp kind_of(const CUmemLocation& location) {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = location;
  return kind;
}

CUdeviceptr address(const uint8_t* data) { return reinterpret_cast<CUdeviceptr>(data); }

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

GrowingMemory::~GrowingMemory() {
  if (data_ == nullptr) return;
  cudaDeviceSynchronize();  // as cudaFree does: unmapping does not wait for kernels
  if (bytes_ > 0) (*driver()).unmap(address(data_), static_cast<size_t>(bytes_));
  (*driver()).free(address(data_), static_cast<size_t>(limit_));
}

Result<GrowingMemory> GrowingMemory::reserve(int64_t limit, const char* what) {
  QUAROT_ASSIGN_OR_RETURN(const Driver d, driver());
  QUAROT_ASSIGN_OR_RETURN(const CUmemLocation location, current_location());
  const CUmemAllocationProp kind = kind_of(location);
  size_t unit = 0;
  QUAROT_RETURN_IF_ERROR(
      check(d.granularity(&unit, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM), what));
  GrowingMemory memory;
  memory.granularity_ = static_cast<int64_t>(unit);
  const int64_t size = round_up(limit, memory.granularity_);
  CUdeviceptr data = 0;
  QUAROT_RETURN_IF_ERROR(check(d.reserve(&data, static_cast<size_t>(size), 0, 0, 0), what));
  memory.data_ = reinterpret_cast<uint8_t*>(data);
  memory.limit_ = size;
  return memory;
}

Status GrowingMemory::grow(int64_t bytes, const char* what) {
  if (bytes <= bytes_) return {};
  const int64_t size = round_up(bytes, granularity_);
  if (size > limit_) {
    return error(ErrorCode::kOutOfMemory, "{}: {} bytes needed, more than the GPU has", what, size);
  }
  QUAROT_ASSIGN_OR_RETURN(const Driver d, driver());
  QUAROT_ASSIGN_OR_RETURN(const CUmemLocation location, current_location());
  const CUmemAllocationProp kind = kind_of(location);
  const auto added = static_cast<size_t>(size - bytes_);
  const CUdeviceptr at = address(data_ + bytes_);
  CUmemGenericAllocationHandle handle{};
  const CUresult created = d.create(&handle, added, &kind, 0);
  if (created == CUDA_ERROR_OUT_OF_MEMORY) {
    QUAROT_RETURN_IF_ERROR(check_memory(static_cast<int64_t>(added), what));
  }
  QUAROT_RETURN_IF_ERROR(check(created, what));
  const CUresult mapped = d.map(at, added, 0, handle, 0);
  d.release(handle);  // the mapping holds the memory now
  QUAROT_RETURN_IF_ERROR(check(mapped, what));
  const CUmemAccessDesc access{location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const CUresult accessible = d.set_access(at, added, &access, 1);
  if (accessible != CUDA_SUCCESS) d.unmap(at, added);
  QUAROT_RETURN_IF_ERROR(check(accessible, what));
  bytes_ = size;
  return {};
}

}  // namespace quarot::cuda
