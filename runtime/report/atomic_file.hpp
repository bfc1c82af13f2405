// Output files that are whole or absent.
#pragma once

#include <string>
#include <string_view>

namespace testbed {

// Writes to a temporary name in the same folder, fsyncs, and renames: a reader sees the old file or
// the new one. "-" is standard output. ConfigError if the place cannot be written to, Error
// (runtime failure) if writing fails, as on a full disk; the temporary file is removed then.
void write_file(const std::string& path, std::string_view content);

// Before a long run: ConfigError if write_file could not create its file there.
void check_writable(const std::string& path);

}  // namespace testbed
