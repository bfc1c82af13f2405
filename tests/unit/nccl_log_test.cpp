// NCCL's log, read from small ones in the formats of tests/fixtures/nccl_logs: those of NCCL 2.28
// (src/init.cc, src/enqueue.cc, src/transport), and older spellings in p2p_ipc.log.
#include "parallel/comm/nccl_log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

std::filesystem::path path_of(const std::string& name) {
  return std::filesystem::path(TESTBED_SOURCE_DIR) / "tests/fixtures/nccl_logs" / (name + ".log");
}

NcclLogReport report_of(const std::string& name) { return read_nccl_log(path_of(name)).value(); }

std::string transport_in(const std::string& name, P2pLink p2p = P2pLink::unknown) {
  return transport_name(report_of(name).communicators.at(0).transports(), p2p);
}

TEST(NcclLog, tells_communicators_apart) {
  const NcclLogReport report = report_of("nvlink_nvls");
  EXPECT_EQ(report.version, "2.28.9+cuda13.0");
  EXPECT_EQ(report.network, "IB");
  EXPECT_EQ(report.nvls_available, true);
  EXPECT_THAT(report.environment, UnorderedElementsAre(Pair("NCCL_P2P_LEVEL", "NVL")));
  ASSERT_EQ(report.communicators.size(), 2U);
  const LoggedCommunicator& world = *report.communicator(0x55d0c0a00010);
  EXPECT_EQ(world.rank, 0);
  EXPECT_EQ(world.n_ranks, 4);
  EXPECT_FALSE(world.parent);
  EXPECT_TRUE(world.is_complete);
  EXPECT_TRUE(world.has_nvls);
  EXPECT_EQ(world.n_calls, 3);
  EXPECT_THAT(world.to, ElementsAre(Pair(1, ElementsAre(NcclTransport::p2p))));
  EXPECT_THAT(world.from, testing::IsEmpty());
  EXPECT_THAT(
      world.choices,
      ElementsAre(
          NcclChoice{8192, CommOp::all_reduce, CommAlgorithm::ring, NcclProtocol::ll},
          NcclChoice{67108864, CommOp::all_reduce, CommAlgorithm::nvls, NcclProtocol::simple}));
  const LoggedCommunicator& split = *report.communicator(0x55d0c0f00020);
  EXPECT_EQ(split.n_ranks, 2);
  EXPECT_EQ(split.parent, 0x55d0c0a00010);
  EXPECT_FALSE(split.has_nvls);
  EXPECT_THAT(split.to, ElementsAre(Pair(1, ElementsAre(NcclTransport::p2p))));
  EXPECT_EQ(split.choices.size(), 1U);
  EXPECT_EQ(report.n_unplaced, 0);
  EXPECT_EQ(report.n_unread, 0);
  EXPECT_EQ(report.communicator(0x1), nullptr);
}

TEST(NcclLog, finds_the_choice_for_a_payload) {
  const NcclLogReport report = report_of("nvlink_nvls");
  const auto& all_reduces = report.communicator(0x55d0c0a00010)->choices;
  EXPECT_EQ(find_choice(all_reduces, CommOp::all_reduce, 8192, 4)->protocol, NcclProtocol::ll);
  EXPECT_EQ(find_choice(all_reduces, CommOp::all_reduce, 8190, 4), nullptr);
  EXPECT_EQ(find_choice(all_reduces, CommOp::broadcast, 8192, 4), nullptr);
  // NCCL counts one rank's part, our payload is the whole.
  const auto& gathers = report.communicator(0x55d0c0f00020)->choices;
  EXPECT_EQ(find_choice(gathers, CommOp::all_gather, 2097152, 2), nullptr);
  EXPECT_EQ(find_choice(gathers, CommOp::all_gather, 4194304, 2)->algorithm, CommAlgorithm::ring);
}

