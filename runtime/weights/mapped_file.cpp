// mmap of a whole file, private and read-only.
#include "runtime/weights/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/errors.hpp"

namespace testbed {
namespace {

struct Descriptor {
  int fd;
  explicit Descriptor(int f) : fd(f) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0)
    throw WeightsError(fmt::format("{}: cannot open: {}", path.string(), std::strerror(errno)));
  struct stat status {};
  if (fstat(file.fd, &status) != 0)
    throw WeightsError(fmt::format("{}: cannot stat: {}", path.string(), std::strerror(errno)));
  if (!S_ISREG(status.st_mode))
    throw WeightsError(fmt::format("{}: not a regular file", path.string()));
  n_bytes_ = static_cast<size_t>(status.st_size);
  if (n_bytes_ == 0) return;
  void* data = mmap(nullptr, n_bytes_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED)
    throw WeightsError(
        fmt::format("{}: cannot map {} bytes: {}", path.string(), n_bytes_, std::strerror(errno)));
  // A hint: tensors are read from front to back, once, so that the kernel reads further ahead.
  madvise(data, n_bytes_, MADV_SEQUENTIAL);
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), n_bytes_);
}

}  // namespace testbed
