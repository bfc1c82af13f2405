// Output files that are whole or absent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace testbed {

// later: what is written again soon, whose loss with the machine's power is no matter, does not
// wait for the disk, which may take seconds.
enum class FileSync : uint8_t { at_once, later };

// Writes to a temporary name in the same folder, fsyncs, and renames: a reader sees the old file or
// the new one. "-" is standard output. ConfigError if the place cannot be written to, Error
// (runtime failure) if writing fails, as on a full disk; the temporary file is removed then.
void write_file(const std::string& path,
                std::string_view content,
                FileSync sync = FileSync::at_once);

// Before a long run: ConfigError if write_file could not create its file there.
void check_writable(const std::string& path);

}  // namespace testbed
