// A profiler as NVTX sees one (NVTX_INJECTION64_PATH): writes down what begins, "<name", and ends,
// ">".
#include <nvtx3/nvToolsExt.h>

#include <string>

namespace {

std::string& written() {
  static std::string text;
  return text;
}

nvtxDomainHandle_t NVTX_API create(const char* name) {
  written() += std::string(name) + ":";
  return reinterpret_cast<nvtxDomainHandle_t>(&written());
}
int NVTX_API push(nvtxDomainHandle_t /*domain*/, const nvtxEventAttributes_t* attributes) {
  written() += std::string("<") + attributes->message.ascii;
  return 0;
}
int NVTX_API pop(nvtxDomainHandle_t /*domain*/) {
  written() += ">";
  return 0;
}

template <typename Function>
void install(NvtxFunctionTable table, unsigned id, Function function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0 ||
      size <= NVTX_CBID_CORE2_DomainCreateA) {
    return 0;
  }
  install(table, NVTX_CBID_CORE2_DomainCreateA, &create);
  install(table, NVTX_CBID_CORE2_DomainRangePushEx, &push);
  install(table, NVTX_CBID_CORE2_DomainRangePop, &pop);
  return 1;
}

extern "C" const char* nvtx_stand_in_written() { return written().c_str(); }
