// What the programs beside the library share; each includes it once.
#pragma once

#include <errno.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include <executorch/runtime/platform/platform.h>

// The runtime logs the cause of a failure before it returns an error code.
inline std::string first_error;

// For PalImpl::create. What ends the process is printed, too.
inline void keep_first_error(
    et_timestamp_t,
    et_pal_log_level_t level,
    const char*,
    const char*,
    size_t,
    const char* message,
    size_t length) {
  if ((level == kError || level == kFatal) && first_error.empty()) {
    first_error.assign(message, length);
  }
  if (level == kFatal) {
    fprintf(
        stderr,
        "%s: %.*s\n",
        program_invocation_short_name,
        static_cast<int>(length),
        message);
  }
}

// The bytes of a file; nothing if it cannot be read, errno says why.
inline std::optional<std::vector<uint8_t>> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    return std::nullopt;
  }
  return bytes;
}
