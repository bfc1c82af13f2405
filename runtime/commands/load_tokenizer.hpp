// The tokenizer that comes with a model: tokenizer.json of a Hugging Face folder, or GGUF metadata.
#pragma once

#include <memory>

#include "runtime/config/presets.hpp"
#include "runtime/text/tokenizer.hpp"

namespace testbed {

// nullptr if the model has none that this program reads (a preset, a SentencePiece vocabulary).
std::unique_ptr<Tokenizer> load_tokenizer(const ModelLocation& location);

}  // namespace testbed
