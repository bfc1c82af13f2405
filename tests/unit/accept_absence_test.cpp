// Who is blamed when ranks waited in vain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/comm/communicator.hpp"
#include "runtime/accept/absence.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<std::string> hosts{"a", "a", "b", "b"};

std::vector<RankAnswer> all_wait() {
  std::vector<RankAnswer> answers;
  answers.reserve(4);
  for (const int rank : {0, 1, 2, 3}) {
    answers.push_back({.rank = rank, .error = "barrier: ranks 2 did not arrive"});
  }
  return answers;
}

Message message(CommOp op, int peer, int64_t sequence) {
  return {.op = static_cast<uint8_t>(op),
          .axis = static_cast<uint8_t>(Axis::pp),
          .peer = peer,
          .group_size = 4,
          .sequence = sequence};
}
Message from(int peer, int64_t sequence) { return message(CommOp::recv, peer, sequence); }
Message to(int peer, int64_t sequence) { return message(CommOp::send, peer, sequence); }

std::vector<std::vector<int>> blamed_links(const std::vector<RankAnswer>& answers) {
  std::vector<std::vector<int>> links;
  for (const Blame& blame : blame_absence(answers, hosts).blamed) {
    EXPECT_EQ(blame.kind, Blame::Kind::link);
    links.push_back(blame.ranks);
  }
  return links;
}

TEST(BlameAbsence, a_rank_that_does_not_answer_and_nobody_else) {
  std::vector<RankAnswer> answers = all_wait();
  answers[2] = {.rank = 2, .answers = false, .error = "does not answer"};
  answers[1].awaited = from(2, 0);  // its link is as good as any
  EXPECT_THAT(
      blame_absence(answers, hosts).blamed,
      ElementsAre(
          Blame{.kind = Blame::Kind::rank, .ranks = {2}, .host = "b", .what = "does not answer"}));
}

TEST(BlameAbsence, a_rank_with_an_error_of_its_own_and_nobody_else) {
  const RankAnswer broken{.rank = 2, .error = "cudaMalloc: out of memory", .is_own = true};
  const Blame blame{
      .kind = Blame::Kind::rank, .ranks = {2}, .host = "b", .what = "cudaMalloc: out of memory"};
  std::vector<RankAnswer> answers = all_wait();
  answers[2] = broken;
  answers[3].awaited = from(2, 5);  // which rank 2 did not come to send, or to say that it did
  EXPECT_THAT(blame_absence(answers, hosts).blamed, ElementsAre(blame));
  answers[1] = {.rank = 1, .answers = false, .error = "does not answer"};  // it still waits
  EXPECT_THAT(blame_absence(answers, hosts).blamed, ElementsAre(blame));

  for (RankAnswer& answer : answers) {
    answer = broken;
    answer.rank = static_cast<int>(&answer - answers.data());
  }
  EXPECT_THAT(blame_absence(answers, hosts).blamed, IsEmpty());
  EXPECT_THAT(
      blame_absence({{.rank = 0, .error = "cudaMalloc: out of memory", .is_own = true}}, hosts)
          .blamed,
      testing::SizeIs(1));
}

TEST(BlameAbsence, a_link_whose_ends_are_both_there_once) {
  std::vector<RankAnswer> answers = all_wait();
  answers[3].awaited = from(1, 0);
  answers[3].given = to(1, 0);
  answers[1].awaited = from(3, 0);
  answers[1].given = to(3, 0);
  const std::vector<Blame> blamed = blame_absence(answers, hosts).blamed;
  EXPECT_THAT(blamed,
              ElementsAre(Blame{.kind = Blame::Kind::link,
                                .ranks = {1, 3},
                                .host = "a",
                                .what = "rank 1 waited for a message of rank 3 in vain"}));
}

// Stage 0 has sent microbatches 0 to 3 and waits for the last stage's tokens; nobody else has
// anything to send on. In the first step, and in one after messages 0 to 3 came through.
TEST(BlameAbsence, of_a_ring_of_waits_the_link_whose_message_was_sent) {
  for (const int64_t n_before : {0, 4}) {
    std::vector<RankAnswer> answers = all_wait();
    for (const int rank : {1, 2, 3})
      answers[static_cast<size_t>(rank)].awaited = from(rank - 1, n_before);
    answers[0].awaited = from(3, n_before);
    answers[0].given = to(1, n_before + 3);
    if (n_before > 0) {
      answers[1].given = to(2, n_before - 1);
      answers[2].given = to(3, n_before - 1);
      answers[3].given = to(0, n_before - 1);
    }
    EXPECT_THAT(blamed_links(answers), ElementsAre(ElementsAre(0, 1))) << n_before;
  }
}

// 2 sent to 3 in vain and is back in a collective; 0 waits for the tokens of 3.
TEST(BlameAbsence, who_waits_for_one_that_waits_says_nothing_of_their_link) {
  std::vector<RankAnswer> answers = all_wait();
  answers[2].given = to(3, 0);
  answers[3].awaited = from(2, 0);
  answers[0].awaited = from(3, 0);
  EXPECT_THAT(blamed_links(answers), ElementsAre(ElementsAre(2, 3)));
  // The same by who waits, if 2 has sent to somebody else since.
  answers[2].given = to(0, 0);
  EXPECT_THAT(blamed_links(answers), ElementsAre(ElementsAre(2, 3)));
}

// 1 hangs in a collective because of others, before it came to send.
TEST(BlameAbsence, no_link_over_which_nothing_was_sent) {
  std::vector<RankAnswer> answers = all_wait();
  answers[2].awaited = from(1, 4);
  answers[1].given = to(2, 3);
  const Absence absence = blame_absence(answers, hosts);
  EXPECT_THAT(absence.blamed, IsEmpty());
  EXPECT_THAT(absence.unclear, HasSubstr("rank 2 for rank 1"));
}

TEST(BlameAbsence, who_waits_to_be_rid_of_a_message_says_nothing_of_the_link) {
  std::vector<RankAnswer> answers = all_wait();
  answers[0].awaited = to(1, 2);
  answers[0].given = to(1, 2);
  EXPECT_THAT(blamed_links(answers), IsEmpty());
  answers[1].awaited = from(0, 2);
  EXPECT_THAT(blamed_links(answers), ElementsAre(ElementsAre(0, 1)));
}

TEST(BlameAbsence, nobody_where_it_cannot_be_told) {
  const Absence of_collective = blame_absence(all_wait(), hosts);
  EXPECT_THAT(of_collective.blamed, IsEmpty());
  EXPECT_EQ(of_collective.unclear, "");
  // A rank without an error has not waited in vain, whatever it awaits now.
  EXPECT_THAT(blame_absence({{.rank = 0}, {.rank = 1, .awaited = from(0, 0)}}, hosts).blamed,
              IsEmpty());

  std::vector<RankAnswer> ring = all_wait();
  for (const int rank : {0, 1, 2, 3}) {
    ring[static_cast<size_t>(rank)].awaited = from((rank + 3) % 4, 0);
    ring[static_cast<size_t>(rank)].given = to((rank + 2) % 4, 0);  // nothing is known of the next
  }
  const Absence absence = blame_absence(ring, hosts);
  EXPECT_THAT(absence.blamed, IsEmpty());
  EXPECT_THAT(
      absence.unclear,
      HasSubstr("rank 0 for rank 3, rank 1 for rank 0, rank 2 for rank 1, rank 3 for rank 2"));
}

}  // namespace
}  // namespace testbed
