// safetensors: an 8-byte little-endian header length, a JSON header {name: {dtype, shape,
// data_offsets}}, the data. https://github.com/huggingface/safetensors#format
#pragma once

#include <map>
#include <memory>
#include <span>

#include "formats/tensor_source.h"
#include "tensor/dtype.h"

namespace quarot {

// The stored bytes of a tensor as they lie in the file (packed weights are not float), at any
// alignment; valid while the source lives.
struct RawTensor {
  Dtype dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};
class SafetensorsSource : public TensorSource {
 public:
  // Errors: kNotFound; kUnsupported for a type that Dtype does not have.
  virtual Result<RawTensor> raw(std::string_view name) const = 0;

  // The header's __metadata__; of shards, all of them together.
  virtual const std::map<std::string, std::string>& metadata() const = 0;
};

// Opens one file, a model.safetensors.index.json with its shards beside it, or a folder that holds
// either. Validates every header whole before it returns: sizes, overlaps, gaps, duplicates,
// dtypes. Of a shard, the tensors that the index assigns to it are there.
Result<std::unique_ptr<SafetensorsSource>> open_safetensors(const std::filesystem::path& path);

// The bytes of one file that stand before its data.
Result<std::string> read_safetensors_header(const std::filesystem::path& path);

// Writes one file, streaming: the header is computed from `plan` first, then the tensors' bytes are
// appended in that order, then commit() puts it under its final name.
struct TensorPlan {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
};
class SafetensorsWriter {
 public:
  static Result<SafetensorsWriter> create(const std::filesystem::path& path,
                                          std::vector<TensorPlan> plan,
                                          const std::map<std::string, std::string>& metadata);
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  // The next tensor's bytes; may come in several pieces. kInvalidArgument if they overrun the plan.
  Status append(std::string_view name, std::span<const std::byte> bytes);
  Status commit();  // kInvalidArgument while anything planned is missing

 private:
  struct State;
  explicit SafetensorsWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quarot
