#include "kernels/cuda/profiler.hpp"

#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <string>

namespace testbed::cuda {

Profiler::Profiler() : domain_(nvtxDomainCreateA("testbed")) {}

void Profiler::begin(std::string_view name, int64_t index) const {
  if (domain_ == nullptr) return;
  const std::string text = index < 0 ? std::string(name) : fmt::format("{} {}", name, index);
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = text.c_str();
  nvtxDomainRangePushEx(domain_, &attributes);
}

void Profiler::end() const {
  if (domain_ != nullptr) nvtxDomainRangePop(domain_);
}

}  // namespace testbed::cuda
