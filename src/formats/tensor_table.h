// What the formats share below tensor_source.h: a checked table of contents over bytes that are
// mapped from a file.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "formats/block_format.h"
#include "formats/tensor_source.h"

namespace quarot {

// A file as a parser sees it. Without a mapping the bytes are the caller's and outlive the table.
struct FileView {
  std::filesystem::path path;
  std::span<const std::byte> bytes;
  std::shared_ptr<const MappedFile> mapping;
};
Result<FileView> map_file(const std::filesystem::path& path);

// Where one tensor lies and how it is read.
struct StoredTensor {
  const BlockFormat* format = nullptr;
  std::span<const std::byte> bytes;
  std::shared_ptr<const MappedFile> mapping;

  // Not 0: the rows are heads of so many rows, each holding the pairs of its rotary embedding
  // interleaved (0, d/2, 1, d/2 + 1, …); they are read in the order 0, 1, …, d − 1.
  int64_t interleaved_head = 0;

  // Once read, some of its bytes or all need no room in memory any more.
  void drop(std::span<const std::byte> part) const {
    if (mapping != nullptr) mapping->drop(part);
  }
  void drop() const { drop(bytes); }
};

class TensorTable {
 public:
  TensorTable() = default;
  explicit TensorTable(std::filesystem::path path) : path_(std::move(path)) {}

  Status add(TensorInfo info, StoredTensor stored);  // kCorrupt if the name is taken

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& infos() const { return infos_; }
  const TensorInfo* find(std::string_view name) const;
  const StoredTensor& stored(const TensorInfo& info) const {
    return stored_[static_cast<size_t>(&info - infos_.data())];
  }

  // As TensorSource has them.
  Result<Matrix> read(std::string_view name) const;
  Result<Matrix> read_rows(std::string_view name, int64_t first, int64_t count) const;

  Error not_found(std::string_view name) const;

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  std::filesystem::path path_;
  std::vector<TensorInfo> infos_;
  std::vector<StoredTensor> stored_;
  std::unordered_map<std::string, size_t, Hash, std::equal_to<>> index_;
};

// The TensorSource half of a format's file class.
template <typename Interface>
class TableSource : public Interface {
 public:
  explicit TableSource(TensorTable table) : table_(std::move(table)) {}

  const std::filesystem::path& path() const override { return table_.path(); }
  const std::vector<TensorInfo>& tensors() const override { return table_.infos(); }
  const TensorInfo* find(std::string_view name) const override { return table_.find(name); }
  Result<Matrix> read(std::string_view name) const override { return table_.read(name); }
  Result<Matrix> read_rows(std::string_view name, int64_t first, int64_t count) const override {
    return table_.read_rows(name, first, count);
  }

 protected:
  const TensorTable& table() const { return table_; }

 private:
  TensorTable table_;
};

// `tensor "name"` for messages: quoted, escaped and cut to a line, since the name is a stranger's.
std::string tensor_label(std::string_view name);

}  // namespace quarot
