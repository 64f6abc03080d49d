// A probe as JSON: the contract that scripts and the report stand on.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "probe/probe.h"

namespace quarot {

// Numbers have five significant digits, text that is no UTF-8 U+FFFD. What was not measured is not
// there.
nlohmann::json to_json(const Probe& probe);

}  // namespace quarot
