// The tensor types of GGUF as ggml numbers them: name and block size of all, our DType of those we
// read. Source: enum ggml_type and the block structs of ggml-common.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/base/dtype.hpp"

namespace testbed {

struct GgmlTypeInfo {
  std::string_view name;       // "Q4_K"
  int64_t block_elements = 1;  // along the fastest dimension
  int64_t block_bytes = 0;
  std::optional<DType> dtype;  // nullopt: known to ggml, not read here
};

// nullptr for a number that ggml does not define (or has withdrawn).
const GgmlTypeInfo* find_ggml_type(uint32_t ggml_type);

}  // namespace testbed
