// The kernels of one instruction set, chosen once at run time.
//
// Every instruction set has a folder whose files alone are compiled for it, and fills one Kernels
// table there. Nothing else may be compiled with its flags: an inline function of a shared header
// compiled twice is kept once by the linker, and if that is the copy with the newer instructions,
// an older machine crashes in code that never asked for them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kernels/cache_task.h"
#include "kernels/cpu/gemm_task.h"
#include "kernels/cpu/table_task.h"
#include "kernels/row_task.h"
#include "quarot/status.h"

namespace quarot::cpu {

struct AttendTask;

// The operations on floats: instruction sets that differ only in the integer product share them.
struct FloatKernels {
  // Rows first…last−1; scratch holds twice the width rounded up to 16.
  void (*rows)(const RowTask& task, int64_t first, int64_t last, float* scratch);
  // Tokens first…last−1; scratch holds twice head_dim rounded up to 16.
  void (*heads)(const HeadsTask& task, int64_t first, int64_t last, float* scratch);
  void (*attend)(const AttendTask& task);
  void (*merge)(const float* states, int64_t chunks, int64_t stride, int64_t groups,
                int64_t head_dim, float* sum, float* y);
  // Tiles first…last−1 of the table; scratch holds kTableScratch floats.
  void (*table)(const TableTask& task, int64_t first, int64_t last, float* scratch);
  // Multiply-adds from registers, as Kernels::dot_peak.
  int64_t (*peak)(int64_t rounds);
};

struct Kernels {
  std::string_view name;  // as QUAROT_ISA spells it
  bool (*available)();    // on this machine
  GemmFunction gemm;
  const FloatKernels* floats;
  // Byte dot products from registers, at the highest rate the instruction set allows; returns the
  // number of multiply-adds done. What a kernel's speed is measured against.
  int64_t (*dot_peak)(int64_t rounds);
  // The rows that a thread takes at once are what fits here: with half of a core's second-level
  // cache they are read from there for each tile of weights, and the weights only once.
  int64_t block_bytes = 512 << 10;
  int64_t workspace_bytes = 0;  // that gemm() wants beside its stack
};

// Every table in this binary, the fastest first; the last is "scalar", which is always available.
std::span<const Kernels* const> compiled_kernels();

// The named one, or with an empty name the fastest available one. kUnsupported, listing those
// available, if it is unknown or this machine lacks it.
Result<const Kernels*> find_kernels(std::string_view name);

// find_kernels of the environment variable QUAROT_ISA, read once.
Result<const Kernels*> kernels();

}  // namespace quarot::cpu
