#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace quarot {

namespace {

// Without waiting: a pipe under a file's name would keep open() until someone writes to it.
constexpr int kReadOnly = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Error io_error(const std::filesystem::path& path, const char* what) {
  const int code = errno;
  const auto kind = code == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
  return error(kind, "{}: cannot {}: {}", path.string(), what, std::strerror(code));
}

Result<size_t> regular_file_size(int fd, const std::filesystem::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return io_error(path, "read its size");
  if (!S_ISREG(info.st_mode)) {
    return error(ErrorCode::kInvalidArgument, "{}: expected a regular file", path.string());
  }
  return static_cast<size_t>(info.st_size);
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const FileDescriptor fd(::open(path.c_str(), kReadOnly));
  if (fd.get() < 0) return io_error(path, "open");
  QUAROT_ASSIGN_OR_RETURN(const size_t size, regular_file_size(fd.get(), path));
  if (size == 0) return MappedFile(path, nullptr, 0);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return io_error(path, "map");
  return MappedFile(path, static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

MappedFile::~MappedFile() { unmap(); }

void MappedFile::unmap() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop(std::span<const std::byte> bytes) const {
  if (bytes.empty()) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = (reinterpret_cast<uintptr_t>(bytes.data()) + page - 1) / page * page;
  const auto last = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size()) / page * page;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

Result<std::string> read_text_file(const std::filesystem::path& path, size_t limit) {
  const FileDescriptor fd(::open(path.c_str(), kReadOnly));
  if (fd.get() < 0) return io_error(path, "open");
  QUAROT_ASSIGN_OR_RETURN(const size_t size, regular_file_size(fd.get(), path));
  if (size > limit) {
    return error(ErrorCode::kInvalidArgument, "{}: {} bytes, expected at most {}", path.string(),
                 size, limit);
  }
  std::string text(size, '\0');
  for (size_t done = 0; done < size;) {
    const ssize_t count = ::read(fd.get(), text.data() + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return io_error(path, "read");
    if (count == 0) {
      text.resize(done);
      break;
    }
    done += static_cast<size_t>(count);
  }
  return text;
}

}  // namespace quarot
