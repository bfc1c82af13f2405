// Reads one GGUF part: header, metadata, tensor table; then checks the tensors' places.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/base/errors.hpp"
#include "runtime/weights/ggml_type.hpp"
#include "runtime/weights/gguf_file.hpp"

namespace testbed {
namespace {

constexpr uint32_t max_dims = 4;                      // GGML_MAX_DIMS
constexpr uint64_t max_name_bytes = 65535;            // keys; the format allows 2^16 - 1
constexpr uint64_t max_tensor_name_bytes = 64;        // GGML_MAX_NAME
constexpr uint64_t min_metadata_bytes = 8 + 4 + 1;    // empty key, type, one byte
constexpr uint64_t min_tensor_bytes = 8 + 4 + 4 + 8;  // empty name, n_dims, type, offset
constexpr uint64_t default_alignment = 32;

// Encoded bytes of one element; 0 for strings and arrays, and nullopt for an unknown type.
std::optional<uint64_t> fixed_bytes(uint32_t type) {
  switch (static_cast<GgufType>(type)) {
    case GgufType::uint8:
    case GgufType::int8:
    case GgufType::boolean:
      return 1;
    case GgufType::uint16:
    case GgufType::int16:
      return 2;
    case GgufType::uint32:
    case GgufType::int32:
    case GgufType::float32:
      return 4;
    case GgufType::uint64:
    case GgufType::int64:
    case GgufType::float64:
      return 8;
    case GgufType::string:
    case GgufType::array:
      return 0;
  }
  return std::nullopt;
}

}  // namespace

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes) {
    file_.name_ = name;
  }

  GgufFile run() {
    const uint64_t n_tensors = read_header();
    for (uint64_t i = 0; i < n_metadata_; ++i) read_metadata(i);
    read_alignment();
    if (n_tensors > remaining() / min_tensor_bytes)
      fail(fmt::format(
          "tensor count {} needs more bytes than the {} that are left", n_tensors, remaining()));
    file_.tensors_.reserve(static_cast<size_t>(n_tensors));
    for (uint64_t i = 0; i < n_tensors; ++i) read_tensor_info(i);
    place_tensors();
    file_.index_tensors();
    return std::move(file_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw WeightsError(fmt::format("{}: {}", file_.name_, what));
  }

  uint64_t remaining() const { return bytes_.size() - position_; }

  std::span<const std::byte> take(uint64_t n_bytes, std::string_view what) {
    if (n_bytes > remaining())
      fail(fmt::format("truncated: {} needs {} bytes at offset {}, the file ends after {}",
                       what,
                       n_bytes,
                       position_,
                       remaining()));
    const auto part = bytes_.subspan(position_, static_cast<size_t>(n_bytes));
    position_ += static_cast<size_t>(n_bytes);
    return part;
  }

  template <typename T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string string(std::string_view what, uint64_t max_bytes) {
    const auto n_bytes = number<uint64_t>(fmt::format("length of {}", what));
    if (n_bytes > max_bytes)
      fail(fmt::format("{} is {} bytes long, at most {} are allowed", what, n_bytes, max_bytes));
    const auto part = take(n_bytes, what);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }

  // Returns the tensor count.
  uint64_t read_header() {
    const auto magic = take(4, "magic");
    if (std::memcmp(magic.data(), "GGUF", 4) != 0) fail("not a GGUF file (wrong magic)");
    file_.version_ = number<uint32_t>("version");
    if (file_.version_ == 0x02000000U || file_.version_ == 0x03000000U)
      fail("big-endian GGUF is not supported");
    if (file_.version_ != 2 && file_.version_ != 3)
      fail(fmt::format("GGUF version {} is not supported (2 and 3 are)", file_.version_));
    const auto n_tensors = number<uint64_t>("tensor count");
    n_metadata_ = number<uint64_t>("metadata count");
    if (n_metadata_ > remaining() / min_metadata_bytes)
      fail(fmt::format("metadata count {} needs more bytes than the {} that are left",
                       n_metadata_,
                       remaining()));
    return n_tensors;
  }

  void read_metadata(uint64_t i) {
    const std::string key = string(fmt::format("key of metadata entry {}", i), max_name_bytes);
    const std::string what = fmt::format("metadata '{}'", key);
    auto type = number<uint32_t>(what);
    GgufFile::Value value;
    if (type == static_cast<uint32_t>(GgufType::array)) {
      value.array = true;
      type = number<uint32_t>(what);
      value.count = number<uint64_t>(what);
      if (type == static_cast<uint32_t>(GgufType::array))
        fail(fmt::format("{}: arrays of arrays are not supported", what));
    }
    const auto element_bytes = fixed_bytes(type);
    if (!element_bytes) fail(fmt::format("{} has unknown type {}", what, type));
    value.type = static_cast<GgufType>(type);
    value.bytes = value.type == GgufType::string ? take_strings(value.count, what)
                                                 : take_numbers(value, *element_bytes, what);
    if (!file_.metadata_.emplace(key, value).second) fail(fmt::format("{} appears twice", what));
  }

  std::span<const std::byte> take_numbers(const GgufFile::Value& value,
                                          uint64_t element_bytes,
                                          const std::string& what) {
    if (value.count > remaining() / element_bytes)
      fail(fmt::format("truncated: {} has {} elements of {} bytes, the file ends after {} bytes",
                       what,
                       value.count,
                       element_bytes,
                       remaining()));
    return take(value.count * element_bytes, what);
  }

  std::span<const std::byte> take_strings(uint64_t count, const std::string& what) {
    if (count > remaining() / sizeof(uint64_t))
      fail(fmt::format(
          "truncated: {} has {} strings, the file ends after {} bytes", what, count, remaining()));
    const size_t begin = position_;
    for (uint64_t i = 0; i < count; ++i) take(number<uint64_t>(what), what);
    return bytes_.subspan(begin, position_ - begin);
  }

  void read_alignment() {
    const auto alignment = file_.find_int("general.alignment");
    if (!alignment) return;
    if (*alignment <= 0 || *alignment % 8 != 0 || *alignment > std::numeric_limits<int32_t>::max())
      fail(fmt::format("general.alignment is {}, it must be a positive multiple of 8", *alignment));
    alignment_ = static_cast<uint64_t>(*alignment);
  }

  void read_tensor_info(uint64_t i) {
    GgufTensor tensor;
    tensor.name = string(fmt::format("name of tensor {}", i), max_tensor_name_bytes);
    tensor.file = file_.name_;
    const std::string what = fmt::format("tensor '{}'", tensor.name);
    const auto n_dims = number<uint32_t>(what);
    if (n_dims > max_dims)
      fail(fmt::format("{} has {} dimensions, at most {} are allowed", what, n_dims, max_dims));
    for (uint32_t d = 0; d < n_dims; ++d) {
      const auto dim = number<uint64_t>(what);
      if (dim == 0) fail(fmt::format("{}: dimension {} is zero", what, d));
      if (dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        fail(fmt::format("{}: dimension {} is {}, out of range", what, d, dim));
      tensor.dims.push_back(static_cast<int64_t>(dim));
    }
    tensor.ggml_type = number<uint32_t>(what);
    offsets_.push_back(number<uint64_t>(what));
    n_bytes_.push_back(tensor_bytes(tensor, what));
    file_.tensors_.push_back(std::move(tensor));
  }

  uint64_t tensor_bytes(const GgufTensor& tensor, const std::string& what) const {
    const GgmlTypeInfo* info = find_ggml_type(tensor.ggml_type);
    if (info == nullptr)
      fail(
          fmt::format("{} has tensor type {}, which ggml does not define", what, tensor.ggml_type));
    int64_t n = 1;
    for (const int64_t dim : tensor.dims)
      if (__builtin_mul_overflow(n, dim, &n))
        fail(fmt::format("{}: its number of elements is out of range", what));
    const int64_t cols = tensor.dims.empty() ? 1 : tensor.dims[0];
    if (cols % info->block_elements != 0)
      fail(fmt::format("{}: rows of {} elements do not fill whole {} blocks of {}",
                       what,
                       cols,
                       info->name,
                       info->block_elements));
    int64_t n_bytes = 0;
    if (__builtin_mul_overflow(n / info->block_elements, info->block_bytes, &n_bytes))
      fail(fmt::format("{}: its number of bytes is out of range", what));
    return static_cast<uint64_t>(n_bytes);
  }

  // Data starts at the next aligned offset; a tensor's offset counts from there.
  void place_tensors() {
    const uint64_t data_begin = (position_ + alignment_ - 1) / alignment_ * alignment_;
    const uint64_t n_data = bytes_.size() > data_begin ? bytes_.size() - data_begin : 0;
    std::vector<size_t> order(offsets_.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
      GgufTensor& tensor = file_.tensors_[i];
      if (offsets_[i] % alignment_ != 0)
        fail(fmt::format("tensor '{}': offset {} is not a multiple of the alignment {}",
                         tensor.name,
                         offsets_[i],
                         alignment_));
      if (offsets_[i] > n_data || n_bytes_[i] > n_data - offsets_[i])
        fail(
            fmt::format("truncated: tensor '{}' has {} bytes at data offset {}, the file has {} "
                        "bytes of data",
                        tensor.name,
                        n_bytes_[i],
                        offsets_[i],
                        n_data));
      tensor.data = bytes_.subspan(static_cast<size_t>(data_begin + offsets_[i]),
                                   static_cast<size_t>(n_bytes_[i]));
    }
    std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return offsets_[a] < offsets_[b];
    });
    for (size_t i = 1; i < order.size(); ++i) {
      const size_t before = order[i - 1];
      if (offsets_[before] + n_bytes_[before] > offsets_[order[i]])
        fail(fmt::format("tensors '{}' and '{}' overlap",
                         file_.tensors_[before].name,
                         file_.tensors_[order[i]].name));
    }
  }

  std::span<const std::byte> bytes_;
  size_t position_ = 0;
  uint64_t n_metadata_ = 0;
  uint64_t alignment_ = default_alignment;
  std::vector<uint64_t> offsets_;
  std::vector<uint64_t> n_bytes_;
  GgufFile file_;
};

GgufFile GgufFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  return GgufParser(bytes, name).run();
}

}  // namespace testbed
