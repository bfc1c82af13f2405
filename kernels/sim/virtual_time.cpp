// Opens the SimGrid plugin. It lies beside the program, or where the build put it.
#include "kernels/sim/virtual_time.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "kernels/base/check.hpp"
#include "kernels/base/errors.hpp"

namespace testbed {
namespace {

using MakeVirtualTime = VirtualTime* (*)(const ClusterSpec*);

void* open_plugin() {
  constexpr const char* name = "libtestbed_sim.so";
  std::error_code ignored;
  const auto beside = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / name;
  const std::filesystem::path places[] = {beside, std::filesystem::path(TESTBED_PLUGIN_DIR) / name};
  std::string why;
  for (const std::filesystem::path& place : places) {
    if (!std::filesystem::exists(place, ignored)) continue;
    if (void* plugin = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return plugin;
    why = dlerror();
  }
  throw ConfigError("the simulator cannot be opened: " +
                    (why.empty() ? beside.string() + " is missing" : why));
}

}  // namespace

std::unique_ptr<VirtualTime> make_virtual_time(const ClusterSpec& cluster) {
  static void* const plugin = open_plugin();
  static const auto make =
      reinterpret_cast<MakeVirtualTime>(dlsym(plugin, "testbed_make_virtual_time"));
  if (make == nullptr) throw InternalError("the simulator's plugin has no entry");
  return std::unique_ptr<VirtualTime>(make(&cluster));
}

double occupied_bytes(const ClusterSpec& cluster,
                      bool same_node,
                      int64_t n_bytes,
                      double rate_bytes_per_s) {
  const double line = same_node ? cluster.node.link.bytes_per_s : cluster.fabric->nic.bytes_per_s;
  const auto bytes = static_cast<double>(n_bytes);
  return rate_bytes_per_s <= 0.0 || rate_bytes_per_s >= line ? bytes
                                                             : bytes * line / rate_bytes_per_s;
}

}  // namespace testbed
