#include "kernels/base/complaint.hpp"

#include <cstdio>
#include <exception>
#include <utility>

namespace testbed {
namespace {

std::string& process_name() {
  static std::string& name = *new std::string;  // for ever: destructors may complain after main
  return name;
}

}  // namespace

void name_process(std::string name) { process_name() = std::move(name); }

void complain(const std::string& what) noexcept {
  if (std::uncaught_exceptions() > 0) return;
  const std::string& name = process_name();
  std::fprintf(stderr, "testbed: %s%s%s\n", name.c_str(), name.empty() ? "" : ": ", what.c_str());
}

}  // namespace testbed
