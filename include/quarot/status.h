// Errors are values: what a user can cause comes back as an Error that says what was expected, what
// was found and what to do. The library never prints, aborts or exits on it.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace quarot {

enum class ErrorCode {
  kInvalidArgument,  // the caller asked for something that makes no sense
  kNotFound,         // a file, tensor or name is not there
  kCorrupt,          // a file contradicts itself or its format
  kUnsupported,      // well formed, but nothing here handles it
  kIo,               // the operating system refused
  kOutOfMemory,      // refused before the work started, with the numbers
  kCancelled,        // interrupted by the user
};

class Error {
 public:
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error seen from further out: "while reading X: <message>".
  Error with_context(const std::string& context) const {
    return {code_, context + ": " + message_};
  }

 private:
  ErrorCode code_;
  std::string message_;
};

// A T, or the Error that kept it from being made.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}  // NOLINT: implicit so that `return value;` works
  Result(Error error) : state_(std::move(error)) {}  // NOLINT: likewise for `return error;`

  bool ok() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return ok(); }

  const Error& error() const& {
    assert(!ok());
    return *std::get_if<Error>(&state_);
  }

  T& operator*() & {
    assert(ok());
    return *std::get_if<T>(&state_);
  }
  const T& operator*() const& {
    assert(ok());
    return *std::get_if<T>(&state_);
  }
  T&& operator*() && {
    assert(ok());
    return std::move(*std::get_if<T>(&state_));
  }
  T* operator->() { return &**this; }
  const T* operator->() const { return &**this; }

 private:
  std::variant<T, Error> state_;
};

// Done, or the Error that kept it from being done.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error)
      : error_(std::move(error)) {}  // NOLINT: implicit so that `return error;` works

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }

  const Error& error() const {
    assert(!ok());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

}  // namespace quarot
