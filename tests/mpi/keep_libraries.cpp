// Open MPI's plugins stay loaded, for LeakSanitizer to name the library that a leak comes from:
// linked into sanitized tests.
#include <dlfcn.h>

extern "C" int dlclose(void*) noexcept { return 0; }
