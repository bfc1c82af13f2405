// Parses and checks a safetensors header.
#include "runtime/weights/safetensors_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/base/errors.hpp"
#include "runtime/weights/strict_json.hpp"

namespace testbed {
namespace {

using nlohmann::json;

constexpr uint64_t max_header_bytes = 100'000'000;  // the format's own limit

std::optional<int64_t> dtype_bits(std::string_view dtype) {
  constexpr std::array<std::pair<std::string_view, int64_t>, 19> table{{{"F4", 4},
                                                                        {"F6_E2M3", 6},
                                                                        {"F6_E3M2", 6},
                                                                        {"BOOL", 8},
                                                                        {"U8", 8},
                                                                        {"I8", 8},
                                                                        {"F8_E5M2", 8},
                                                                        {"F8_E4M3", 8},
                                                                        {"F8_E8M0", 8},
                                                                        {"I16", 16},
                                                                        {"U16", 16},
                                                                        {"F16", 16},
                                                                        {"BF16", 16},
                                                                        {"I32", 32},
                                                                        {"U32", 32},
                                                                        {"F32", 32},
                                                                        {"I64", 64},
                                                                        {"U64", 64},
                                                                        {"F64", 64}}};
  for (const auto& [name, bits] : table)
    if (name == dtype) return bits;
  return std::nullopt;
}

// The half-open byte range of a tensor in the data section.
struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string tensor;
};

class HeaderReader {
 public:
  HeaderReader(const std::string& file, std::span<const std::byte> bytes)
      : file_(file), bytes_(bytes) {}

  std::map<std::string, SafetensorsTensor, std::less<>> run() {
    const json header = read_json();
    for (const auto& [name, entry] : header.items())
      if (name != "__metadata__") read_tensor(name, entry);
    check_layout();
    for (const Extent& extent : extents_)
      tensors_[extent.tensor].data = data_.subspan(static_cast<size_t>(extent.begin),
                                                   static_cast<size_t>(extent.end - extent.begin));
    return std::move(tensors_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw WeightsError(fmt::format("{}: {}", file_, what));
  }
  [[noreturn]] void fail(const std::string& tensor, const std::string& what) const {
    fail(fmt::format("tensor '{}': {}", tensor, what));
  }

  json read_json() {
    uint64_t n_header = 0;
    if (bytes_.size() < sizeof(n_header))
      fail(fmt::format("truncated: {} bytes, the header length alone needs 8", bytes_.size()));
    std::memcpy(&n_header, bytes_.data(), sizeof(n_header));
    if (n_header > max_header_bytes)
      fail(fmt::format("header of {} bytes is longer than the format's limit of {}",
                       n_header,
                       max_header_bytes));
    const auto rest = bytes_.subspan(sizeof(n_header));
    if (n_header > rest.size())
      fail(fmt::format(
          "truncated: the header has {} bytes, the file ends after {}", n_header, rest.size()));
    data_ = rest.subspan(static_cast<size_t>(n_header));
    const std::string_view text(reinterpret_cast<const char*>(rest.data()),
                                static_cast<size_t>(n_header));
    if (!text.starts_with('{')) fail("the header does not start with '{'");
    return parse_strict_json(text, file_, "header");
  }

  // A non-negative integer; anything else is an error.
  int64_t natural(const std::string& tensor, std::string_view field, const json& value) const {
    if (!value.is_number_unsigned() ||
        value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      fail(tensor,
           fmt::format("{} has {}, expected a non-negative integer",
                       field,
                       value.is_number() ? value.dump() : value.type_name()));
    return value.get<int64_t>();
  }

  const json& field(const std::string& tensor, const json& entry, const char* key) const {
    const auto it = entry.find(key);
    if (it == entry.end()) fail(tensor, fmt::format("'{}' is missing", key));
    return *it;
  }

  void read_tensor(const std::string& name, const json& entry) {
    if (!entry.is_object()) fail(name, "its header entry is not an object");
    const json& dtype = field(name, entry, "dtype");
    const json& shape = field(name, entry, "shape");
    const json& offsets = field(name, entry, "data_offsets");
    if (!dtype.is_string()) fail(name, "'dtype' is not a string");
    if (!shape.is_array()) fail(name, "'shape' is not an array");
    if (!offsets.is_array() || offsets.size() != 2)
      fail(name, "'data_offsets' is not [begin, end]");
    SafetensorsTensor tensor;
    tensor.dtype = dtype.get<std::string>();
    for (const json& dim : shape) tensor.shape.push_back(natural(name, "'shape'", dim));
    Extent extent{static_cast<uint64_t>(natural(name, "'data_offsets'", offsets[0])),
                  static_cast<uint64_t>(natural(name, "'data_offsets'", offsets[1])),
                  name};
    if (extent.begin > extent.end)
      fail(name, fmt::format("'data_offsets' [{}, {}] run backwards", extent.begin, extent.end));
    check_size(name, tensor, extent);
    extents_.push_back(std::move(extent));
    tensors_.emplace(name, std::move(tensor));
  }

  // The bytes of a dtype that we do not know cannot be checked; such a tensor is refused when read.
  void check_size(const std::string& name, const SafetensorsTensor& t, const Extent& extent) const {
    const auto bits = dtype_bits(t.dtype);
    if (!bits) return;
    int64_t n_bits = *bits;
    for (const int64_t dim : t.shape)
      if (__builtin_mul_overflow(n_bits, dim, &n_bits))
        fail(name, "its number of bytes is out of range");
    const uint64_t n_bytes = extent.end - extent.begin;
    if (n_bits % 8 != 0 || static_cast<uint64_t>(n_bits / 8) != n_bytes)
      fail(name,
           fmt::format("shape [{}] of {} needs {} bytes, 'data_offsets' [{}, {}] hold {}",
                       fmt::join(t.shape, ", "),
                       t.dtype,
                       (n_bits + 7) / 8,
                       extent.begin,
                       extent.end,
                       n_bytes));
  }

  // The tensors must tile the data section: no overlap, no hole, nothing after the last.
  void check_layout() {
    std::sort(extents_.begin(), extents_.end(), [](const Extent& a, const Extent& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    for (const Extent& extent : extents_)
      if (extent.end > data_.size())
        fail(extent.tensor,
             fmt::format("truncated: its data ends at byte {} of the data, the file holds {}",
                         extent.end,
                         data_.size()));
    uint64_t position = 0;
    const std::string* before = nullptr;
    for (const Extent& extent : extents_) {
      if (extent.begin < position)
        fail(extent.tensor, fmt::format("its data overlaps that of tensor '{}'", *before));
      if (extent.begin > position)
        fail(extent.tensor,
             fmt::format("a hole of {} bytes lies before its data", extent.begin - position));
      position = extent.end;
      before = &extent.tensor;
    }
    if (position != data_.size())
      fail(fmt::format("{} trailing bytes after the last tensor", data_.size() - position));
  }

  const std::string& file_;
  std::span<const std::byte> bytes_;
  std::span<const std::byte> data_;
  std::map<std::string, SafetensorsTensor, std::less<>> tensors_;
  std::vector<Extent> extents_;
};

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  auto map = std::make_shared<const MappedFile>(path);
  SafetensorsFile file = parse(map->bytes(), path.string());
  file.map_ = std::move(map);
  return file;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  SafetensorsFile file;
  file.name_ = name;
  file.tensors_ = HeaderReader(file.name_, bytes).run();
  return file;
}

}  // namespace testbed
