#include "model/checkpoint.h"

#include "formats/gguf.h"
#include "formats/llama2c.h"
#include "formats/safetensors.h"
#include "model/gguf_checkpoint.h"
#include "model/json.h"

namespace quarot {

namespace {

namespace fs = std::filesystem;

class HuggingFaceCheckpoint final : public Checkpoint {
 public:
  static Result<std::unique_ptr<Checkpoint>> open(const fs::path& folder, const fs::path& weights) {
    auto checkpoint = std::make_unique<HuggingFaceCheckpoint>();
    checkpoint->folder_ = folder;
    QUAROT_ASSIGN_OR_RETURN(checkpoint->config_, read_json_file(folder / "config.json"));
    QUAROT_ASSIGN_OR_RETURN(checkpoint->tensors_, open_safetensors(weights));
    if (fs::exists(folder / "quarot.json")) {
      QUAROT_ASSIGN_OR_RETURN(checkpoint->manifest_, read_json_file(folder / "quarot.json"));
    }
    return std::unique_ptr<Checkpoint>(std::move(checkpoint));
  }

  const fs::path& path() const override { return folder_; }
  std::string format() const override { return "safetensors"; }
  const nlohmann::json& config() const override { return config_; }
  const TensorSource& tensors() const override { return *tensors_; }
  const std::optional<nlohmann::json>& manifest() const override { return manifest_; }
  Result<std::unique_ptr<Tokenizer>> open_tokenizer() const override {
    return quarot::open_tokenizer(folder_);
  }

 private:
  fs::path folder_;
  nlohmann::json config_;
  std::unique_ptr<SafetensorsSource> tensors_;
  std::optional<nlohmann::json> manifest_;
};

class Llama2cCheckpoint final : public Checkpoint {
 public:
  explicit Llama2cCheckpoint(std::unique_ptr<Llama2cFile> file) : file_(std::move(file)) {
    const Llama2cHeader& header = file_->header();
    config_ = {{"model_type", "llama"},
               {"hidden_size", header.dim},
               {"intermediate_size", header.hidden_dim},
               {"num_hidden_layers", header.layers},
               {"num_attention_heads", header.heads},
               {"num_key_value_heads", header.kv_heads},
               {"vocab_size", header.vocab},
               {"max_position_embeddings", header.max_positions},
               {"rms_norm_eps", 1e-5},
               {"tie_word_embeddings", header.tied}};
  }

  const fs::path& path() const override { return file_->path(); }
  std::string format() const override { return "llama2.c"; }
  const nlohmann::json& config() const override { return config_; }
  const TensorSource& tensors() const override { return *file_; }
  const std::optional<nlohmann::json>& manifest() const override { return manifest_; }
  Result<std::unique_ptr<Tokenizer>> open_tokenizer() const override {
    const fs::path folder = path().parent_path();
    const std::string vocab = std::to_string(file_->header().vocab);
    for (const std::string& name : {"tok" + vocab + ".bin", "tok" + vocab + ".model",
                                    std::string("tokenizer.bin"), std::string("tokenizer.model")}) {
      if (fs::exists(folder / name)) return quarot::open_tokenizer(folder / name);
    }
    return error(ErrorCode::kNotFound,
                 "{}: no tokenizer beside it; expected tok{}.bin, tokenizer.bin or tokenizer.model",
                 path().string(), vocab);
  }

 private:
  std::unique_ptr<Llama2cFile> file_;
  nlohmann::json config_;
  std::optional<nlohmann::json> manifest_;
};

Result<std::unique_ptr<Checkpoint>> open_folder(const fs::path& folder) {
  if (!fs::exists(folder / "config.json")) {
    return error(ErrorCode::kNotFound,
                 "{}: no config.json in this folder; expected a Hugging Face model",
                 folder.string());
  }
  return HuggingFaceCheckpoint::open(folder, folder);
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    return error(ErrorCode::kNotFound, "{}: no such file or folder", path.string());
  if (fs::is_directory(path, ignored)) return open_folder(path);
  const std::string extension = path.extension().string();
  if (extension == ".gguf") return open_gguf_checkpoint(path);
  if (extension == ".bin") {
    QUAROT_ASSIGN_OR_RETURN(std::unique_ptr<Llama2cFile> file, open_llama2c(path));
    return std::unique_ptr<Checkpoint>(std::make_unique<Llama2cCheckpoint>(std::move(file)));
  }
  if (path.filename() == "config.json") return open_folder(path.parent_path());
  if (extension == ".safetensors" || path.filename() == "model.safetensors.index.json") {
    return HuggingFaceCheckpoint::open(path.parent_path(), path);
  }
  return error(ErrorCode::kUnsupported,
               "{}: not a model file known here; expected a Hugging Face folder, .safetensors, "
               ".gguf or llama2.c .bin",
               path.string());
}

}  // namespace quarot
