// A watchdog ends its process, whatever the work hangs in, and what is known is written by then.
// Each case is a child of this process.
#include "parallel/comm/watchdog.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "kernels/base/clock.hpp"
#include "parallel/comm/job_processes.hpp"

namespace testbed {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct Folder {
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "watchdog_test.XXXXXX";
    path = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string text(const std::string& name) const {
    std::ifstream file(path / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::filesystem::path path;
};

struct Ended {
  int status = 0;
  std::string said;
};

// The child's standard error is a file of the folder, or what `to` is.
Ended run_child(const Folder& folder, const std::function<void()>& work, int to = -1) {
  const std::string path = folder.path / "stderr";
  const pid_t child = fork();
  if (child == 0) {
    dup2(to >= 0 ? to : open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    work();
    _exit(0);
  }
  Ended ended;
  waitpid(child, &ended.status, 0);
  ended.said = folder.text("stderr");
  return ended;
}

void hang() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

Watchdog::Options options() {
  return {.name = "rank 1 (a)", .whereabouts = [] { return "rank 2 left it\n"; }};
}

std::string as_it_is(std::string_view said) { return std::string(said); }

std::string inside_quotes(std::string_view said) {
  std::string escaped;
  for (const char c : said) {
    if (c == '"') escaped += '\\';
    escaped += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return escaped;
}

TEST(Watchdog, ends_a_process_that_hangs_and_says_what_is_known) {
  const Folder folder;
  const std::string path = folder.path / "verdict.json";
  const std::string other = folder.path / "summary.txt";
  std::ofstream(path) << "old";
  const Ended ended = run_child(folder, [&] {
    Watchdog dog(options());
    dog.set_last_words({{path, "{\"why\": \"%WATCHDOG%\"}", inside_quotes},
                        {other, "%WATCHDOG%; %WATCHDOG%", as_it_is}});
    const Watchdog::Watch watch(dog, "links/all \"pairs\"", 0.05);
    hang();
  });
  EXPECT_TRUE(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 3) << ended.status;
  EXPECT_EQ(ended.said,
            "testbed: rank 1 (a): links/all \"pairs\" is not over after 0.05 s:\n"
            "rank 2 left it\n");
  EXPECT_EQ(folder.text("verdict.json"),
            R"({"why": "links/all \"pairs\" is not over after 0.05 s:\nrank 2 left it"})");
  const std::string said = "links/all \"pairs\" is not over after 0.05 s:\nrank 2 left it";
  EXPECT_EQ(folder.text("summary.txt"), said + "; " + said);
}

TEST(Watchdog, leaves_alone_what_ends_in_time) {
  const Folder folder;
  const Ended ended = run_child(folder, [] {
    Watchdog dog(options());
    for (int i = 0; i < 3; ++i) {
      const Watchdog::Watch watch(dog, "work", 30.0);
    }
    dog.watch("short", 0.2);
    dog.rest();
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
  });
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.said, "");
}

// A full pipe that nobody reads, and a whereabouts that hangs on what the work holds.
TEST(Watchdog, nothing_that_it_says_can_hold_it_up) {
  const Folder folder;
  int full[2];
  ASSERT_EQ(pipe(full), 0);
  fcntl(full[1], F_SETFL, O_NONBLOCK);
  const std::string page(4096, 'x');
  while (write(full[1], page.data(), page.size()) > 0) {
  }
  fcntl(full[1], F_SETFL, 0);
  Watchdog::Options short_spoken = options();
  short_spoken.last_words_s = 0.2;
  const Ended unread = run_child(
      folder,
      [&] {
        Watchdog dog(short_spoken);
        dog.watch("work", 0.05);
        hang();
      },
      full[1]);
  EXPECT_TRUE(WIFEXITED(unread.status) && WEXITSTATUS(unread.status) == 3) << unread.status;
  const Ended locked = run_child(folder, [&] {
    std::mutex held;
    const std::lock_guard lock(held);
    short_spoken.whereabouts = [&] {
      const std::lock_guard never(held);
      return "";
    };
    Watchdog dog(short_spoken);
    dog.watch("work", 0.05);
    hang();
  });
  EXPECT_TRUE(WIFEXITED(locked.status) && WEXITSTATUS(locked.status) == 3) << locked.status;
}

TEST(Watchdog, a_file_that_cannot_be_written_is_told_and_the_others_are_written) {
  const Folder folder;
  const std::string written = folder.path / "summary.txt";
  const Ended ended = run_child(folder, [&] {
    Watchdog dog(options());
    dog.set_last_words({{"/dev/full/verdict.json", "{}", as_it_is},
                        {written, "%WATCHDOG%", as_it_is},
                        {"/dev/full/junit.xml", "", as_it_is}});
    dog.watch("work", 0.05);
    hang();
  });
  EXPECT_EQ(WEXITSTATUS(ended.status), 3);
  EXPECT_THAT(ended.said, HasSubstr("/dev/full/verdict.json: Not a directory"));
  EXPECT_THAT(ended.said, HasSubstr("/dev/full/junit.xml: Not a directory"));
  EXPECT_THAT(folder.text("summary.txt"), StartsWith("work is not over"));
}

// The launcher's way of ending a job of which another rank has died.
TEST(Watchdog, sigterm_while_it_watches_is_a_deadline) {
  const Folder folder;
  const std::string path = folder.path / "verdict.json";
  const auto child = [&](bool watches) {
    return run_child(folder, [&] {
      Watchdog::Options watcher = options();
      watcher.until_terminated = true;
      Watchdog dog(watcher);
      dog.set_last_words({{path, "[\"%WATCHDOG%\"]", as_it_is}});
      if (watches) dog.watch("work", 1000.0);
      std::raise(SIGTERM);
      hang();
    });
  };
  const Ended watched = child(true);
  EXPECT_TRUE(WIFEXITED(watched.status) && WEXITSTATUS(watched.status) == 3) << watched.status;
  EXPECT_THAT(folder.text("verdict.json"), StartsWith("[\"work was not over when"));
  const Ended unwatched = child(false);
  EXPECT_TRUE(WIFSIGNALED(unwatched.status) && WTERMSIG(unwatched.status) == SIGTERM)
      << unwatched.status;
}

// Where it does not say so.
TEST(Watchdog, a_rank_that_has_ended_is_a_deadline_while_it_watches) {
  const Folder folder;
  const std::string path = folder.path / "verdict.json";
  const Ended ended = run_child(folder, [&] {
    Watchdog::Options watcher = options();
    const int64_t end_ns = now_ns() + 300'000'000;
    watcher.ended = [end_ns] { return now_ns() < end_ns ? "" : "rank 2"; };
    Watchdog dog(watcher);
    dog.set_last_words({{path, "[\"%WATCHDOG%\"]", as_it_is}});
    dog.watch("work", 1000.0);
    hang();
  });
  EXPECT_TRUE(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 3) << ended.status;
  EXPECT_THAT(folder.text("verdict.json"), StartsWith("[\"work was not over when rank 2 ended"));
}

// It is told, for who was stopped may look like the others' fault.
TEST(Watchdog, says_that_its_own_process_did_not_run) {
  const Folder folder;
  const std::string path = folder.path / "stderr";
  const pid_t child = fork();
  if (child == 0) {
    dup2(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    Watchdog dog(options());
    dog.watch("work", 1.5);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // its rounds have begun
    std::raise(SIGSTOP);
    hang();
  }
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  kill(child, SIGCONT);
  waitpid(child, &status, 0);
  EXPECT_THAT(folder.text("stderr"), HasSubstr("; rank 1 (a) itself did not run for "));
}

TEST(JobProcesses, say_who_is_stopped) {
  EXPECT_EQ(process_state(getpid()), "");
  EXPECT_EQ(process_state(0x3fffffff), "gone");
  const pid_t child = fork();
  if (child == 0) {
    std::raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  EXPECT_EQ(process_state(child), "stopped");
  kill(child, SIGKILL);
  while (process_state(child) != "dead") std::this_thread::yield();
  waitpid(child, &status, 0);
}

// Numbered as PMIx does: a child that is stopped before it has done anything.
TEST(JobProcesses, find_the_job_by_its_launchers_variables) {
  setenv("PMIX_NAMESPACE", ("watchdog_test " + std::to_string(getpid())).c_str(), 1);
  setenv("PMIX_RANK", "5", 1);
  EXPECT_EQ(name_by_launcher(), "rank 5");
  EXPECT_EQ(idle_processes_of_job(), "");
  const pid_t child = fork();
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", "kill -STOP $$", nullptr);
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  EXPECT_EQ(idle_processes_of_job(), "rank 5 (pid " + std::to_string(child) + ") is stopped");
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  unsetenv("PMIX_NAMESPACE");
  unsetenv("PMIX_RANK");
  EXPECT_EQ(name_by_launcher(), "");
}

}  // namespace
}  // namespace testbed