TEST(NcclLog, names_transports) {
  EXPECT_EQ(transport_in("nvlink_nvls", P2pLink::nvlink), "nvlink");
  EXPECT_EQ(transport_in("p2p_ipc", P2pLink::pcie), "pcie-p2p");
  EXPECT_EQ(transport_in("p2p_ipc"), "p2p");
  EXPECT_EQ(transport_in("shm"), "shm");
  EXPECT_EQ(transport_in("ib_gdr"), "ib+gdr");
  EXPECT_EQ(transport_in("ib"), "ib");
  EXPECT_EQ(transport_in("socket"), "socket");
  EXPECT_EQ(transport_in("mixed", P2pLink::nvlink), "mixed:ib+gdr,nvlink");
  EXPECT_EQ(transport_name({}, P2pLink::nvlink), "unknown");
  EXPECT_EQ(transport_name({NcclTransport::mnnvl}, P2pLink::pcie), "nvlink");
  EXPECT_EQ(transport_name({NcclTransport::other_net}, P2pLink::pcie), "net");
}

TEST(NcclLog, reads_both_directions_of_a_network) {
  const NcclLogReport report = report_of("socket");
  const LoggedCommunicator& c = report.communicators.at(0);
  EXPECT_THAT(c.from, ElementsAre(Pair(0, ElementsAre(NcclTransport::socket))));
  EXPECT_THAT(c.to, ElementsAre(Pair(2, ElementsAre(NcclTransport::socket))));
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("Connect to 10.0.0.2<4100> failed")));
  EXPECT_THAT(report.environment, UnorderedElementsAre(Pair("NCCL_SOCKET_IFNAME", "eth0")));
}

TEST(NcclLog, reads_a_value_without_its_full_stop) {
  EXPECT_EQ(report_of("shm").environment.at("NCCL_P2P_DISABLE"), "1");
}

TEST(NcclLog, names_every_algorithm) {
  const NcclLogReport report = report_of("mixed");
  const LoggedCommunicator& c = report.communicators.at(0);
  EXPECT_THAT(
      c.choices,
      ElementsAre(
          NcclChoice{2097152, CommOp::all_reduce, CommAlgorithm::nvls_tree, NcclProtocol::simple},
          NcclChoice{2048, CommOp::reduce_scatter, CommAlgorithm::pat, NcclProtocol::simple},
          NcclChoice{64, CommOp::broadcast, CommAlgorithm::ring, NcclProtocol::ll},
          NcclChoice{1024, CommOp::all_reduce, CommAlgorithm::one_shot, NcclProtocol::ll}));
  EXPECT_EQ(report.n_unread, 0);
}

// Two communicators of one size call in a group: calls come first, choices after them.
TEST(NcclLog, gives_a_group_of_calls_their_choices) {
  const auto init = [](const std::string& handle) {
    return "h:1:1 [0] NCCL INFO ncclCommInitRank comm " + handle +
           " rank 0 nranks 2 cudaDev 0 - Init START\n";
  };
  const auto call = [](const std::string& handle, int count) {
    return "h:1:1 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x1 count " +
           std::to_string(count) + " datatype 7 op 0 root 0 comm " + handle +
           " [nranks=2] stream 0x2\n";
  };
  const auto choice = [](int n_bytes, const std::string& algorithm) {
    return "h:1:1 [0] NCCL INFO AllReduce: " + std::to_string(n_bytes) + " Bytes -> Algo " +
           algorithm + " proto LL channel{Lo..Hi}={0..0}\n";
  };
  std::istringstream log(init("0xa") + init("0xb") + call("0xa", 4) + call("0xb", 4) +
                         call("0xb", 8) + choice(16, "RING") + choice(16, "TREE") +
                         choice(32, "TREE"));
  const NcclLogReport report = read_nccl_log(log);
  using Choices = std::vector<NcclChoice>;
  const auto all_reduce = [](int64_t n_bytes, CommAlgorithm algorithm) {
    return NcclChoice{n_bytes, CommOp::all_reduce, algorithm, NcclProtocol::ll};
  };
  EXPECT_EQ(report.communicator(0xa)->choices, Choices{all_reduce(16, CommAlgorithm::ring)});
  EXPECT_EQ(report.communicator(0xb)->choices,
            (Choices{all_reduce(16, CommAlgorithm::tree), all_reduce(32, CommAlgorithm::tree)}));
}

