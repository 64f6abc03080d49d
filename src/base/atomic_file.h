// Files that appear whole or not at all: written under a temporary name beside the final one,
// flushed to disk, then renamed. A killed run leaves only the temporary.
#pragma once

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string_view>

#include "quarot/status.h"

namespace quarot {

class AtomicFile {
 public:
  // A link is followed. kInvalidArgument where a folder, a device or a pipe is in the way.
  static Result<AtomicFile> create(const std::filesystem::path& wanted);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();  // without commit(): removes the temporary

  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text);

  // Flushes, syncs and renames. Nothing may be written afterwards.
  Status commit();

 private:
  AtomicFile(std::filesystem::path path, std::filesystem::path temporary, std::FILE* file)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(file) {}

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::FILE* file_ = nullptr;
};

// Renames a file or a folder so that the new name survives a power cut.
Status rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// One small file, whole or not at all.
Status write_file_atomically(const std::filesystem::path& path, std::string_view contents);

}  // namespace quarot
