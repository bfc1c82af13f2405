// The pieces of the JSON record (json.hpp) that are about a phase, the devices' counters or the
// machines, and what they are made of.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "runtime/measure/run_record.hpp"

namespace testbed::report_json {

using Json = nlohmann::ordered_json;

// The median as the headline, the repeats it came from beside it.
void add_repeated(Json& json, const std::string& name, const Repeated& figure);
Json summary_json(const Summary& s);
Json phase_json(const PhaseRecord& p);
Json device_counters_json(const DeviceCountersRecord& r);
Json energy_json(const std::optional<EnergyRecord>& energy);
Json fingerprint_json(const FingerprintRecord& f);

}  // namespace testbed::report_json
