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

// Of a process that is about to end.
struct End {
  std::string name;
  std::string why;
  std::function<std::string()> whereabouts;
  std::vector<Watchdog::LastWords> files;
};

void say(const End& end) {
  std::string said = end.why;
  const std::string known = end.whereabouts ? end.whereabouts() : "";
  if (!known.empty()) said += ":\n" + known;
  while (said.back() == '\n') said.pop_back();
  std::string not_written;
  for (const Watchdog::LastWords& file : end.files) {
    const std::string why_not = replace_file(file.path, file.with(said));
    if (!why_not.empty()) not_written += "\n" + why_not;
  }
  // One write: lines of several processes do not mix.
  write_all(STDERR_FILENO,
            fmt::format(
                "testbed: {}{}{}{}\n", end.name, end.name.empty() ? "" : ": ", said, not_written));
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
    stopped_s_ = 0.0;
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

std::string Watchdog::LastWords::with(std::string_view said) const {
  const std::string fit = inside(said);
  std::string whole = text;
  for (size_t at = whole.find(placeholder); at != std::string::npos;
       at = whole.find(placeholder, at + fit.size())) {
    whole.replace(at, placeholder.size(), fit);
  }
  return whole;
}

void Watchdog::set_last_words(std::vector<LastWords> files) {
  const std::lock_guard lock(mutex_);
  last_words_.swap(files);
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
    const double round_s = static_cast<double>(now_ns() - begin_ns) * 1e-9;
    stopped_s_ += std::max(0.0, round_s - longest_round_s);
    if (is_terminated.load() && options_.until_terminated) {
      if (watching_) expire(what_ + " was not over when this process was told to end (SIGTERM)");
      handle_sigterm(SIG_DFL);
      std::raise(SIGTERM);
    }
    const std::string ended = watching_ && options_.ended ? options_.ended() : "";
    if (!ended.empty()) expire(fmt::format("{} was not over when {} ended", what_, ended));
    passed_s_ += std::min(round_s, longest_round_s);
    if (watching_ && !ends_ && passed_s_ > deadline_s_ + options_.grace_s) {
      expire(fmt::format("{} is not over after {:g} s", what_, deadline_s_));
    }
  }
}

void Watchdog::expire(std::string why) {
  if (stopped_s_ > 0.0) {
    why += fmt::format("; {} itself did not run for {:.1f} s",
                       options_.name.empty() ? "this process" : options_.name,
                       stopped_s_);
  }
  // For ever: the process ends before they do.
  auto* const end = new End{.name = options_.name,
                            .why = std::move(why),
                            .whereabouts = options_.whereabouts,
                            .files = last_words_};
  auto* const done = new std::atomic<bool>(false);
  try {
    std::thread([end, done] {
      say(*end);
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
