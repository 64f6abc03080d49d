#include "formats/llama2c.h"

#include <array>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "formats/parsers.h"

namespace quarot {

namespace {

constexpr int32_t kVersionedMagic = 0x616b3432;  // "ak42": version 1 or later
constexpr size_t kHeaderBytes = 7 * sizeof(int32_t);

Status check(const Llama2cHeader& h) {
  if (h.dim <= 0 || h.hidden_dim <= 0 || h.layers <= 0 || h.heads <= 0 || h.kv_heads <= 0 ||
      h.vocab <= 0 || h.max_positions <= 0) {
    return error(ErrorCode::kCorrupt,
                 "dim {}, hidden_dim {}, n_layers {}, n_heads {}, n_kv_heads {}, vocab_size {}, "
                 "seq_len {}: expected positive numbers; is this a llama2.c checkpoint?",
                 h.dim, h.hidden_dim, h.layers, h.heads, h.kv_heads, h.vocab, h.max_positions);
  }
  if (h.dim % h.heads != 0 || h.dim / h.heads % 2 != 0 || h.heads % h.kv_heads != 0) {
    return error(ErrorCode::kCorrupt,
                 "dim {} must split into n_heads {} heads of even size, and those among "
                 "n_kv_heads {}",
                 h.dim, h.heads, h.kv_heads);
  }
  return {};
}

Result<Llama2cHeader> parse_header(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) {
    return error(ErrorCode::kCorrupt, "{} bytes, expected a header of {}", bytes.size(),
                 kHeaderBytes);
  }
  std::array<int32_t, 7> field;
  std::memcpy(field.data(), bytes.data(), kHeaderBytes);
  if (field[0] == kVersionedMagic) {
    return error(ErrorCode::kUnsupported,
                 "llama2.c checkpoint of version {}, expected the version without a magic number "
                 "(export.py --version 0)",
                 field[1]);
  }
  const int64_t vocab = field[5];
  const Llama2cHeader header = {.dim = field[0],
                                .hidden_dim = field[1],
                                .layers = field[2],
                                .heads = field[3],
                                .kv_heads = field[4],
                                .vocab = vocab < 0 ? -vocab : vocab,
                                .max_positions = field[6],
                                .tied = vocab > 0};
  QUAROT_RETURN_IF_ERROR(check(header));
  return header;
}

// One of the file's weights: `name` once, or once a layer, one after the other.
struct Weight {
  std::string name;  // after "model.layers.N." if per layer
  bool per_layer;
  std::vector<int64_t> shape;
  int64_t interleaved_head = 0;
};

// The file's order. An empty name marks the rotary tables, which are computed here.
std::vector<Weight> weights_in_order(const Llama2cHeader& h) {
  const int64_t head = h.dim / h.heads;
  const int64_t kv_dim = head * h.kv_heads;
  std::vector<Weight> weights = {
      {"model.embed_tokens.weight", false, {h.vocab, h.dim}},
      {"input_layernorm.weight", true, {h.dim}},
      {"self_attn.q_proj.weight", true, {h.dim, h.dim}, head},
      {"self_attn.k_proj.weight", true, {kv_dim, h.dim}, head},
      {"self_attn.v_proj.weight", true, {kv_dim, h.dim}},
      {"self_attn.o_proj.weight", true, {h.dim, h.dim}},
      {"post_attention_layernorm.weight", true, {h.dim}},
      {"mlp.gate_proj.weight", true, {h.hidden_dim, h.dim}},
      {"mlp.down_proj.weight", true, {h.dim, h.hidden_dim}},
      {"mlp.up_proj.weight", true, {h.hidden_dim, h.dim}},
      {"model.norm.weight", false, {h.dim}},
      {"", false, {2, h.max_positions, head / 2}},
  };
  if (!h.tied) weights.push_back({"lm_head.weight", false, {h.vocab, h.dim}});
  return weights;
}

// nullopt if it overflows: no file is that long. Six factors below 2³¹ cannot be trusted.
std::optional<int64_t> expected_bytes(const Llama2cHeader& h, const std::vector<Weight>& weights,
                                      const BlockFormat& format) {
  int64_t total = kHeaderBytes;
  for (const Weight& weight : weights) {
    const auto each = format.bytes(weight.shape);
    int64_t all = 0;
    if (!each.ok() ||
        __builtin_mul_overflow(*each, weight.per_layer ? h.layers : int64_t{1}, &all) ||
        __builtin_add_overflow(total, all, &total)) {
      return std::nullopt;
    }
  }
  return total;
}

Result<Llama2cContents> parse(const FileView& file) {
  QUAROT_ASSIGN_OR_RETURN(const Llama2cHeader header, parse_header(file.bytes));
  const BlockFormat* format = safetensors_format("F32");
  const auto weights = weights_in_order(header);
  const auto expected = expected_bytes(header, weights, *format);
  if (!expected || *expected != static_cast<int64_t>(file.bytes.size())) {
    return error(ErrorCode::kCorrupt,
                 "{} bytes, but its header asks for {}: truncated, or no "
                 "llama2.c checkpoint",
                 file.bytes.size(), expected ? std::to_string(*expected) : "more than 2^63");
  }
  Llama2cContents contents{TensorTable(file.path), header};
  size_t position = kHeaderBytes;
  for (const Weight& weight : weights) {
    const auto bytes = *format->bytes(weight.shape);
    for (int64_t layer = 0; layer < (weight.per_layer ? header.layers : 1); ++layer) {
      const auto data = file.bytes.subspan(position, static_cast<size_t>(bytes));
      position += data.size();
      if (weight.name.empty()) continue;
      std::string name =
          weight.per_layer ? fmt::format("model.layers.{}.{}", layer, weight.name) : weight.name;
      QUAROT_RETURN_IF_ERROR(
          contents.tensors.add({std::move(name), "F32", weight.shape, bytes},
                               {format, data, file.mapping, weight.interleaved_head}));
    }
  }
  return contents;
}

class MappedLlama2c final : public TableSource<Llama2cFile> {
 public:
  explicit MappedLlama2c(Llama2cContents contents)
      : TableSource(std::move(contents.tensors)), header_(contents.header) {}

  const Llama2cHeader& header() const override { return header_; }

 private:
  Llama2cHeader header_;
};

}  // namespace

Result<Llama2cContents> parse_llama2c(const FileView& file) {
  auto contents = parse(file);
  if (!contents.ok()) return contents.error().with_context(file.path.string());
  return contents;
}

Result<std::unique_ptr<Llama2cFile>> open_llama2c(const std::filesystem::path& path) {
  QUAROT_ASSIGN_OR_RETURN(const FileView file, map_file(path));
  QUAROT_ASSIGN_OR_RETURN(Llama2cContents contents, parse_llama2c(file));
  return std::unique_ptr<Llama2cFile>(std::make_unique<MappedLlama2c>(std::move(contents)));
}

}  // namespace quarot
