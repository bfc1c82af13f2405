#include "parallel/comm/watchdog.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "kernels/base/clock.hpp"

namespace testbed {
namespace {

// By no stream: the thread that hangs may hold its lock. May block; whoever calls has a deadline.
bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// A whole file in the place of the old one, or the old one. "" or why not.
std::string replace_file(const std::string& path, std::string_view text) {
  const std::string beside = path + ".watchdog";
  const int fd = open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bool done = fd >= 0 && write_all(fd, text);
  int code = errno;
  if (fd >= 0) close(fd);
  if (done && std::rename(beside.c_str(), path.c_str()) != 0) {
    code = errno;
    done = false;
  }
  if (done) return "";
  unlink(beside.c_str());
  return fmt::format("{}: {}", path, std::strerror(code));  // NOLINT(concurrency-mt-unsafe)
}

std::string inside_json_string(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      escaped += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      escaped += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string with_placeholder(std::string text, std::string_view said) {
  const std::string escaped = inside_json_string(said);
  const std::string_view placeholder = Watchdog::placeholder;
  for (size_t at = text.find(placeholder); at != std::string::npos;
       at = text.find(placeholder, at + escaped.size())) {
    text.replace(at, placeholder.size(), escaped);
  }
  return text;
}

// Set by the signal's handler, which may do no more.
std::atomic<bool> is_terminated{false};
static_assert(std::atomic<bool>::is_always_lock_free);
extern "C" void on_sigterm(int /*signal*/) { is_terminated.store(true); }

void handle_sigterm(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
}

struct LastWords {
  std::string name;
  std::string why;
  std::function<std::string()> whereabouts;
  std::string path;
  std::string text;
};

void say(const LastWords& words) {
  std::string said = words.why;
  const std::string known = words.whereabouts ? words.whereabouts() : "";
  if (!known.empty()) said += ":\n" + known;
  while (said.back() == '\n') said.pop_back();
  std::string not_written;
  if (!words.path.empty()) {
    not_written = replace_file(words.path, with_placeholder(words.text, said));
  }
  if (!not_written.empty()) said += "\n" + not_written;
  // One write: lines of several processes do not mix.
  write_all(STDERR_FILENO,
            fmt::format("testbed: {}{}{}\n", words.name, words.name.empty() ? "" : ": ", said));
}

}  // namespace

Watchdog::Watchdog(Options options) : options_(std::move(options)) {
  if (options_.until_terminated) handle_sigterm(on_sigterm);
  thread_ = std::thread([this] { work(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (options_.until_terminated) handle_sigterm(SIG_DFL);
}

void Watchdog::watch(std::string what, double deadline_s) {
  {
    const std::lock_guard lock(mutex_);
    what_.swap(what);
    deadline_s_ = deadline_s;
    passed_s_ = 0.0;
    watching_ = true;
  }
  changed_.notify_all();
}

void Watchdog::rest() {
  const std::lock_guard lock(mutex_);
  watching_ = false;
}

void Watchdog::set_name(std::string name, double grace_s) {
  const std::lock_guard lock(mutex_);
  options_.name.swap(name);
  options_.grace_s = grace_s;
}

void Watchdog::set_whereabouts(std::function<std::string()> whereabouts) {
  const std::lock_guard lock(mutex_);
  options_.whereabouts.swap(whereabouts);
}

void Watchdog::set_last_words(std::string path, std::string text) {
  const std::lock_guard lock(mutex_);
  path_.swap(path);
  last_words_.swap(text);
}

void Watchdog::work() {
  constexpr auto round = std::chrono::milliseconds(100);
  // A longer one: this process was stopped meanwhile, or starved.
  constexpr double longest_round_s = 1.0;
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (!watching_ && !options_.until_terminated) {
      changed_.wait(lock);
      continue;
    }
    const int64_t begin_ns = now_ns();
    changed_.wait_for(lock, round);
    if (is_terminated.load() && options_.until_terminated) {
      if (watching_) expire(what_ + " was not over when this process was told to end (SIGTERM)");
      handle_sigterm(SIG_DFL);
      std::raise(SIGTERM);
    }
    passed_s_ += std::min(static_cast<double>(now_ns() - begin_ns) * 1e-9, longest_round_s);
    if (watching_ && !ends_ && passed_s_ > deadline_s_ + options_.grace_s) {
      expire(fmt::format("{} is not over after {:g} s", what_, deadline_s_));
    }
  }
}

void Watchdog::expire(const std::string& why) {
  // For ever: the process ends before they do.
  auto* const words = new LastWords{.name = options_.name,
                                    .why = why,
                                    .whereabouts = options_.whereabouts,
                                    .path = path_,
                                    .text = last_words_};
  auto* const done = new std::atomic<bool>(false);
  try {
    std::thread([words, done] {
      say(*words);
      done->store(true);
    }).detach();
  } catch (const std::system_error&) {
    _exit(options_.exit_code);  // no thread to be had: nothing is said
  }
  const int64_t end_ns = now_ns() + static_cast<int64_t>(options_.last_words_s * 1e9);
  while (!done->load() && now_ns() < end_ns) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  _exit(options_.exit_code);
}

}  // namespace testbed
