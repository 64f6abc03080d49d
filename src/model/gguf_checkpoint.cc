#include "model/gguf_checkpoint.h"

#include <array>
#include <charconv>
#include <unordered_map>

#include "base/error.h"
#include "formats/gguf.h"
#include "model/config.h"

namespace quarot {

namespace {

namespace fs = std::filesystem;

struct NamePair {
  std::string_view gguf;
  std::string_view hugging_face;
};

constexpr std::array kOuterNames = {
    NamePair{"token_embd", "model.embed_tokens"},
    NamePair{"output_norm", "model.norm"},
    NamePair{"output", "lm_head"},
};

constexpr std::array kLayerNames = {
    NamePair{"attn_norm", "input_layernorm"},    NamePair{"ffn_norm", "post_attention_layernorm"},
    NamePair{"attn_q", "self_attn.q_proj"},      NamePair{"attn_k", "self_attn.k_proj"},
    NamePair{"attn_v", "self_attn.v_proj"},      NamePair{"attn_qkv", "self_attn.qkv_proj"},
    NamePair{"attn_output", "self_attn.o_proj"}, NamePair{"attn_q_norm", "self_attn.q_norm"},
    NamePair{"attn_k_norm", "self_attn.k_norm"}, NamePair{"ffn_gate", "mlp.gate_proj"},
    NamePair{"ffn_up", "mlp.up_proj"},           NamePair{"ffn_down", "mlp.down_proj"},
};

template <size_t N>
std::string_view translate(const std::array<NamePair, N>& names, std::string_view name) {
  for (const NamePair& pair : names) {
    if (pair.gguf == name) return pair.hugging_face;
  }
  return {};
}

// "blk.3.attn_q.weight" → "model.layers.3.self_attn.q_proj.weight"; empty for a name without
// counterpart.
std::string hugging_face_name(std::string_view name, std::string_view architecture) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view stem = name.substr(0, dot);
  const std::string_view suffix = name.substr(dot);
  if (!stem.starts_with("blk.")) {
    const std::string_view outer = translate(kOuterNames, stem);
    return outer.empty() ? std::string() : std::string(outer) + std::string(suffix);
  }
  const size_t end = stem.find('.', 4);
  if (end == std::string_view::npos) return {};
  std::string_view inner = translate(kLayerNames, stem.substr(end + 1));
  if (architecture == "phi3" && inner == "mlp.up_proj") inner = "mlp.gate_up_proj";
  if (inner.empty()) return {};
  return fmt::format("model.layers.{}.{}{}", stem.substr(4, end - 4), inner, suffix);
}

// llama.cpp's converter stores each head's rows as pairs (i, i + head_dim/2) side by side, for the
// interleaved RoPE; Hugging Face keeps the two halves apart.
Matrix undo_rope_order(const Matrix& stored, int64_t head_dim) {
  Matrix rows(stored.rows(), stored.cols());
  for (int64_t r = 0; r < rows.rows(); ++r) {
    const int64_t head = r / head_dim;
    const int64_t half = r % head_dim / (head_dim / 2);
    const int64_t i = r % (head_dim / 2);
    std::ranges::copy(stored.row(head * head_dim + 2 * i + half), rows.row(r).begin());
  }
  return rows;
}

// The file's tensors under Hugging Face names.
class RenamedTensors final : public TensorSource {
 public:
  RenamedTensors(const GgufFile& file, std::string_view architecture, int64_t head_dim)
      : file_(&file), head_dim_(head_dim), reorders_(architecture == "llama") {
    for (const TensorInfo& info : file.tensors()) {
      std::string name = hugging_face_name(info.name, architecture);
      if (name.empty()) continue;
      index_.emplace(name, tensors_.size());
      tensors_.push_back(info);
      tensors_.back().name = std::move(name);
      stored_names_.push_back(info.name);
    }
  }

