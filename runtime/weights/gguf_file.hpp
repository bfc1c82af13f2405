// GgufFile: the metadata and tensor table of a GGUF file (v2, v3) or split set, mapped read-only.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Every count and length is
// checked against the bytes that are there before anything is allocated from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/weights/mapped_file.hpp"

namespace testbed {

enum class GgufType : uint32_t {
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  float32,
  boolean,
  string,
  array,
  uint64,
  int64,
  float64,
};
std::string_view gguf_type_name(GgufType type);

struct GgufTensor {
  std::string name;
  std::string file;                 // the part it lies in, for errors
  uint32_t ggml_type = 0;           // as numbered by ggml; see ggml_type.hpp
  std::vector<int64_t> dims;        // fastest first, as ggml: [cols, rows]; all positive
  std::span<const std::byte> data;  // exactly its bytes; valid as long as the GgufFile
};

class GgufFile {
 public:
  // One file, or the first part of a split set (NAME-00001-of-0000N.gguf), whose other parts are
  // opened and merged. Throws WeightsError naming the file and the field that is wrong.
  static GgufFile open(const std::filesystem::path& path);

  // One part from bytes that outlive the result; `name` is used in errors. Follows no split.
  static GgufFile parse(std::span<const std::byte> bytes, const std::string& name);

  const std::string& name() const { return name_; }  // path of the (first) file
  uint32_t version() const { return version_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // of all parts
  const GgufTensor* find_tensor(std::string_view name) const;          // nullptr if absent

  // Metadata of the first part. find_*: nullopt if the key is absent; get_*: absence is an error.
  // Both throw WeightsError naming file and key when the value has another type. Integers of every
  // width are int64 (a uint64 above its range is refused); floats are f32 or f64, not integers.
  std::vector<std::string> keys() const;
  bool has(std::string_view key) const;
  bool is_array(std::string_view key) const;  // false if absent
  std::optional<GgufType> type(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;
  std::optional<int64_t> find_int(std::string_view key) const;
  std::optional<double> find_float(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::vector<std::string>> find_strings(std::string_view key) const;
  std::optional<std::vector<int64_t>> find_ints(std::string_view key) const;
  std::optional<std::vector<double>> find_floats(std::string_view key) const;
  std::optional<std::vector<bool>> find_bools(std::string_view key) const;

  std::string get_string(std::string_view key) const;
  int64_t get_int(std::string_view key) const;
  double get_float(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  std::vector<std::string> get_strings(std::string_view key) const;
  std::vector<int64_t> get_ints(std::string_view key) const;
  std::vector<double> get_floats(std::string_view key) const;
  std::vector<bool> get_bools(std::string_view key) const;

 private:
  friend class GgufParser;
  struct Value {
    GgufType type = GgufType::uint8;  // of the value, or of an array's elements
    bool array = false;
    uint64_t count = 1;
    std::span<const std::byte> bytes;  // encoded elements, already checked
  };
  const Value* lookup(std::string_view key, bool array) const;
  [[noreturn]] void fail_type(std::string_view key,
                              const Value& value,
                              std::string_view want) const;
  std::optional<std::vector<int64_t>> ints(std::string_view key, bool array) const;
  std::optional<std::vector<double>> floats(std::string_view key, bool array) const;
  std::optional<std::vector<bool>> bools(std::string_view key, bool array) const;
  std::optional<std::vector<std::string>> strings(std::string_view key, bool array) const;
  void append_parts(const std::filesystem::path& first);
  void append_part(GgufFile part);
  void index_tensors();

  std::string name_;
  uint32_t version_ = 0;
  std::map<std::string, Value, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
  std::vector<std::shared_ptr<const MappedFile>> maps_;
};

}  // namespace testbed
