// Watchdog: a thread beside a process's work that ends the process when the work takes too long,
// whatever it hangs in; the launcher then ends the job. It needs nothing of the thread that hangs:
// no MPI, no lock that is held for longer than a swap, no output that must be read.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace testbed {

class Watchdog {
 public:
  struct Options {
    std::string name;  // "rank 1 (host)": begins what it says
    // What is known of where everybody is, lines; called on the watchdog's thread. May be empty.
    std::function<std::string()> whereabouts = {};
    int exit_code = 3;
    // What it says and writes may take so long; then the process ends all the same.
    double last_words_s = 2.0;
    // Added to every deadline: of several processes that watch the same, one may be to speak first.
    double grace_s = 0.0;
    // SIGTERM while it watches is treated as a deadline that has passed: the launcher ends the job,
    // and what is known is still to be written. Of one watchdog of a process at most.
    bool until_terminated = false;
    // Who of those that the work needs has ended, "" if nobody: asked several times a second while
    // it watches, and then as good as a deadline that has passed. A launcher may end the rest of
    // the job without a SIGTERM (Open MPI 4.1, seen in one job of two) a second later.
    std::function<std::string()> ended = {};
  };
  explicit Watchdog(Options options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // From now on `what` must be over in deadline_s: rest() or the next watch(). Time in which the
  // process itself was stopped does not count.
  void watch(std::string what, double deadline_s);
  void rest();
  // Once known, from the thread that watches.
  void set_name(std::string name, double grace_s);
  void set_whereabouts(std::function<std::string()> whereabouts);
  // A text with `placeholder` where what the watchdog says is to be, made fit for the text by
  // `inside`.
  static constexpr std::string_view placeholder = "%WATCHDOG%";
  struct LastWords {
    std::string path;
    std::string text;
    std::string (*inside)(std::string_view said);
    std::string with(std::string_view said) const;
  };
  // What is written on expiry, file after file, each by a rename.
  void set_last_words(std::vector<LastWords> files);

  class Watch {
   public:
    Watch(Watchdog& dog, std::string what, double deadline_s) : dog_(dog) {
      dog_.watch(std::move(what), deadline_s);
    }
    ~Watch() { dog_.rest(); }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Watchdog& dog_;
  };

 private:
  void work();
  [[noreturn]] void expire(std::string why);

  std::mutex mutex_;
  std::condition_variable changed_;
  Options options_;
  std::string what_;
  std::vector<LastWords> last_words_;
  double deadline_s_ = 0.0;
  double passed_s_ = 0.0;
  double stopped_s_ = 0.0;  // of the time since watch(), in which this process did not run
  bool watching_ = false;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace testbed
