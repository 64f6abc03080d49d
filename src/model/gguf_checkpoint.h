// GGUF files seen as Hugging Face checkpoints: metadata becomes config.json, "blk.0.attn_q" becomes
// "model.layers.0.self_attn.q_proj", and the row order of llama-type q and k is undone.
#pragma once

#include "model/checkpoint.h"

namespace quarot {

Result<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(const std::filesystem::path& path);

}  // namespace quarot
