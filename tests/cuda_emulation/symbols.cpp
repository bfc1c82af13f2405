// Reads the symbol table of the running program (ELF, 64 bits). A variable `x` that is static in
// the function _ZN1kE has the symbol _ZZN1kE...1x: so the __shared__ variables of a kernel are
// found.
#include "tests/cuda_emulation/symbols.hpp"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>

namespace emulation {
namespace {

struct Symbol {
  uintptr_t address;
  size_t n_bytes;
};
struct SymbolTable {
  std::map<uintptr_t, std::string> functions;
  std::map<std::string, Symbol> statics;  // of functions
};

uintptr_t load_address() {
  uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t /*size*/, void* result) {
        *static_cast<uintptr_t*>(result) = info->dlpi_addr;
        return 1;  // the first is the program
      },
      &address);
  return address;
}

template <typename T>
std::vector<T> read_array(std::ifstream& file, uint64_t offset, uint64_t n_bytes) {
  std::vector<T> items(n_bytes / sizeof(T));
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(items.data()), static_cast<std::streamsize>(n_bytes));
  return items;
}

void add_symbols(SymbolTable& table,
                 const std::vector<Elf64_Shdr>& sections,
                 const std::vector<Elf64_Sym>& symbols,
                 const std::vector<char>& names) {
  const uintptr_t base = load_address();
  for (const Elf64_Sym& symbol : symbols) {
    const char* name = names.data() + symbol.st_name;
    if (symbol.st_value == 0 || std::strncmp(name, "_Z", 2) != 0) continue;
    const unsigned type = ELF64_ST_TYPE(symbol.st_info);
    if (type == STT_FUNC) table.functions[base + symbol.st_value] = name;
    // Not initialised, so no tables of constants.
    const bool is_zero =
        symbol.st_shndx < sections.size() && sections[symbol.st_shndx].sh_type == SHT_NOBITS;
    if (type == STT_OBJECT && is_zero && std::strncmp(name, "_ZZ", 3) == 0) {
      table.statics[name] = {base + symbol.st_value, symbol.st_size};
    }
  }
}

SymbolTable read_symbols() {
  SymbolTable table;
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const auto header = read_array<Elf64_Ehdr>(file, 0, sizeof(Elf64_Ehdr));
  const auto sections = read_array<Elf64_Shdr>(
      file, header[0].e_shoff, uint64_t{header[0].e_shnum} * sizeof(Elf64_Shdr));
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    const Elf64_Shdr& strings = sections[section.sh_link];
    add_symbols(table,
                sections,
                read_array<Elf64_Sym>(file, section.sh_offset, section.sh_size),
                read_array<char>(file, strings.sh_offset, strings.sh_size));
  }
  return table;
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

KernelSymbols find_symbols(const void* kernel) {
  static const SymbolTable& table = *new SymbolTable(read_symbols());
  KernelSymbols found;
  const auto function = table.functions.find(reinterpret_cast<uintptr_t>(kernel));
  if (function == table.functions.end()) {
    std::array<char, 32> address{};
    std::snprintf(address.data(), address.size(), "at %p", kernel);
    found.name = address.data();
    return found;
  }
  found.name = demangled(function->second);
  const std::string prefix = "_ZZ" + function->second.substr(2);
  for (auto at = table.statics.lower_bound(prefix);
       at != table.statics.end() && at->first.compare(0, prefix.size(), prefix) == 0;
       ++at) {
    found.shared.emplace_back(reinterpret_cast<std::byte*>(at->second.address), at->second.n_bytes);
    found.shared_bytes += at->second.n_bytes;
  }
  return found;
}

}  // namespace

const KernelSymbols& symbols_of(const void* kernel) {
  static auto& known = *new std::map<const void*, KernelSymbols>;
  const auto found = known.find(kernel);
  return found != known.end() ? found->second
                              : known.emplace(kernel, find_symbols(kernel)).first->second;
}

}  // namespace emulation
