// A folder that one process at a time writes into.
#pragma once

#include <filesystem>

#include "quarot/status.h"

namespace quarot {

class FolderLock {
 public:
  // kInvalidArgument where another process holds it. The lock goes with the process that holds it,
  // however that ends; where the file system knows no locks, there is none.
  static Result<FolderLock> acquire(const std::filesystem::path& folder);

  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int descriptor) : descriptor_(descriptor) {}

  int descriptor_;
};

}  // namespace quarot
