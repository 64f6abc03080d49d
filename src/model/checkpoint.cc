#include "model/checkpoint.h"

#include <algorithm>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/json.h"
#include "formats/llama2c.h"
#include "model/checksums.h"
#include "model/gguf_checkpoint.h"
#include "text/utf8.h"

namespace quarot {

namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// What stands in a folder that may not be entered is not missing.
Status check_permission(const fs::path& path) {
  std::error_code failed;
  (void)fs::exists(path, failed);
  if (failed != std::errc::permission_denied) return {};
  return error(ErrorCode::kIo, "{}: {}", path.string(), failed.message());
}

Status copy_text_file(const fs::path& from, const fs::path& to) {
  QUAROT_ASSIGN_OR_RETURN(const std::string contents, read_text_file(from));
  return write_file_atomically(to, contents);
}

// quarot.json lists what it has by name, and JSON is UTF-8.
bool is_tokenizer_file(std::string_view name) {
  constexpr std::string_view kNames[] = {"tokenizer.json",
                                         "tokenizer.gguf",
                                         "tokenizer_config.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "special_tokens_map.json",
                                         "generation_config.json",
                                         "added_tokens.json",
                                         "chat_template.jinja",
                                         "chat_template.json"};
  return is_valid_utf8(name) &&
         (std::ranges::find(kNames, name) != std::end(kNames) || name.ends_with(".tiktoken") ||
          name.ends_with(".model") || (name.starts_with("tok") && name.ends_with(".bin")));
}

// Which rotations are left to the forward pass, and the checksums, are in quarot.json alone.
Status check_not_packed(const SafetensorsSource& tensors, const fs::path& folder) {
  const auto packed = std::ranges::find_if(tensors.tensors(), [](const TensorInfo& info) {
    return info.name.ends_with(".weight_packed");
  });
  if (packed == tensors.tensors().end()) return {};
  return error(ErrorCode::kCorrupt,
               "{}: {} is packed, but quarot.json is missing, which says how: copy it too, or give "
               "the original model",
               folder.string(), packed->name);
}

class HuggingFaceCheckpoint final : public Checkpoint {
 public:
  static Result<std::unique_ptr<Checkpoint>> open(const fs::path& folder, const fs::path& weights) {
    auto checkpoint = std::make_unique<HuggingFaceCheckpoint>();
    checkpoint->folder_ = folder;
    if (is_there(folder / "quarot.json")) {
      QUAROT_ASSIGN_OR_RETURN(checkpoint->manifest_, read_json_file(folder / "quarot.json"));
      QUAROT_RETURN_IF_ERROR(check_files(folder, *checkpoint->manifest_));
    }
    QUAROT_ASSIGN_OR_RETURN(checkpoint->config_, read_json_file(folder / "config.json"));
    QUAROT_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsSource> tensors, open_safetensors(weights));
    if (checkpoint->manifest_) {
      checkpoint->tensors_ = verified(std::move(tensors), *checkpoint->manifest_);
    } else {
      QUAROT_RETURN_IF_ERROR(check_not_packed(*tensors, folder));
      checkpoint->tensors_ = std::move(tensors);
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
  Status save_tokenizer(const fs::path& folder) const override {
    std::error_code failed;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, failed)) {
      if (!is_tokenizer_file(entry.path().filename().string())) continue;
      QUAROT_RETURN_IF_ERROR(copy_text_file(entry.path(), folder / entry.path().filename()));
    }
    if (failed)
      return error(ErrorCode::kIo, "{}: cannot read: {}", folder_.string(), failed.message());
    return {};
  }

 private:
  fs::path folder_;
  nlohmann::json config_;
  std::unique_ptr<TensorSource> tensors_;
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
    QUAROT_ASSIGN_OR_RETURN(const fs::path file, tokenizer_file());
    return quarot::open_tokenizer(file);
  }
  Status save_tokenizer(const fs::path& target) const override {
    QUAROT_ASSIGN_OR_RETURN(const fs::path file, tokenizer_file());
    return copy_text_file(
        file, target / (file.extension() == ".bin" ? "tokenizer.bin" : "tokenizer.model"));
  }

 private:
  Result<fs::path> tokenizer_file() const {
    const fs::path folder = path().parent_path();
    const std::string vocab = std::to_string(file_->header().vocab);
    for (const std::string& name : {"tok" + vocab + ".bin", "tok" + vocab + ".model",
                                    std::string("tokenizer.bin"), std::string("tokenizer.model")}) {
      if (is_there(folder / name)) return folder / name;
    }
    return error(ErrorCode::kNotFound,
                 "{}: no tokenizer beside it; expected tok{}.bin, tokenizer.bin or tokenizer.model",
                 path().string(), vocab);
  }

  std::unique_ptr<Llama2cFile> file_;
  nlohmann::json config_;
  std::optional<nlohmann::json> manifest_;
};

Result<std::unique_ptr<Checkpoint>> open_folder(const fs::path& folder) {
  QUAROT_RETURN_IF_ERROR(check_permission(folder / "config.json"));
  if (!is_there(folder / "config.json")) {
    return error(ErrorCode::kNotFound,
                 "{}: no config.json in this folder; expected a Hugging Face model",
                 folder.string());
  }
  return HuggingFaceCheckpoint::open(folder, folder);
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const fs::path& path) {
  QUAROT_RETURN_IF_ERROR(check_permission(path));
  if (!is_there(path))
    return error(ErrorCode::kNotFound, "{}: no such file or folder", path.string());
  std::error_code ignored;
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
