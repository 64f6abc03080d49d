#include "base/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace quarot {

namespace {

Error io_error(const std::filesystem::path& path, const char* what) {
  return error(ErrorCode::kIo, "{}: cannot {}: {}", path.string(), what, std::strerror(errno));
}

// A rename survives a power cut only once the directory itself is on disk.
void sync_directory(const std::filesystem::path& directory) {
  const int fd =
      ::open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".tmp-{}", ::getpid());
  std::FILE* file = std::fopen(temporary.c_str(), "wbe");
  if (file == nullptr) return io_error(temporary, "create");
  return AtomicFile(path, std::move(temporary), file);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      file_(std::exchange(other.file_, nullptr)) {}

AtomicFile::~AtomicFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) {
    return io_error(temporary_, "write");
  }
  return {};
}

Status AtomicFile::write(std::string_view text) { return write(std::as_bytes(std::span(text))); }

Status AtomicFile::commit() {
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0)
    return io_error(temporary_, "write");
  if (std::fclose(std::exchange(file_, nullptr)) != 0) return io_error(temporary_, "close");
  return rename_durably(temporary_, path_);
}

Status rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) return io_error(to, "rename to");
  sync_directory(to.parent_path());
  return {};
}

Status write_file_atomically(const std::filesystem::path& path, std::string_view contents) {
  QUAROT_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  QUAROT_RETURN_IF_ERROR(file.write(contents));
  return file.commit();
}

}  // namespace quarot
