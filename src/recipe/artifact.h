// Writing a model in its new basis, float or packed, as a Hugging Face folder: config.json, shards
// of safetensors, the tokenizer, quarot.json. DESIGN.md, section 5.
//
// The folder appears whole or not at all: everything is written to FOLDER.partial, one shard a
// layer, which is renamed at the end. A run that was killed goes on after the last finished shard.
#pragma once

#include <filesystem>
#include <optional>

#include "base/progress.h"
#include "model/checkpoint.h"
#include "quarot/execution.h"
#include "recipe/recipe.h"
#include "tensor/dtype.h"

namespace quarot {

struct ArtifactOptions {
  bool pack = false;  // weights of the layers as packed integers (4 or 8 bits, symmetric)
  Dtype matrices = Dtype::kF32;  // the other matrices: kF32, kF16 or kBF16
  std::optional<std::filesystem::path> calibration;
  Device device = Device::kCpu;  // where calibration tokens run through the layers
};

struct ArtifactReport {
  int64_t bytes = 0;           // of all files
  int64_t resumed_layers = 0;  // found finished from an earlier run
};

// Errors: kInvalidArgument where the folder exists already, kUnsupported for bits that have no
// packed form.
Result<ArtifactReport> write_artifact(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                      const Recipe& recipe, const ArtifactOptions& options,
                                      const std::filesystem::path& folder, Progress& progress);

// The model that an artifact was made of, where it still stands under its name beside the artifact
// or in the working folder and its config is the one that was read then.
std::optional<std::filesystem::path> find_source(const Checkpoint& artifact);

}  // namespace quarot
