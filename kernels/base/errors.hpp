// Failures that are not bugs. Each message says where (file:line, tensor, rank) and what would be
// right.
#pragma once

#include <stdexcept>
#include <string>

namespace testbed {

// Exit codes of the program (docs/usage.md).
enum class ExitCode : int { ok = 0, internal_error = 1, user_error = 2, runtime_failure = 3 };

// Base of everything below. what() is one line without a trailing newline.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// A mistake in the command line, a configuration file, or an illegal split. Exit code 2.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message) : Error(ExitCode::user_error, message) {}
};

// A malformed, truncated or missing weights file. Exit code 2.
class WeightsError : public Error {
 public:
  explicit WeightsError(const std::string& message) : Error(ExitCode::user_error, message) {}
};

// A rank, link or device failed or timed out. Exit code 3.
class CommError : public Error {
 public:
  explicit CommError(const std::string& message) : Error(ExitCode::runtime_failure, message) {}
};

// A call to a device's runtime or libraries failed; names the call and its code. Exit code 3.
class DeviceError : public Error {
 public:
  explicit DeviceError(const std::string& message) : Error(ExitCode::runtime_failure, message) {}
};

// A failure that every rank of the job knows of (ControlChannel::agree): rank 0 says it for all.
class JobError : public CommError {
 public:
  using CommError::CommError;
};

// A value left the range of its type (D22); names the layer and rank. Exit code 3.
class NumericError : public Error {
 public:
  explicit NumericError(const std::string& message) : Error(ExitCode::runtime_failure, message) {}
};

}  // namespace testbed
