// Who is blamed when ranks waited in vain.
#include <gtest/gtest.h>

#include "runtime/accept/absence.hpp"

namespace testbed {
namespace {

const std::vector<std::string> hosts{"a", "a", "b", "b"};

std::vector<RankAnswer> all_wait() {
  std::vector<RankAnswer> answers;
  for (const int rank : {0, 1, 2, 3}) {
    answers.push_back({.rank = rank, .error = "barrier: ranks 2 did not arrive"});
  }
  return answers;
}

TEST(BlameAbsence, a_rank_that_does_not_answer_and_nobody_else) {
  std::vector<RankAnswer> answers = all_wait();
  answers[2] = {.rank = 2, .answers = false, .error = "does not answer"};
  answers[1].awaited = 2;  // its link is as good as any
  const std::vector<Blame> blamed = blame_absence(answers, hosts);
  ASSERT_EQ(blamed.size(), 1U);
  EXPECT_EQ(
      blamed[0],
      (Blame{.kind = Blame::Kind::rank, .ranks = {2}, .host = "b", .what = "does not answer"}));
}

TEST(BlameAbsence, a_link_whose_ends_are_both_there_once) {
  std::vector<RankAnswer> answers = all_wait();
  answers[3].awaited = 1;
  answers[1].awaited = 3;
  const std::vector<Blame> blamed = blame_absence(answers, hosts);
  ASSERT_EQ(blamed.size(), 1U);
  EXPECT_EQ(blamed[0].kind, Blame::Kind::link);
  EXPECT_EQ(blamed[0].ranks, (std::vector<int>{1, 3}));
  EXPECT_EQ(blamed[0].host, "a");
  EXPECT_EQ(blamed[0].what, "rank 1 waited for a message of rank 3 in vain");
}

TEST(BlameAbsence, nobody_where_it_cannot_be_told) {
  EXPECT_TRUE(blame_absence(all_wait(), hosts).empty());
  // A rank without an error has not waited in vain, whatever it awaits now.
  EXPECT_TRUE(blame_absence({{.rank = 0}, {.rank = 1, .awaited = 0}}, hosts).empty());
}

}  // namespace
}  // namespace testbed
