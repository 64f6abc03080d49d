// A probe as one HTML file that needs nothing else: no network, no fonts, light and dark.
#pragma once

#include <string>

#include "probe/probe.h"

namespace quarot {

std::string html_report(const Probe& probe);

}  // namespace quarot
