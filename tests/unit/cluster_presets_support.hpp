// Shared by the tests of device, link and cluster presets: the files there are, and what a reader
// says to a text.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "runtime/config/cluster_config.hpp"
#include "runtime/config/device_config.hpp"
#include "tests/unit/config_test_support.hpp"

namespace testbed::test {

inline std::filesystem::path preset_folder(const std::string& kind) {
  return std::filesystem::path(TESTBED_SOURCE_DIR) / "configs" / kind;
}

inline std::set<std::string> preset_names(const std::string& kind) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(preset_folder(kind)))
    names.insert(entry.path().stem().string());
  return names;
}

inline std::string preset_text(const std::string& kind, const std::string& name) {
  return file_text(preset_folder(kind) / (name + ".toml"));
}

// A file of this text, there as long as the object; the name holds the process, since ctest runs
// tests of one program at once.
class TomlFile {
 public:
  explicit TomlFile(const std::string& text)
      : path_(std::filesystem::path(testing::TempDir()) /
              ("testbed_" + std::to_string(::getpid()) + ".toml")) {
    std::ofstream(path_) << text;
  }
  ~TomlFile() { std::filesystem::remove(path_); }
  TomlFile(const TomlFile&) = delete;
  TomlFile& operator=(const TomlFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline DeviceSpec device_from(const std::string& text) {
  const TomlFile file(text);
  return read_device(file.path());
}
inline ClusterSpec cluster_from(const std::string& text) {
  const TomlFile file(text);
  return read_cluster(file.path());
}
inline std::string device_error(const std::string& text) {
  return config_error([&] { device_from(text); });
}
inline std::string cluster_error(const std::string& text) {
  return config_error([&] { cluster_from(text); });
}

}  // namespace testbed::test
