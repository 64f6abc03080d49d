// The built program as a child process: what a script sees of it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

namespace quarot::testing {

using Arguments = std::vector<std::string>;

struct Outcome {
  int status = -1;  // −signal where one ended it
  std::string out, err;
};

struct Setting {
  std::string input = {};              // standard input
  int output = -1;                     // standard output goes to this descriptor, and is not read
  std::function<void()> prepare = {};  // runs in the child before the program does
};

// Starts the program QUAROT_PROGRAM. Its streams are files in memory: it never waits for a reader.
class Child {
 public:
  explicit Child(const Arguments& arguments, const Setting& setting = {}) {
    EXPECT_EQ(::write(in_, setting.input.data(), setting.input.size()),
              static_cast<ssize_t>(setting.input.size()));
    ::lseek(in_, 0, SEEK_SET);
    std::vector<const char*> argv = {QUAROT_PROGRAM};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    std::signal(SIGPIPE, SIG_DFL);  // as a shell starts it
    ::dup2(in_, STDIN_FILENO);
    ::dup2(setting.output >= 0 ? setting.output : out_, STDOUT_FILENO);
    ::dup2(err_, STDERR_FILENO);
    if (setting.prepare) setting.prepare();
    ::execv(QUAROT_PROGRAM, const_cast<char**>(argv.data()));
    ::_exit(127);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    for (const int file : {in_, out_, err_}) ::close(file);
  }

  void signal(int number) const { ::kill(pid_, number); }

  // Until it ends; once.
  Outcome wait() const {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), contents(out_),
            contents(err_)};
  }

 private:
  static std::string contents(int file) {
    std::string text(static_cast<size_t>(::lseek(file, 0, SEEK_END)), '\0');
    EXPECT_EQ(::pread(file, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return text;
  }

  int in_ = ::memfd_create("stdin", MFD_CLOEXEC);
  int out_ = ::memfd_create("stdout", MFD_CLOEXEC);
  int err_ = ::memfd_create("stderr", MFD_CLOEXEC);
  pid_t pid_ = -1;
};

inline Outcome run(const Arguments& arguments, const Setting& setting = {}) {
  return Child(arguments, setting).wait();
}

}  // namespace quarot::testing
