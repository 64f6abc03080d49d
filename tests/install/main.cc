#include <quarot/status.h>
#include <quarot/version.h>

#include <iostream>

int main() {
  const quarot::Result<int> answer = 42;
  const quarot::Status refused = quarot::Error(quarot::ErrorCode::kNotFound, "not here");
  if (!answer.ok() || *answer != 42 || refused.ok()) return 1;
  std::cout << quarot::version() << '\n';
}
