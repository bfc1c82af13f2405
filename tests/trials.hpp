// How much a test does in a sanitized program, which takes ten times as long: what sanitizers look
// for shows in few of many trials that are alike to them.
#pragma once

namespace testbed {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool is_sanitized = true;
#else
constexpr bool is_sanitized = false;
#endif

// Of n random trials.
constexpr int trials(int n) { return is_sanitized ? (n + 9) / 10 : n; }

}  // namespace testbed
