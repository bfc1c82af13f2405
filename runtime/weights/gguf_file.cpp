// GGUF files and split sets: opening, merging, and typed access to the metadata.
#include "runtime/weights/gguf_file.hpp"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <utility>

#include "kernels/base/errors.hpp"

namespace testbed {
namespace {

template <typename T>
T element(std::span<const std::byte> bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

// PREFIX of PREFIX-00001-of-0000N.gguf; nullopt if the name is not that of part `no` of `count`.
std::optional<std::string> split_prefix(const std::string& path, int64_t no, int64_t count) {
  const std::string suffix = fmt::format("-{:05}-of-{:05}.gguf", no + 1, count);
  if (!path.ends_with(suffix)) return std::nullopt;
  return path.substr(0, path.size() - suffix.size());
}

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  constexpr std::string_view names[] = {"uint8",
                                        "int8",
                                        "uint16",
                                        "int16",
                                        "uint32",
                                        "int32",
                                        "float32",
                                        "bool",
                                        "string",
                                        "array",
                                        "uint64",
                                        "int64",
                                        "float64"};
  return names[static_cast<uint32_t>(type)];
}

GgufFile GgufFile::open(const std::filesystem::path& path) {
  auto map = std::make_shared<const MappedFile>(path);
  GgufFile file = parse(map->bytes(), path.string());
  file.maps_.push_back(std::move(map));
  file.append_parts(path);
  return file;
}

void GgufFile::append_parts(const std::filesystem::path& first) {
  const auto count = find_int("split.count");
  if (!count || *count == 1) return;
  if (*count < 1 || *count > std::numeric_limits<uint16_t>::max())
    throw WeightsError(fmt::format("{}: split.count is {}", name_, *count));
  const int64_t no = get_int("split.no");
  if (no != 0)
    throw WeightsError(fmt::format(
        "{}: is part {} of {} (split.no {}): give the first part", name_, no + 1, *count, no));
  const auto prefix = split_prefix(first.string(), 0, *count);
  if (!prefix)
    throw WeightsError(
        fmt::format("{}: is the first of {} parts (split.count) and must be named "
                    "…-00001-of-{:05}.gguf for the others to be found",
                    name_,
                    *count,
                    *count));
  const auto n_tensors = find_int("split.tensors.count");
  for (int64_t i = 1; i < *count; ++i) {
    const std::string path = fmt::format("{}-{:05}-of-{:05}.gguf", *prefix, i + 1, *count);
    if (!std::filesystem::exists(path))
      throw WeightsError(
          fmt::format("{}: part {} of {} is missing: {}", name_, i + 1, *count, path));
    auto map = std::make_shared<const MappedFile>(path);
    GgufFile part = parse(map->bytes(), path);
    if (part.get_int("split.no") != i || part.get_int("split.count") != *count)
      throw WeightsError(fmt::format("{}: split.no {} of split.count {}, expected {} of {}",
                                     path,
                                     part.get_int("split.no"),
                                     part.get_int("split.count"),
                                     i,
                                     *count));
    part.maps_.push_back(std::move(map));
    append_part(std::move(part));
  }
  index_tensors();
  if (n_tensors && static_cast<uint64_t>(*n_tensors) != tensors_.size())
    throw WeightsError(fmt::format("{}: the {} parts hold {} tensors, split.tensors.count says {}",
                                   name_,
                                   *count,
                                   tensors_.size(),
                                   *n_tensors));
}

void GgufFile::append_part(GgufFile part) {
  for (GgufTensor& tensor : part.tensors_) tensors_.push_back(std::move(tensor));
  for (auto& map : part.maps_) maps_.push_back(std::move(map));
}

void GgufFile::index_tensors() {
  tensor_index_.clear();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto [it, inserted] = tensor_index_.emplace(tensors_[i].name, i);
    if (!inserted)
      throw WeightsError(fmt::format("{}: tensor '{}' appears twice", tensors_[i].file, it->first));
  }
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

std::vector<std::string> GgufFile::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : metadata_) out.push_back(key);
  return out;
}

bool GgufFile::has(std::string_view key) const { return metadata_.find(key) != metadata_.end(); }

bool GgufFile::is_array(std::string_view key) const {
  const auto it = metadata_.find(key);
  return it != metadata_.end() && it->second.array;
}

std::optional<GgufType> GgufFile::type(std::string_view key) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return std::nullopt;
  return it->second.array ? GgufType::array : it->second.type;
}

void GgufFile::fail_type(std::string_view key, const Value& value, std::string_view want) const {
  throw WeightsError(fmt::format("{}: metadata '{}' is {}{}, expected {}",
                                 name_,
                                 key,
                                 value.array ? "an array of " : "",
                                 gguf_type_name(value.type),
                                 want));
}

const GgufFile::Value* GgufFile::lookup(std::string_view key, bool array) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return nullptr;
  if (it->second.array != array) fail_type(key, it->second, array ? "an array" : "a single value");
  return &it->second;
}

