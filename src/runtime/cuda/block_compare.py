#!/usr/bin/env python3
"""block_compare.py BENCH [MODEL…]: runs `cuda_model_bench MODEL blocks --json` and times one decoder
layer of transformers (bfloat16, attention by PyTorch's scaled_dot_product_attention) of the same
shape on the same batches, in the same run; prints a table with the ratios. Without a MODEL,
llama-2-7b and llama-3-8b."""
import json
import statistics
import subprocess
import sys

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

# As src/model/synthetic.cc has them.
SHAPES = {
    "llama-2-7b": {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 32,
                   "intermediate_size": 11008, "max_position_embeddings": 4096},
    "llama-3-8b": {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
                   "intermediate_size": 14336, "max_position_embeddings": 8192},
}


class Block:
    """One decoder layer with random weights, as prefill calls it: causal, nothing cached."""

    def __init__(self, shape, device):
        config = LlamaConfig(rms_norm_eps=1e-5, num_hidden_layers=1, vocab_size=32, **shape)
        config._attn_implementation = "sdpa"  # without a mask it is causal, by the flash kernel
        self.hidden = config.hidden_size
        self.device = device
        self.layer = LlamaDecoderLayer(config, 0).to(device, torch.bfloat16).eval()
        self.rotary = LlamaRotaryEmbedding(config).to(device)

    @torch.inference_mode()
    def prepare(self, batch, tokens):
        self.x = torch.randn(batch, tokens, self.hidden, device=self.device, dtype=torch.bfloat16)
        self.positions = torch.arange(tokens, device=self.device)[None]
        self.turns = self.rotary(self.x, self.positions)

    @torch.inference_mode()
    def run(self):
        return self.layer(self.x, attention_mask=None, position_ids=self.positions,
                          position_embeddings=self.turns)


def median_ms(run, samples=11):
    times = []
    for sample in range(-3, samples):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        if sample >= 0:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def compare(bench, model):
    command = [bench, model, "blocks", "--json"]
    rows = [json.loads(line) for line in
            subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()]
    block = Block(SHAPES[model], "cuda")
    for r in rows:
        block.prepare(r["batch"], r["tokens"])
        ms = median_ms(block.run)
        print(f"{model:>11} {r['batch']:5} {r['tokens']:6} {r['ms']:10.3f} {r['half_ms']:10.3f} "
              f"{r['half_ms'] / r['ms']:6.2f} {ms:10.3f} {ms / r['ms']:6.2f}", flush=True)
    del block
    torch.cuda.empty_cache()


def main():
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    print(f"{'model':>11} {'batch':>5} {'tokens':>6} {'W4A4KV4 ms':>10} {'16-bit ms':>10} {'ratio':>6} "
          f"{'PyTorch ms':>10} {'ratio':>6}")
    for model in sys.argv[2:] or SHAPES:
        compare(sys.argv[1], model)


if __name__ == "__main__":
    main()
