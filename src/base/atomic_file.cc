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

// Where a link leads: what it points at is replaced, not the link.
Result<std::filesystem::path> place_of(const std::filesystem::path& path) {
  std::error_code failed;
  if (!std::filesystem::is_symlink(path, failed)) return path;
  std::filesystem::path place = std::filesystem::canonical(path, failed);
  if (failed) {
    return error(ErrorCode::kIo, "{}: cannot follow this link: {}", path.string(),
                 failed.message());
  }
  return place;
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& wanted) {
  QUAROT_ASSIGN_OR_RETURN(std::filesystem::path path, place_of(wanted));
  // To rename over a device would remove it for everybody.
  std::error_code ignored;
  if (const auto status = std::filesystem::status(path, ignored);
      std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return error(ErrorCode::kInvalidArgument,
                 "{}: expected a regular file, or a name that is not taken", wanted.string());
  }
  std::filesystem::path temporary = path;
  temporary += fmt::format(".tmp-{}", ::getpid());
  std::FILE* file = std::fopen(temporary.c_str(), "wbe");
  if (file == nullptr) return io_error(temporary, "create");
  return AtomicFile(std::move(path), std::move(temporary), file);
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
