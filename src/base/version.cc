#include "quarot/version.h"

namespace quarot {

std::string_view version() { return QUAROT_VERSION; }

}  // namespace quarot
