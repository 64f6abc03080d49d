// What the tests of the CPU kernels share: every case runs on every instruction set of the machine.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "kernels/cpu/dispatch.h"
#include "tensor/matrix.h"

namespace quarot::cpu {

class KernelsTest : public ::testing::TestWithParam<const Kernels*> {
 protected:
  void SetUp() override {
    if (!GetParam()->available()) GTEST_SKIP() << "not on this machine";
  }
  const Kernels& kernels() const { return *GetParam(); }
};

inline auto every_isa() {
  return ::testing::ValuesIn(compiled_kernels().begin(), compiled_kernels().end());
}
inline std::string isa_name(const ::testing::TestParamInfo<const Kernels*>& isa) {
  return std::string(isa.param->name);
}

template <typename T>
bool same_bits(const BasicMatrix<T>& x, const BasicMatrix<T>& y) {
  return std::memcmp(x.data(), y.data(), static_cast<size_t>(x.size()) * sizeof(T)) == 0;
}

}  // namespace quarot::cpu
