#!/usr/bin/env python3
"""gemm_compare.py BENCH: runs `gemm_bench --json` and times cuBLAS bf16 (through PyTorch) on the same
shapes, with the same rotation of buffers, in the same run; prints a table with the ratio."""
import json
import statistics
import subprocess
import sys

import torch


def cublas_us(m, n, k, samples=11, repeat=4):
    bytes_each = 2 * (m * k + n * k + m * n)
    count = max(2, -(-(256 << 20) // bytes_each))
    x = [torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    w = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    y = [torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    repeat = 32 if m <= 512 else repeat
    times, turn = [], 0
    for sample in range(-2, samples):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeat):
            torch.mm(x[turn % count], w[turn % count].t(), out=y[turn % count])
            turn += 1
        end.record()
        end.synchronize()
        if sample >= 0:
            times.append(begin.elapsed_time(end) * 1e3 / repeat)
    return statistics.median(times)


def main():
    bench = subprocess.Popen([*sys.argv[1:2], "--json", *sys.argv[2:]], stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in bench.stdout]
    if bench.wait() != 0:
        sys.exit(bench.returncode)
    print(f"{'m':>6} {'n':>6} {'k':>6} {'us':>9} {'TOPS':>7} {'peak %':>6} {'TB/s':>6} {'4.8 %':>6} "
          f"{'bf16 us':>9} {'TFLOPS':>7} {'ratio':>6}")
    for r in rows:
        us = cublas_us(r["m"], r["n"], r["k"])
        tflops = 2 * r["m"] * r["n"] * r["k"] / us * 1e-6
        print(f"{r['m']:6} {r['n']:6} {r['k']:6} {r['us']:9.2f} {r['tops']:7.1f} {r['tops_percent']:6.1f} "
              f"{r['tb_s']:6.3f} {r['tb_s_percent']:6.1f} {us:9.2f} {tflops:7.1f} {us / r['us']:6.2f}")


if __name__ == "__main__":
    main()
