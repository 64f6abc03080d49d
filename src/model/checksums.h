// Checksums of a model that quarot wrote, in its quarot.json: of every file, of the shards one of
// the header and one a tensor, and of quarot.json itself. They find a flipped bit and name it.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "formats/safetensors.h"

namespace quarot {

// Adds to a manifest the checksums of the files beside it, and its own.
Status add_checksums(const std::vector<std::filesystem::path>& files, nlohmann::json& manifest);

// kCorrupt, naming the file, unless the manifest of this folder, its small files and its shards'
// headers are as they were. Tensors are not read: see verified().
Status check_files(const std::filesystem::path& folder, const nlohmann::json& manifest);

// The same tensors, each checked when it is first read; kCorrupt, naming it, if it has changed.
std::unique_ptr<TensorSource> verified(std::unique_ptr<SafetensorsSource> tensors,
                                       const nlohmann::json& manifest);

}  // namespace quarot
