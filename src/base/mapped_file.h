// A whole file as read-only memory. Pages are read when touched and can be dropped by the system,
// so a checkpoint larger than memory can be mapped.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "quarot/status.h"

namespace quarot {

class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Tells the system that these bytes will not be needed soon: resident memory shrinks.
  void drop(std::span<const std::byte> bytes) const;

 private:
  MappedFile(std::filesystem::path path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}
  void unmap();

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The whole of a small file as text, refusing one larger than `limit` bytes.
Result<std::string> read_text_file(const std::filesystem::path& path,
                                   size_t limit = size_t{1} << 30);

}  // namespace quarot
