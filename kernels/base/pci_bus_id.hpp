// PCI addresses as text: CUDA says "0000:1B:00.0", NVML "00000000:1B:00.0", sysfs "0000:1b:00.0".
#pragma once

#include <cctype>
#include <string>
#include <string_view>

namespace testbed {

// As sysfs has it: lower case, a domain of four digits unless it needs more.
inline std::string canonical_pci_bus_id(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::string(text);
  if (text.find(':', colon + 1) == std::string_view::npos) {  // "1b:00.0": no domain
    return canonical_pci_bus_id("0000:" + std::string(text));
  }
  size_t n_digits = colon;
  while (n_digits > 4 && text.front() == '0') {
    text.remove_prefix(1);
    --n_digits;
  }
  std::string canonical(4 > n_digits ? 4 - n_digits : 0, '0');
  for (const char c : text) canonical += static_cast<char>(std::tolower(c));
  return canonical;
}

}  // namespace testbed