  const fs::path& path() const override { return file_->path(); }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view name) const override {
    const auto it = index_.find(std::string(name));
    return it == index_.end() ? nullptr : &tensors_[it->second];
  }
  Result<Matrix> read(std::string_view name) const override {
    QUAROT_ASSIGN_OR_RETURN(const std::string stored, stored_name(name));
    QUAROT_ASSIGN_OR_RETURN(Matrix matrix, file_->read(stored));
    if (!reorders_ || !turns(name)) return matrix;
    if (name.ends_with(".bias")) return transpose_bias(matrix);
    if (matrix.rows() % head_dim_ != 0) {
      return error(ErrorCode::kCorrupt,
                   "{}: tensor {} has {} rows, expected a multiple of head_dim {}", path().string(),
                   stored, matrix.rows(), head_dim_);
    }
    return undo_rope_order(matrix, head_dim_);
  }
  Result<Matrix> read_rows(std::string_view name, int64_t first, int64_t count) const override {
    QUAROT_ASSIGN_OR_RETURN(const std::string stored, stored_name(name));
    if (reorders_ && turns(name)) {
      return error(ErrorCode::kUnsupported, "{}: tensor {} can only be read whole", path().string(),
                   stored);
    }
    return file_->read_rows(stored, first, count);
  }

 private:
  static bool turns(std::string_view name) {
    return name.find("self_attn.q_proj.") != std::string_view::npos ||
           name.find("self_attn.k_proj.") != std::string_view::npos;
  }
  Result<std::string> stored_name(std::string_view name) const {
    const auto it = index_.find(std::string(name));
    if (it == index_.end())
      return error(ErrorCode::kNotFound, "{}: no tensor {}", path().string(), name);
    return stored_names_[it->second];
  }
  Result<Matrix> transpose_bias(const Matrix& bias) const {
    if (bias.size() % head_dim_ != 0) {
      return error(ErrorCode::kCorrupt,
                   "{}: a bias of {} entries, expected a multiple of head_dim {}", path().string(),
                   bias.size(), head_dim_);
    }
    Matrix column(bias.size(), 1);
    std::ranges::copy(bias.elements(), column.elements().begin());
    column = undo_rope_order(column, head_dim_);
    Matrix row(1, bias.size());
    std::ranges::copy(column.elements(), row.elements().begin());
    return row;
  }

  const GgufFile* file_;
  int64_t head_dim_;
  bool reorders_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::string> stored_names_;
  std::unordered_map<std::string, size_t> index_;
};

// config.json as the metadata tells it.
class ConfigFromMetadata {
 public:
  explicit ConfigFromMetadata(const GgufFile& file) : file_(&file) {}

  Result<nlohmann::json> make() {
    const auto architecture = file_->get<std::string>("general.architecture");
    if (!architecture) return missing("general.architecture");
    prefix_ = *architecture + ".";
    json_ = {{"model_type", *architecture}};
    for (const auto& [key, name] : {std::pair{"embedding_length", "hidden_size"},
                                    {"block_count", "num_hidden_layers"},
                                    {"feed_forward_length", "intermediate_size"},
                                    {"attention.head_count", "num_attention_heads"}}) {
      const auto value = integer(key);
      if (!value) return missing(prefix_ + key);
      json_[name] = *value;
    }
    copy_integer("attention.head_count_kv", "num_key_value_heads");
    copy_integer("attention.key_length", "head_dim");
    copy_integer("context_length", "max_position_embeddings");
    copy_integer("attention.sliding_window", "sliding_window");
    copy_double("attention.layer_norm_rms_epsilon", "rms_norm_eps");
    copy_double("rope.freq_base", "rope_theta");
    QUAROT_RETURN_IF_ERROR(set_vocabulary());
    QUAROT_RETURN_IF_ERROR(set_rope_scaling());
    json_["tie_word_embeddings"] = file_->find("output.weight") == nullptr;
    return json_;
  }

