#include "runtime/report/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "kernels/base/errors.hpp"

namespace testbed {

namespace {

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void failed(const std::string& path, const char* what, int error) {
  throw Error(ExitCode::runtime_failure,
              fmt::format("{}: {} failed: {}", path, what, reason(error)));
}

void write_all(int fd, const std::string& path, std::string_view content) {
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      failed(path, "writing", errno);
    }
    content.remove_prefix(static_cast<size_t>(n));
  }
}

// The file under its temporary name; removed unless it was renamed.
class Temporary {
 public:
  explicit Temporary(const std::string& path) : path_(path), name_(path + ".XXXXXX") {
    fd_ = ::mkstemp(name_.data());
    if (fd_ < 0) {
      throw ConfigError(fmt::format("{}: cannot create a file there: {}", path, reason(errno)));
    }
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (fd_ >= 0) ::close(fd_);
    if (!renamed_) ::unlink(name_.c_str());
  }

  void write(std::string_view content, FileSync sync) {
    write_all(fd_, path_, content);
    // mkstemp makes files for their owner alone.
    const mode_t mask = ::umask(0);
    ::umask(mask);
    if (::fchmod(fd_, 0666 & ~mask) != 0) failed(path_, "setting permissions", errno);
    if (sync == FileSync::at_once && ::fsync(fd_) != 0) failed(path_, "fsync", errno);
    const int closed = ::close(fd_);
    fd_ = -1;
    if (closed != 0) failed(path_, "closing", errno);
  }
  void rename() {
    if (::rename(name_.c_str(), path_.c_str()) != 0) {
      throw ConfigError(fmt::format("{}: cannot be replaced: {}", path_, reason(errno)));
    }
    renamed_ = true;
  }

 private:
  std::string path_;
  std::string name_;
  int fd_ = -1;
  bool renamed_ = false;
};

// A device such as /dev/full or /dev/stdout, or a pipe, is written to: it cannot be replaced.
bool is_special(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

void write_special(const std::string& path, std::string_view content) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) throw ConfigError(fmt::format("{}: cannot be opened: {}", path, reason(errno)));
  try {
    write_all(fd, path, content);
  } catch (...) {
    ::close(fd);
    throw;
  }
  if (::close(fd) != 0) failed(path, "closing", errno);
}

}  // namespace

void check_writable(const std::string& path) {
  if (path != "-" && !is_special(path)) const Temporary probe(path);
}

void write_file(const std::string& path, std::string_view content, FileSync sync) {
  if (path == "-") {
    if (std::fflush(stdout) != 0) failed("standard output", "writing", errno);
    write_all(STDOUT_FILENO, "standard output", content);
    return;
  }
  if (is_special(path)) {
    write_special(path, content);
    return;
  }
  Temporary file(path);
  file.write(content, sync);
  file.rename();
}

}  // namespace testbed