std::optional<std::vector<int64_t>> GgufFile::ints(std::string_view key, bool array) const {
  const Value* value = lookup(key, array);
  if (value == nullptr) return std::nullopt;
  std::vector<int64_t> out;
  const auto read = [&]<typename T>(T) {
    for (size_t i = 0; i < value->count; ++i) {
      const T x = element<T>(value->bytes, i);
      if (!std::in_range<int64_t>(x))
        throw WeightsError(fmt::format("{}: metadata '{}': {} is out of range", name_, key, x));
      out.push_back(static_cast<int64_t>(x));
    }
  };
  switch (value->type) {
    case GgufType::uint8:
      read(uint8_t{});
      break;
    case GgufType::int8:
      read(int8_t{});
      break;
    case GgufType::uint16:
      read(uint16_t{});
      break;
    case GgufType::int16:
      read(int16_t{});
      break;
    case GgufType::uint32:
      read(uint32_t{});
      break;
    case GgufType::int32:
      read(int32_t{});
      break;
    case GgufType::uint64:
      read(uint64_t{});
      break;
    case GgufType::int64:
      read(int64_t{});
      break;
    default:
      fail_type(key, *value, array ? "an array of integers" : "an integer");
  }
  return out;
}

std::optional<std::vector<double>> GgufFile::floats(std::string_view key, bool array) const {
  const Value* value = lookup(key, array);
  if (value == nullptr) return std::nullopt;
  std::vector<double> out;
  for (size_t i = 0; i < value->count; ++i) {
    if (value->type == GgufType::float32)
      out.push_back(static_cast<double>(element<float>(value->bytes, i)));
    else if (value->type == GgufType::float64)
      out.push_back(element<double>(value->bytes, i));
    else
      fail_type(key, *value, array ? "an array of floats" : "a float");
  }
  return out;
}

std::optional<std::vector<bool>> GgufFile::bools(std::string_view key, bool array) const {
  const Value* value = lookup(key, array);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::boolean) fail_type(key, *value, array ? "an array of bool" : "bool");
  std::vector<bool> out;
  for (size_t i = 0; i < value->count; ++i) {
    const auto x = element<uint8_t>(value->bytes, i);
    if (x > 1)
      throw WeightsError(fmt::format("{}: metadata '{}': {} is not a bool", name_, key, x));
    out.push_back(x == 1);
  }
  return out;
}

std::optional<std::vector<std::string>> GgufFile::strings(std::string_view key, bool array) const {
  const Value* value = lookup(key, array);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::string)
    fail_type(key, *value, array ? "an array of strings" : "a string");
  std::vector<std::string> out;
  size_t position = 0;
  for (size_t i = 0; i < value->count; ++i) {
    const auto n = static_cast<size_t>(element<uint64_t>(value->bytes.subspan(position), 0));
    position += sizeof(uint64_t);
    out.emplace_back(reinterpret_cast<const char*>(value->bytes.data()) + position, n);
    position += n;
  }
  return out;
}

namespace {

template <typename T>
std::optional<T> only(const std::optional<std::vector<T>>& values) {
  if (!values) return std::nullopt;
  return values->front();
}

}  // namespace

std::optional<std::string> GgufFile::find_string(std::string_view key) const {
  return only(strings(key, false));
}
std::optional<int64_t> GgufFile::find_int(std::string_view key) const {
  return only(ints(key, false));
}
std::optional<double> GgufFile::find_float(std::string_view key) const {
  return only(floats(key, false));
}
std::optional<bool> GgufFile::find_bool(std::string_view key) const {
  return only(bools(key, false));
}
std::optional<std::vector<std::string>> GgufFile::find_strings(std::string_view key) const {
  return strings(key, true);
}
std::optional<std::vector<int64_t>> GgufFile::find_ints(std::string_view key) const {
  return ints(key, true);
}
std::optional<std::vector<double>> GgufFile::find_floats(std::string_view key) const {
  return floats(key, true);
}
std::optional<std::vector<bool>> GgufFile::find_bools(std::string_view key) const {
  return bools(key, true);
}

namespace {

template <typename T>
T require(std::optional<T> value, const std::string& file, std::string_view key) {
  if (!value) throw WeightsError(fmt::format("{}: metadata '{}' is missing", file, key));
  return *std::move(value);
}

}  // namespace

std::string GgufFile::get_string(std::string_view key) const {
  return require(find_string(key), name_, key);
}
int64_t GgufFile::get_int(std::string_view key) const { return require(find_int(key), name_, key); }
double GgufFile::get_float(std::string_view key) const {
  return require(find_float(key), name_, key);
}
bool GgufFile::get_bool(std::string_view key) const { return require(find_bool(key), name_, key); }
std::vector<std::string> GgufFile::get_strings(std::string_view key) const {
  return require(find_strings(key), name_, key);
}
std::vector<int64_t> GgufFile::get_ints(std::string_view key) const {
  return require(find_ints(key), name_, key);
}
std::vector<double> GgufFile::get_floats(std::string_view key) const {
  return require(find_floats(key), name_, key);
}
std::vector<bool> GgufFile::get_bools(std::string_view key) const {
  return require(find_bools(key), name_, key);
}

}  // namespace testbed
