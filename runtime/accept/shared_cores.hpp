// Whether ranks take turns on cores: then times are of the turns too.
#pragma once

#include "runtime/accept/context.hpp"

namespace testbed {

// On any host. All ranks together; every rank gets the answer.
bool cores_are_shared(const AcceptContext& context);
inline constexpr const char* shared_cores_note =
    "more ranks than cores: times are not comparable with those of other machines";

}  // namespace testbed
