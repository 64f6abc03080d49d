#!/usr/bin/env python3
"""Writes the seeds of the weight-file fuzzers, small valid files, to corpus/<target>/ beside it."""

import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"


def save(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def safetensors(tensors, metadata=None):
    header = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(range(end))


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(tensors, pairs=()):
    """tensors: (name, dimensions, type number, bytes); pairs: encoded ones."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    data = b""
    for name, dimensions, kind, size in tensors:
        data += bytes(-len(data) % 32)
        out += text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, len(data))
        data += bytes(i % 251 for i in range(size))
    return out + bytes(-len(out) % 32) + data


def llama2c(dim, hidden, layers, heads, kv_heads, vocab, positions):
    kv = dim // heads * kv_heads
    floats = abs(vocab) * dim * (1 + (vocab < 0)) + dim + positions * dim // heads
    floats += layers * (2 * dim + 2 * dim * dim + 2 * kv * dim + 3 * dim * hidden)
    return struct.pack("<7i", dim, hidden, layers, heads, kv_heads, vocab, positions) + bytes(4 * floats)


def main():
    save("safetensors_fuzz", "types", safetensors({
        "a": ("F32", [2, 3], 24), "b": ("BF16", [4], 8), "c": ("F16", [], 2), "d": ("I64", [1], 8),
        "e": ("F8_E4M3", [3], 3), "f": ("F64", [0, 5], 0)}, {"format": "pt"}))
    save("safetensors_fuzz", "index", json.dumps(
        {"metadata": {"total_size": 8}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}).encode())

    pairs = [text("k%d" % kind) + struct.pack("<I", kind) + bytes(size)
             for kind, size in ((0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (7, 1), (10, 8), (11, 8), (12, 8))]
    pairs.append(text("general.alignment") + struct.pack("<II", 4, 32))
    pairs.append(text("s") + struct.pack("<I", 8) + text("llama"))
    pairs.append(text("a") + struct.pack("<IIQ", 9, 8, 2) + text("x") + text(""))
    pairs.append(text("n") + struct.pack("<IIQ3i", 9, 5, 3, 1, 2, 3))
    save("gguf_fuzz", "metadata", gguf([("t", [3, 2], 0, 24)], pairs))
    small = [(1, 1, 2), (30, 1, 2), (2, 32, 18), (3, 32, 20), (6, 32, 22), (7, 32, 24), (8, 32, 34), (20, 32, 18)]
    large = [(10, 256, 84), (11, 256, 110), (12, 256, 144), (13, 256, 176), (14, 256, 210), (16, 256, 66)]
    save("gguf_fuzz", "small_blocks", gguf([("t%d" % kind, [block], kind, size) for kind, block, size in small]))
    save("gguf_fuzz", "large_blocks", gguf([("t%d" % kind, [block], kind, size) for kind, block, size in large]))

    save("llama2c_fuzz", "tied", llama2c(4, 3, 2, 2, 1, 3, 2))
    save("llama2c_fuzz", "untied", llama2c(4, 3, 1, 1, 1, -2, 2))


if __name__ == "__main__":
    main()
