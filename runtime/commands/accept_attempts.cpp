#include "runtime/commands/accept_attempts.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/byte_stream.hpp"
#include "kernels/base/check.hpp"
#include "kernels/base/clock.hpp"
#include "kernels/base/errors.hpp"
#include "runtime/accept/absence.hpp"

namespace testbed {
namespace {

// What rank 0 says after each attempt, (wait) before that if it will take long, and (go) before a
// case.
enum class Next : uint8_t { done, repeat, end, wait, go };

// How an attempt went on this rank.
struct Attempt {
  CaseResult result = {};
  std::optional<std::string> error = std::nullopt;
  bool is_own = false;      // the error: nothing that other ranks have to do with
  bool has_waited = false;  // for others, until the deadline: they have, too
};

double seconds_since(int64_t begin_ns) { return static_cast<double>(now_ns() - begin_ns) * 1e-9; }

Attempt attempt_case(const AcceptContext& context, Stage& stage, const PlannedCase& planned) {
  Attempt attempt;
  const int64_t begin_ns = now_ns();
  try {
    context.control.barrier();
    attempt.result = stage.run(context, planned);
  } catch (const CommError& e) {
    attempt.error = e.what();
    attempt.has_waited = seconds_since(begin_ns) >= context.config.timeout_s;
  } catch (const Error& e) {
    attempt.error = e.what();
    attempt.is_own = true;
  } catch (const std::exception& e) {
    attempt.error = fmt::format("internal error: {}", e.what());
    attempt.is_own = true;
  }
  attempt.result.stage = planned.stage;
  attempt.result.name = planned.name;
  attempt.result.seconds = seconds_since(begin_ns);
  return attempt;
}

// What a rank tells of an attempt.
RankAnswer answer_of(const AcceptContext& context, const Attempt& attempt) {
  return {.rank = context.rank,
          .error = attempt.error.value_or(""),
          .is_own = attempt.is_own,
          .awaited = attempt.error && !attempt.is_own ? context.awaited_message() : std::nullopt,
          .given = context.given_message()};
}

void put(ByteWriter& out, const std::optional<Message>& message) {
  out.put(message.has_value());
  out.put(message.value_or(Message{}));
}

void get(ByteReader& in, std::optional<Message>& message) {
  bool is_there = false;
  Message read;
  in.get(is_there);
  in.get(read);
  if (is_there) message = read;
}

Bytes pack(const RankAnswer& answer) {
  ByteWriter out;
  out.put(answer.error);
  out.put(answer.is_own);
  put(out, answer.awaited);
  put(out, answer.given);
  return out.take();
}

RankAnswer unpack(int rank, const Bytes& bytes) {
  RankAnswer answer{.rank = rank};
  ByteReader in(bytes);
  in.get(answer.error);
  in.get(answer.is_own);
  get(in, answer.awaited);
  get(in, answer.given);
  return answer;
}

void tell_all(const AcceptContext& context, Next next) {
  for (int rank = 1; rank < context.size; ++rank) {
    context.judging.post(Bytes(1, static_cast<std::byte>(next)), rank);
  }
}

// Who can answer once a rank has failed does so by then: others that waited in vain have, too.
constexpr double after_a_failure_s = 1.0;

// Rank 0, of all ranks: what went wrong where. A rank that does not answer is named. From the first
// failure on all have the same second, for the others will not wait for one after another.
std::vector<RankAnswer> gather_answers(const AcceptContext& context, const Attempt& mine) {
  const int64_t begin_ns = now_ns();
  const double patience_s = context.config.timeout_s + after_a_failure_s;
  std::vector<RankAnswer> answers{answer_of(context, mine)};
  answers.reserve(static_cast<size_t>(context.size));
  std::optional<double> end_s;  // since begin_ns
  // The others may wait for this rank until the deadline if they do not know of its failure.
  const bool is_early = mine.error && !mine.has_waited;
  if (mine.error) end_s = is_early ? patience_s : after_a_failure_s;
  if (is_early) tell_all(context, Next::wait);
  for (int rank = 1; rank < context.size; ++rank) {
    // What has come is received even with no patience left.
    context.set_patience(end_s ? std::max(0.0, *end_s - seconds_since(begin_ns)) : patience_s);
    try {
      answers.push_back(unpack(rank, context.judging.receive(rank)));
    } catch (const CommError&) {
      answers.push_back({.rank = rank,
                         .answers = false,
                         .error = fmt::format("does not answer within {:.1f} s{}",
                                              seconds_since(begin_ns),
                                              context.whereabouts({rank}))});
    }
    if (!end_s && !answers.back().error.empty()) {
      end_s = seconds_since(begin_ns) + after_a_failure_s;
    }
  }
  return answers;
}

// Whether it is what this rank says that the blame is for: of a link, what it waited for.
bool is_grounds(const RankAnswer& answer, const Blame& blame) {
  const auto contains = [&](int rank) {
    return std::find(blame.ranks.begin(), blame.ranks.end(), rank) != blame.ranks.end();
  };
  if (!contains(answer.rank)) return false;
  return blame.kind != Blame::Kind::link || (answer.awaited && contains(answer.awaited->peer));
}

// "rank 2 (host): ..." of those that failed: first of who is blamed, then of the others.
std::vector<std::string> errors_of(const std::vector<RankAnswer>& answers,
                                   const Absence& absence,
                                   const std::vector<std::string>& hosts) {
  std::vector<std::string> errors;
  if (!absence.unclear.empty()) errors.push_back(absence.unclear);
  const auto is_first = [&](const RankAnswer& answer) {
    return std::any_of(absence.blamed.begin(), absence.blamed.end(), [&](const Blame& blame) {
      return is_grounds(answer, blame);
    });
  };
  for (const bool first : {true, false}) {
    for (const RankAnswer& answer : answers) {
      if (answer.error.empty() || is_first(answer) != first) continue;
      errors.push_back(fmt::format(
          "rank {} ({}): {}", answer.rank, hosts[static_cast<size_t>(answer.rank)], answer.error));
    }
  }
  return errors;
}

Next hear(const AcceptContext& context) {
  return static_cast<Next>(context.judging.receive(0).at(0));
}

// The other ranks: tell rank 0 how it went and hear what is next. If it is the end, rank 0 writes
// what there is and ends the job; this rank only waits for that.
Next tell_rank_0(const AcceptContext& context, const Attempt& attempt) {
  constexpr double to_write_s = 3.0;
  constexpr double for_ever_s = 1e9;  // the watchdog is there
  const double until_it_notices_s = attempt.has_waited ? 0.0 : context.config.timeout_s;
  const double until_all_have_answered_s = context.config.timeout_s + after_a_failure_s;
  const auto be_patient = [&](double s) {
    context.set_patience(attempt.error ? s + to_write_s : for_ever_s);
  };
  context.judging.post(pack(answer_of(context, attempt)), 0);
  be_patient(until_it_notices_s);
  try {
    Next next = hear(context);
    if (next == Next::wait) {
      be_patient(until_all_have_answered_s);
      next = hear(context);
    }
    if (next != Next::end) return next;
    context.set_patience(2 * to_write_s);
    context.judging.receive(0);
  } catch (const CommError& e) {
    if (attempt.error) throw CommError(*attempt.error);
    throw CommError(fmt::format("rank 0 does not end the job: {}", e.what()));
  }
  throw CommError("rank 0 goes on after the end");
}

// A wrong value is no matter of luck: once is enough. What could not be carried out is no matter of
// gates.
bool is_final(const CaseResult& result) {
  return result.corrupt || result.status == CaseStatus::error ||
         result.status == CaseStatus::skipped;
}

bool is_same_place(const Blame& a, const Blame& b) {
  return a.kind == b.kind && a.ranks == b.ranks && a.host == b.host;
}

bool blames(const CaseResult& result, const Blame& blame) {
  return std::any_of(result.blamed.begin(), result.blamed.end(), [&](const Blame& other) {
    return is_same_place(other, blame);
  });
}

// Of the attempts' blames those that two share, as the first of them says it.
std::vector<Blame> blamed_twice(const std::vector<CaseResult>& attempts) {
  std::vector<Blame> found;
  for (const CaseResult& attempt : attempts) {
    for (const Blame& blame : attempt.blamed) {
      const auto n = std::count_if(attempts.begin(), attempts.end(), [&](const CaseResult& other) {
        return blames(other, blame);
      });
      const bool is_known = std::any_of(found.begin(), found.end(), [&](const Blame& other) {
        return is_same_place(other, blame);
      });
      if (n >= 2 && !is_known) found.push_back(blame);
    }
  }
  return found;
}

bool misses_a_gate(const CaseResult& result) {
  return std::any_of(result.figures.begin(), result.figures.end(), [](const Figure& figure) {
    return !figure.passed;
  });
}

// No gate was missed, only somebody was worse than the others, and each time somebody else: what
// cannot be repeated is the machine's noise.
bool is_only_restless(const std::vector<CaseResult>& attempts) {
  return blamed_twice(attempts).empty() &&
         std::none_of(attempts.begin(), attempts.end(), [](const CaseResult& attempt) {
           return attempt.status != CaseStatus::passed &&
                  (attempt.blamed.empty() || misses_a_gate(attempt));
         });
}

// What cannot be a matter of luck came up when the case was repeated.
CaseResult ended_by_last(std::vector<CaseResult> attempts) {
  CaseResult result = std::move(attempts.back());
  attempts.pop_back();
  result.attempts = static_cast<int>(attempts.size()) + 1;
  for (const CaseResult& earlier : attempts) {
    result.seconds += earlier.seconds;
    if (earlier.status == CaseStatus::passed) continue;
    result.notes.push_back("an earlier attempt failed: " + earlier.reason);
  }
  return result;
}

}  // namespace

CaseResult merged(std::vector<CaseResult> attempts) {
  if (attempts.size() == 1) return std::move(attempts.front());
  if (is_final(attempts.back())) return ended_by_last(std::move(attempts));
  const auto n_failed = std::count_if(attempts.begin(), attempts.end(), [](const CaseResult& r) {
    return r.status != CaseStatus::passed;
  });
  double seconds = 0.0;
  for (const CaseResult& attempt : attempts) seconds += attempt.seconds;
  const bool is_luck = n_failed == 1;
  CaseResult result = is_luck ? attempts.back() : attempts.front();
  if (is_luck) {
    result.status = CaseStatus::flaky;
    result.reason = "failed once and passed twice when repeated: " + attempts.front().reason;
    result.blamed.clear();
  } else if (is_only_restless(attempts)) {
    result.status = CaseStatus::flaky;
    result.reason =
        fmt::format("failed in {} of {} attempts, which do not agree on who is at fault: {}",
                    n_failed,
                    attempts.size(),
                    attempts.front().reason);
    result.blamed.clear();
  } else {
    result.blamed = blamed_twice(attempts);
    result.notes.push_back(fmt::format("failed in {} of {} attempts", n_failed, attempts.size()));
    if (result.blamed.empty() && !attempts.front().blamed.empty()) {
      result.notes.emplace_back("the attempts do not agree on who is at fault: nobody is blamed");
    }
  }
  result.attempts = static_cast<int>(attempts.size());
  result.seconds = seconds;
  return result;
}

void go_on_together(const AcceptContext& context, double to_write_s) {
  if (context.rank == 0) {
    tell_all(context, Next::go);
    return;
  }
  context.set_patience(context.config.timeout_s + to_write_s);
  CHECK(hear(context) == Next::go);
}

CaseOutcome run_case(const AcceptContext& context, Stage& stage, const PlannedCase& planned) {
  constexpr size_t n_attempts = 3;
  std::vector<CaseResult> results;
  while (true) {
    const Watchdog::Watch watch(
        context.watchdog, fmt::format("{}/{}", planned.stage, planned.name), planned.deadline_s);
    Attempt attempt = attempt_case(context, stage, planned);
    if (context.rank != 0) {
      if (tell_rank_0(context, attempt) == Next::repeat) continue;
      return {};
    }
    const std::vector<RankAnswer> answers = gather_answers(context, attempt);
    Absence absence = blame_absence(answers, context.hosts);
    const std::vector<std::string> errors = errors_of(answers, absence, context.hosts);
    results.push_back(std::move(attempt.result));
    if (!errors.empty()) {
      tell_all(context, Next::end);
      CaseResult& result = results.back();
      result.status = CaseStatus::error;
      result.blamed = std::move(absence.blamed);
      result.reason = errors.front();
      result.notes.insert(result.notes.end(), errors.begin() + 1, errors.end());
      return {.result = merged(std::move(results)), .ended = true};
    }
    const CaseResult& first = results.front();
    const bool repeats = first.status == CaseStatus::failed && !planned.once &&
                         results.size() < n_attempts &&
                         std::none_of(results.begin(), results.end(), is_final);
    tell_all(context, repeats ? Next::repeat : Next::done);
    if (repeats) continue;
    return {.result = merged(std::move(results))};
  }
}

}  // namespace testbed
