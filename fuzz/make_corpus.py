#!/usr/bin/env python3
"""Writes the seeds of the file fuzzers, small valid files, to corpus/<target>/ beside it."""

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


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    """A protocol buffer's: an integer, a float or bytes."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


PIECES = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("<sep>", 0.0, 4), ("\u2581", -4.0, 1), ("a", -3.0, 1),
          ("b", -3.0, 1), ("\u2581a", -1.0, 1), ("ab", -2.0, 1)]


def sentencepiece(model_type):
    pieces = b"".join(field(1, field(1, content.encode()) + field(2, score) + field(3, kind))
                      for content, score, kind in PIECES)
    return pieces + field(2, field(3, model_type) + field(41, 1) + field(42, 2)) + field(3, field(3, 1) + field(4, 0))


def llama2c_vocabulary():
    out = struct.pack("<i", 7)
    for content, score, kind in PIECES:
        data = {"<s>": "\n<s>\n", "</s>": "\n</s>\n"}.get(content, content.replace("\u2581", " ")).encode()
        out += struct.pack("<fi", score, len(data)) + data
    return out


def tokenizers():
    split = {"type": "Split", "pattern": {"Regex": "\\p{N}|\\s+(?!\\S)"}, "behavior": "Isolated", "invert": False}
    added = [{"id": 3, "content": "<s>", "special": True, "lstrip": True, "rstrip": True},
             {"id": 4, "content": "12", "special": False, "normalized": True, "single_word": True}]
    bpe = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], "unk_token": "a", "fuse_unk": True}
    yield "byte_level", {
        "normalizer": {"type": "NFC"}, "added_tokens": added, "model": bpe, "decoder": {"type": "ByteLevel"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, {"type": "Digits"}, {"type": "ByteLevel"}]}}
    yield "metaspace", {
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Lowercase"}, {"type": "Prepend", "prepend": "\u2581"}, {"type": "Strip"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "added_tokens": added, "model": dict(bpe, merges=[["a", "b"]])}
    yield "unigram", {
        "pre_tokenizer": {"type": "Metaspace"}, "decoder": {"type": "Metaspace"},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [[content, score] for content, score, _ in PIECES]}}


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

    pairs = [["Question: a\nAnswer:", " b"], ["Question: a\nAnswer:", " cd"]]
    save("task_fuzz", "choices", (json.dumps({"pairs": pairs, "norm": [1, 2], "gold": 1}) + "\n").encode() * 2)
    save("task_fuzz", "word", json.dumps({"id": 1, "pairs": [["a b", " c"]]}).encode())

    for name, tokenizer in tokenizers():
        save("tokenizer_json_fuzz", name, json.dumps(tokenizer).encode())
    save("sentencepiece_fuzz", "unigram", sentencepiece(1))
    save("sentencepiece_fuzz", "bpe", sentencepiece(2))
    save("sentencepiece_fuzz", "llama2c", llama2c_vocabulary())
    save("tiktoken_fuzz", "ranks", b"YQ== 0\nYg== 1\nYWI= 2\n")


if __name__ == "__main__":
    main()