// Without the lines of calls, a choice can only be that of the one communicator led here.
TEST(NcclLog, places_a_choice_without_its_call_only_if_it_must_be_so) {
  const std::string choice =
      "h:1:1 [0] NCCL INFO AllReduce: 16 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}\n";
  const auto init = [](const std::string& handle, int rank) {
    return "h:1:1 [0] NCCL INFO ncclCommInitRank comm " + handle + " rank " + std::to_string(rank) +
           " nranks 2 cudaDev 0 - Init START\n";
  };
  std::istringstream sure(init("0xa", 0) + init("0xb", 1) + choice);
  EXPECT_EQ(read_nccl_log(sure).communicator(0xa)->choices.size(), 1U);
  std::istringstream unsure(init("0xa", 0) + init("0xb", 0) + choice);
  const NcclLogReport report = read_nccl_log(unsure);
  EXPECT_EQ(report.n_unplaced, 1);
  EXPECT_TRUE(report.communicators[0].choices.empty());
  EXPECT_TRUE(report.communicators[1].choices.empty());
}

// Set-up that runs in several threads at once, as non-blocking initialisation does.
TEST(NcclLog, goes_by_the_thread_of_a_set_up) {
  const std::string head = "h:1:";
  std::istringstream log(
      head + "5 [0] NCCL INFO ncclCommInitRank comm 0xa rank 0 nranks 2 cudaDev 0 - Init START\n" +
      head + "6 [0] NCCL INFO ncclCommInitRank comm 0xb rank 0 nranks 2 cudaDev 0 - Init START\n" +
      head + "5 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n" +  //
      head + "6 [0] NCCL INFO Channel 00 : 0[0] -> 1[3] via SHM/direct/direct\n");
  const NcclLogReport report = read_nccl_log(log);
  EXPECT_THAT(report.communicator(0xa)->transports(), ElementsAre(NcclTransport::p2p));
  EXPECT_THAT(report.communicator(0xb)->transports(), ElementsAre(NcclTransport::shm));
}

TEST(NcclLog, takes_a_handle_that_is_used_again_for_a_new_communicator) {
  const std::string init =
      "h:1:5 [0] NCCL INFO ncclCommInitRank comm 0xa rank 0 nranks 2 cudaDev 0 - Init START\n"
      "h:1:5 [0] NCCL INFO ncclCommInitRank comm 0xa rank 0 nranks 2 cudaDev 0 - Init COMPLETE\n";
  const std::string channel = "h:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n";
  std::istringstream log(init + channel + init);
  const NcclLogReport report = read_nccl_log(log);
  ASSERT_EQ(report.communicators.size(), 2U);
  EXPECT_TRUE(report.communicator(0xa)->to.empty());
  EXPECT_FALSE(report.communicators[0].to.empty());
}

TEST(NcclLog, counts_what_it_cannot_read) {
  const NcclLogReport report = report_of("garbled");
  ASSERT_EQ(report.communicators.size(), 1U);
  const LoggedCommunicator& c = report.communicators[0];
  EXPECT_FALSE(c.is_complete);
  EXPECT_TRUE(c.to.empty());
  EXPECT_TRUE(c.from.empty());
  EXPECT_THAT(
      c.choices,
      ElementsAre(NcclChoice{16, CommOp::all_reduce, CommAlgorithm::ring, NcclProtocol::unknown}));
  EXPECT_EQ(report.n_unplaced, 4);  // two before the communicator, two of other ranks
  EXPECT_EQ(report.n_unread, 8);    // three channels, four choices, the cut-off line
}

TEST(NcclLog, does_without_a_file) {
  EXPECT_FALSE(read_nccl_log(path_of("no_such_log")));
  std::istringstream empty;
  EXPECT_TRUE(read_nccl_log(empty).communicators.empty());
}

// Any prefix, and any byte changed, gives some report and no crash (run under sanitizers).
TEST(NcclLog, survives_damage) {
  std::mt19937 random(1);
  for (const char* name : {"nvlink_nvls", "ib_gdr", "mixed", "garbled"}) {
    std::ostringstream text;
    std::ifstream file(path_of(name));
    text << file.rdbuf();
    const std::string whole = text.str();
    ASSERT_FALSE(whole.empty());
    for (int round = 0; round < 300; ++round) {
      std::string damaged = whole.substr(0, random() % whole.size());
      for (int i = 0; i < 5 && !damaged.empty(); ++i) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      std::istringstream log(damaged);
      EXPECT_LE(read_nccl_log(log).communicators.size(), 4U);
    }
  }
}

}  // namespace
}  // namespace testbed
