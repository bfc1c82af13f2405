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

// What rank 0 says after each attempt, and (go) before a case.
enum class Next : uint8_t { done, repeat, end, go };

// How an attempt went on this rank.
struct Attempt {
  CaseResult result = {};
  std::optional<std::string> error = std::nullopt;
  bool has_waited = false;  // for others, until the deadline: rank 0 has, too
};

Attempt attempt_case(const AcceptContext& context, Stage& stage, const PlannedCase& planned) {
  Attempt attempt;
  const int64_t begin_ns = now_ns();
  try {
    context.control.barrier();
    attempt.result = stage.run(context, planned);
  } catch (const CommError& e) {
    attempt.error = e.what();
    attempt.has_waited = true;
  } catch (const Error& e) {
    attempt.error = e.what();
  } catch (const std::exception& e) {
    attempt.error = fmt::format("internal error: {}", e.what());
  }
  attempt.result.stage = planned.stage;
  attempt.result.name = planned.name;
  attempt.result.seconds = static_cast<double>(now_ns() - begin_ns) * 1e-9;
  return attempt;
}

// What a rank tells of an attempt.
RankAnswer answer_of(const AcceptContext& context, const std::optional<std::string>& error) {
  return {.rank = context.rank,
          .error = error.value_or(""),
          .awaited = error ? context.awaited_peer() : std::nullopt};
}

Bytes pack(const RankAnswer& answer) {
  ByteWriter out;
  out.put(answer.error);
  out.put(answer.awaited.value_or(-1));
  return out.take();
}

RankAnswer unpack(int rank, const Bytes& bytes) {
  RankAnswer answer{.rank = rank};
  int awaited = -1;
  ByteReader in(bytes);
  in.get(answer.error);
  in.get(awaited);
  if (awaited >= 0) answer.awaited = awaited;
  return answer;
}

// Rank 0, of all ranks: what went wrong where. A rank that does not answer is named.
std::vector<RankAnswer> gather_answers(const AcceptContext& context,
                                       const std::optional<std::string>& mine) {
  constexpr double after_a_failure_s = 1.0;  // who can answer does at once
  std::vector<RankAnswer> answers{answer_of(context, mine)};
  answers.reserve(static_cast<size_t>(context.size));
  bool failed = mine.has_value();
  for (int rank = 1; rank < context.size; ++rank) {
    context.set_patience(failed ? after_a_failure_s : context.config.timeout_s);
    try {
      answers.push_back(unpack(rank, context.judging.receive(rank)));
    } catch (const CommError& e) {
      answers.push_back(
          {.rank = rank,
           .answers = false,
           .error = fmt::format("does not answer: {}{}", e.what(), context.whereabouts({rank}))});
    }
    failed = failed || !answers.back().error.empty();
  }
  return answers;
}

// "rank 2 (host): ..." of those that failed: first who is blamed, then the others.
std::vector<std::string> errors_of(const std::vector<RankAnswer>& answers,
                                   const std::vector<Blame>& blamed,
                                   const std::vector<std::string>& hosts) {
  std::vector<std::string> errors;
  const auto is_blamed = [&](int rank) {
    return std::any_of(blamed.begin(), blamed.end(), [&](const Blame& blame) {
      return std::find(blame.ranks.begin(), blame.ranks.end(), rank) != blame.ranks.end();
    });
  };
  for (const bool first : {true, false}) {
    for (const RankAnswer& answer : answers) {
      if (answer.error.empty() || is_blamed(answer.rank) != first) continue;
      errors.push_back(fmt::format(
          "rank {} ({}): {}", answer.rank, hosts[static_cast<size_t>(answer.rank)], answer.error));
    }
  }
  return errors;
}

void tell_all(const AcceptContext& context, Next next) {
  for (int rank = 1; rank < context.size; ++rank) {
    context.judging.post(Bytes(1, static_cast<std::byte>(next)), rank);
  }
}

// The other ranks: tell rank 0 how it went and hear what is next. If it is the end, rank 0 writes
// what there is and ends the job; this rank only waits for that.
Next tell_rank_0(const AcceptContext& context, const Attempt& attempt) {
  constexpr double to_write_s = 3.0;
  constexpr double for_ever_s = 1e9;  // the watchdog is there
  const double until_it_notices_s = attempt.has_waited ? 0.0 : context.config.timeout_s;
  context.judging.post(pack(answer_of(context, attempt.error)), 0);
  context.set_patience(attempt.error ? until_it_notices_s + to_write_s : for_ever_s);
  try {
    const auto next = static_cast<Next>(context.judging.receive(0).at(0));
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

}  // namespace

CaseResult merged(std::vector<CaseResult> attempts) {
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
  CHECK(static_cast<Next>(context.judging.receive(0).at(0)) == Next::go);
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
    const std::vector<RankAnswer> answers = gather_answers(context, attempt.error);
    std::vector<Blame> absent = blame_absence(answers, context.hosts);
    const std::vector<std::string> errors = errors_of(answers, absent, context.hosts);
    results.push_back(std::move(attempt.result));
    if (!errors.empty()) {
      tell_all(context, Next::end);
      CaseResult& result = results.back();
      result.status = CaseStatus::error;
      result.blamed = std::move(absent);
      result.reason = errors.front();
      result.notes.insert(result.notes.end(), errors.begin() + 1, errors.end());
      return {.result = std::move(result), .ended = true};
    }
    const CaseResult& first = results.front();
    const bool repeats = first.status == CaseStatus::failed && results.size() < n_attempts &&
                         std::none_of(results.begin(), results.end(), is_final);
    tell_all(context, repeats ? Next::repeat : Next::done);
    if (repeats) continue;
    const bool is_corrupt = results.back().corrupt;
    return {.result = results.size() == 1 || is_corrupt ? std::move(results.back())
                                                        : merged(std::move(results))};
  }
}

}  // namespace testbed
