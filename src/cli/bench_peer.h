// Another engine's benchmark program, timed beside ours.
#pragma once

#include <string>

#include "cli/bench_speed.h"

namespace quarot::cli {

// A program that takes llama-bench's options and prints its JSON.
struct Peer {
  std::string program;
  std::string model;
  int threads = 1;
};

// Tokens a second by the peer's own clock. kIo where the program cannot be run or fails, kCorrupt
// for an answer that is not such JSON.
Result<double> run_peer(const Peer& peer, const SpeedTest& test);

}  // namespace quarot::cli
