#include "cli/bench_peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace quarot::cli {

namespace {

// What the program prints on standard output; what it says on standard error is dropped.
Result<std::string> output_of(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string& program = arguments.front();
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0)
    return error(ErrorCode::kIo, "no pipe to run {}: {}", program, std::strerror(errno));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int failed =
      ::posix_spawnp(&child, program.c_str(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  std::string output;
  std::array<char, 4096> part{};
  ssize_t count = 0;
  while (failed == 0 && ((count = ::read(pipe[0], part.data(), part.size())) > 0 ||
                         (count < 0 && errno == EINTR))) {
    if (count > 0) output.append(part.data(), static_cast<size_t>(count));
  }
  ::close(pipe[0]);
  if (failed != 0)
    return error(ErrorCode::kIo, "cannot run {}: {}", program, std::strerror(failed));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return error(ErrorCode::kIo, "{} failed; run it by hand to see why", program);
  }
  return output;
}

}  // namespace

Result<double> run_peer(const Peer& peer, const SpeedTest& test) {
  const std::string tokens = std::to_string(test.tokens);
  QUAROT_ASSIGN_OR_RETURN(
      const std::string output,
      output_of({peer.program, "-m", peer.model, "-p", test.generates ? "0" : tokens, "-n",
                 test.generates ? tokens : "0", "-d", std::to_string(test.depth), "-t",
                 std::to_string(peer.threads), "-r", "1", "-o", "json"}));
  const nlohmann::json json = nlohmann::json::parse(output, nullptr, false);
  if (json.is_array() && json.size() == 1 && json[0].is_object()) {
    const auto rate = json[0].find("avg_ts");
    if (rate != json[0].end() && rate->is_number()) return rate->get<double>();
  }
  return error(ErrorCode::kCorrupt, "{}: expected a JSON list of one test with \"avg_ts\"",
               peer.program);
}

}  // namespace quarot::cli