 private:
  Error missing(const std::string& key) const {
    return error(ErrorCode::kCorrupt, "{}: metadata \"{}\" is missing or of the wrong type",
                 file_->path().string(), key);
  }
  std::optional<int64_t> integer(const std::string& key) const {
    return file_->get<int64_t>(prefix_ + key);
  }
  void copy_integer(const std::string& key, const char* name) {
    if (const auto value = integer(key)) json_[name] = *value;
  }
  void copy_double(const std::string& key, const char* name) {
    if (const auto value = file_->get<double>(prefix_ + key)) json_[name] = *value;
  }
  Status set_vocabulary() {
    const TensorInfo* embedding = file_->find("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2) {
      return error(ErrorCode::kCorrupt, "{}: no matrix token_embd.weight", file_->path().string());
    }
    json_["vocab_size"] = embedding->shape[0];
    return {};
  }
  Status set_rope_scaling() {
    nlohmann::json scaling = nlohmann::json::object();
    const auto type = file_->get<std::string>(prefix_ + "rope.scaling.type");
    if (type && *type != "none") {
      scaling["rope_type"] = *type;
      for (const auto& [key, name] :
           {std::pair{"rope.scaling.factor", "factor"},
            {"rope.scaling.attn_factor", "attention_factor"},
            {"rope.scaling.original_context_length", "original_max_position_embeddings"}}) {
        if (const auto value = file_->get<double>(prefix_ + key)) scaling[name] = *value;
      }
    }
    for (const auto& [tensor, name] : {std::pair{"rope_freqs.weight", "factors"},
                                       {"rope_factors_short.weight", "short_factor"},
                                       {"rope_factors_long.weight", "long_factor"}}) {
      if (file_->find(tensor) == nullptr) continue;
      QUAROT_ASSIGN_OR_RETURN(const Matrix factors, file_->read(tensor));
      scaling[name] = std::vector<float>(factors.elements().begin(), factors.elements().end());
    }
    if (scaling.contains("long_factor")) {
      scaling["rope_type"] = "longrope";
      if (scaling.contains("original_max_position_embeddings")) {
        json_["original_max_position_embeddings"] =
            static_cast<int64_t>(scaling["original_max_position_embeddings"].get<double>());
        scaling.erase("original_max_position_embeddings");
      }
    }
    if (!scaling.empty()) json_["rope_scaling"] = std::move(scaling);
    if (const auto rotary = integer("rope.dimension_count")) {
      const int64_t heads = json_["num_attention_heads"].get<int64_t>();
      const int64_t hidden = json_["hidden_size"].get<int64_t>();
      const int64_t head_dim = json_.value("head_dim", heads > 0 ? hidden / heads : 0);
      if (head_dim > 0 && *rotary != head_dim) {
        json_["partial_rotary_factor"] =
            static_cast<double>(*rotary) / static_cast<double>(head_dim);
      }
    }
    return {};
  }

  const GgufFile* file_;
  std::string prefix_;
  nlohmann::json json_;
};

class GgufCheckpoint final : public Checkpoint {
 public:
  GgufCheckpoint(std::unique_ptr<GgufFile> file, nlohmann::json config, int64_t head_dim)
      : file_(std::move(file)),
        config_(std::move(config)),
        tensors_(*file_, config_["model_type"].get<std::string>(), head_dim) {}

  const fs::path& path() const override { return file_->path(); }
  std::string format() const override { return "GGUF"; }
  const nlohmann::json& config() const override { return config_; }
  const TensorSource& tensors() const override { return tensors_; }
  const std::optional<nlohmann::json>& manifest() const override { return manifest_; }
  Result<std::unique_ptr<Tokenizer>> open_tokenizer() const override {
    return quarot::open_tokenizer(*file_);
  }
  Status save_tokenizer(const fs::path& folder) const override {
    return write_gguf_metadata(*file_, folder / "tokenizer.gguf");
  }

 private:
  std::unique_ptr<GgufFile> file_;
  nlohmann::json config_;
  RenamedTensors tensors_;
  std::optional<nlohmann::json> manifest_;
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(const fs::path& path) {
  QUAROT_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, open_gguf(path));
  QUAROT_ASSIGN_OR_RETURN(nlohmann::json config, ConfigFromMetadata(*file).make());
  QUAROT_ASSIGN_OR_RETURN(const ModelConfig shape, parse_config(config, path.string()));
  return std::unique_ptr<Checkpoint>(
      std::make_unique<GgufCheckpoint>(std::move(file), std::move(config), shape.head_dim));
}

}  // namespace quarot
