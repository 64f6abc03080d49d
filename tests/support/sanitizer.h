// Under a sanitizer the program is several times slower and larger: what a test may then allow for.
#pragma once

namespace quarot::testing {

constexpr bool under_sanitizer() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

}  // namespace quarot::testing
