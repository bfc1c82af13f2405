// --layout on GPUs: what NCCL is told, what cannot be had, and whether its log shows it.
#include "parallel/comm/layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/errors.hpp"

namespace testbed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

constexpr Layout gpu_layouts[] = {
    Layout::nvlink, Layout::nvlink_ring, Layout::pcie, Layout::shm, Layout::ib, Layout::socket};

std::filesystem::path log_of(const std::string& name) {
  return std::filesystem::path(TESTBED_SOURCE_DIR) / "tests/fixtures/nccl_logs" / (name + ".log");
}

HostTopology switched(int n_devices) {
  HostTopology host{.host = "a", .links_known = true};
  for (int i = 0; i < n_devices; ++i) {
    host.devices.push_back(
        {.pci_bus_id = "0000:0" + std::to_string(i) + ":00.0", .n_switch_links = 18});
  }
  return host;
}
HostTopology without_nvlink(int n_devices) {
  HostTopology host = switched(n_devices);
  for (DeviceLinks& device : host.devices) device.n_switch_links = 0;
  return host;
}

NcclRequest request_for(Layout layout) {
  return {.layout = layout, .rank = 3, .host = "node1", .log = "/tmp/nccl.rank3.log"};
}

TEST(Layout, tells_nccl_which_links_to_use) {
  EXPECT_THAT(layout_environment(request_for(Layout::automatic)),
              UnorderedElementsAre(Pair("NCCL_GRAPH_REGISTER", "0")));
  EXPECT_THAT(layout_environment(request_for(Layout::nvlink)),
              UnorderedElementsAre(Pair("NCCL_GRAPH_REGISTER", "0"),
                                   Pair("NCCL_P2P_DISABLE", "0"),
                                   Pair("NCCL_P2P_LEVEL", "NVL")));
  EXPECT_THAT(layout_environment(request_for(Layout::nvlink_ring)),
              UnorderedElementsAre(Pair("NCCL_GRAPH_REGISTER", "0"),
                                   Pair("NCCL_P2P_DISABLE", "0"),
                                   Pair("NCCL_P2P_LEVEL", "NVL"),
                                   Pair("NCCL_NVLS_ENABLE", "0"),
                                   Pair("NCCL_ALGO", "Ring")));
  EXPECT_THAT(layout_environment(request_for(Layout::shm)),
              UnorderedElementsAre(Pair("NCCL_GRAPH_REGISTER", "0"),
                                   Pair("NCCL_P2P_DISABLE", "1"),
                                   Pair("NCCL_SHM_DISABLE", "0"),
                                   Pair("NCCL_NVLS_ENABLE", "0"),
                                   Pair("NCCL_MNNVL_ENABLE", "0")));
  EXPECT_THAT(layout_environment(request_for(Layout::socket)),
              UnorderedElementsAre(Pair("NCCL_GRAPH_REGISTER", "0"),
                                   Pair("NCCL_P2P_DISABLE", "1"),
                                   Pair("NCCL_SHM_DISABLE", "1"),
                                   Pair("NCCL_NVLS_ENABLE", "0"),
                                   Pair("NCCL_MNNVL_ENABLE", "0"),
                                   Pair("NCCL_NET", "Socket"),
                                   Pair("NCCL_IB_DISABLE", "1"),
                                   Pair("NCCL_HOSTID", "node1-rank3")));
  const Environment ib = layout_environment(request_for(Layout::ib));
  EXPECT_EQ(ib.at("NCCL_NET"), "IB");
  EXPECT_EQ(ib.at("NCCL_IB_DISABLE"), "0");
}

TEST(Layout, makes_ranks_on_one_gpu_hosts_of_their_own) {
  NcclRequest request = request_for(Layout::automatic);
  EXPECT_FALSE(layout_environment(request).contains("NCCL_HOSTID"));
  request.shares_devices = true;
  EXPECT_EQ(layout_environment(request).at("NCCL_HOSTID"), "node1-rank3");
}

TEST(Layout, has_nccl_write_its_log) {
  const NcclSettings settings = nccl_settings(request_for(Layout::shm), {});
  EXPECT_EQ(settings.variables.at("NCCL_DEBUG"), "INFO");
  EXPECT_THAT(settings.variables.at("NCCL_DEBUG_SUBSYS"), HasSubstr("TUNING"));
  EXPECT_EQ(settings.variables.at("NCCL_DEBUG_FILE"), "/tmp/nccl.rank3.log");
  EXPECT_EQ(settings.variables.at("NCCL_P2P_DISABLE"), "1");
  EXPECT_THAT(settings.notes, IsEmpty());
  EXPECT_EQ(log_environment("/tmp/100%/h").at("NCCL_DEBUG_FILE"), "/tmp/100%%/h");
  const Environment quiet = quiet_environment("/tmp/l");
  EXPECT_EQ(quiet.at("NCCL_DEBUG"), "WARN");
  EXPECT_NE(quiet.at("NCCL_DEBUG_FILE"), "/tmp/l");
}

TEST(Layout, overrides_no_variable_in_silence) {
  const NcclRequest ring = request_for(Layout::nvlink_ring);
  EXPECT_NO_THROW(nccl_settings(ring, {{"NCCL_ALGO", "RING"}, {"NCCL_IB_TIMEOUT", "20"}}));
  try {
    nccl_settings(ring, {{"NCCL_ALGO", "Tree"}});
    FAIL() << "NCCL_ALGO=Tree was overridden";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("NCCL_ALGO=Tree"));
    EXPECT_THAT(e.what(), HasSubstr("--layout nvlink-ring"));
  }
  EXPECT_THROW(nccl_settings(request_for(Layout::shm), {{"NCCL_SHM_DISABLE", "1"}}), ConfigError);
  // What only concerns the log is replaced, and told.
  const NcclSettings settings =
      nccl_settings(request_for(Layout::automatic),
                    {{"NCCL_DEBUG", "WARN"}, {"NCCL_DEBUG_FILE", "/x"}, {"NCCL_ALGO", "Tree"}});
  EXPECT_THAT(settings.notes,
              ElementsAre(HasSubstr("NCCL_DEBUG=WARN"), HasSubstr("NCCL_DEBUG_FILE=/x")));
  EXPECT_EQ(settings.variables.at("NCCL_DEBUG"), "INFO");
  EXPECT_FALSE(settings.variables.contains("NCCL_ALGO"));
}

TEST(Layout, takes_only_nccls_variables_from_the_environment) {
  const char* const environment[] = {"PATH=/bin", "NCCL_NET=IB", "NCCL_X=a=b", "NCCL_", nullptr};
  EXPECT_THAT(nccl_variables(environment),
              UnorderedElementsAre(Pair("NCCL_NET", "IB"), Pair("NCCL_X", "a=b")));
  EXPECT_THAT(nccl_variables(nullptr), IsEmpty());
}

TEST(Layout, knows_what_a_host_cannot_have) {
  const auto reason = [](Layout layout, const HostTopology& host) {
    return why_not(layout, host).value_or("");
  };
  EXPECT_EQ(reason(Layout::nvlink, switched(2)), "");
  EXPECT_EQ(reason(Layout::nvlink_ring, switched(8)), "");
  EXPECT_EQ(reason(Layout::shm, switched(2)), "");
  EXPECT_EQ(reason(Layout::pcie, without_nvlink(2)), "");
  EXPECT_EQ(reason(Layout::socket, without_nvlink(1)), "");
  EXPECT_EQ(reason(Layout::automatic, without_nvlink(1)), "");
  EXPECT_THAT(reason(Layout::pcie, switched(2)), HasSubstr("over PCIe it cannot be had"));
  EXPECT_THAT(reason(Layout::nvlink, without_nvlink(2)),
              HasSubstr("--layout nvlink cannot be had on host a: no NVLink joins 0000:00:00.0 "
                        "and 0000:01:00.0"));
  EXPECT_THAT(reason(Layout::nvlink, switched(1)), HasSubstr("one rank"));
  EXPECT_THAT(reason(Layout::shm, switched(1)), HasSubstr("one rank"));
  EXPECT_THAT(reason(Layout::ib, switched(2)), HasSubstr("no HCA"));
  EXPECT_THAT(reason(Layout::mpi, switched(2)), HasSubstr("--device cpu"));
  HostTopology with_ib = switched(2);
  with_ib.n_infiniband_ports = 1;
  EXPECT_EQ(reason(Layout::ib, with_ib), "");
  HostTopology shared = switched(2);
  shared.shares_devices = true;
  EXPECT_THAT(reason(Layout::nvlink, shared), HasSubstr("share a GPU"));
  EXPECT_THAT(reason(Layout::shm, shared), HasSubstr("share a GPU"));
  EXPECT_EQ(reason(Layout::socket, shared), "");
  HostTopology unknown = without_nvlink(2);
  unknown.links_known = false;  // NCCL's log must tell
  EXPECT_EQ(reason(Layout::nvlink, unknown), "");
}

TEST(Layout, follows_nvlinks_between_gpus) {
  const DeviceLinks a{.pci_bus_id = "a", .peers = {"b"}};
  const DeviceLinks b{.pci_bus_id = "b", .peers = {"a", "c"}};
  const DeviceLinks c{.pci_bus_id = "c", .peers = {"b"}};
  EXPECT_TRUE(nvlink_between(a, b));
  EXPECT_FALSE(nvlink_between(a, c));
  const HostTopology pairs{.host = "h", .devices = {a, b, c}, .links_known = true};
  EXPECT_EQ(p2p_link(pairs), P2pLink::unknown);  // some by NVLink, some not
  EXPECT_EQ(p2p_link({.host = "h", .devices = {a, b}, .links_known = true}), P2pLink::nvlink);
  EXPECT_EQ(p2p_link({.host = "h", .devices = {a, c}, .links_known = true}), P2pLink::pcie);
  EXPECT_EQ(p2p_link({.host = "h", .devices = {a, b}}), P2pLink::unknown);
  EXPECT_EQ(p2p_link(switched(8)), P2pLink::nvlink);
}

// The first communicator of a recorded log, as a group of its size on one host.
std::string denial(Layout layout, const std::string& log, std::vector<int> node_of = {}) {
  const NcclLogReport report = read_nccl_log(log_of(log)).value();
  const LoggedCommunicator& c = report.communicators.at(0);
  GroupInfo group{.axis = Axis::tp, .rank = c.rank, .size = c.n_ranks};
  for (int r = 0; r < c.n_ranks; ++r) group.world_ranks.push_back(r + 4);
  group.node_of = std::move(node_of);
  return why_not_in_effect(layout, c, group).value_or("");
}

TEST(Layout, is_in_effect_where_the_log_shows_it) {
  EXPECT_EQ(denial(Layout::nvlink, "nvlink_nvls"), "");
  EXPECT_EQ(denial(Layout::pcie, "p2p_ipc"), "");
  EXPECT_EQ(denial(Layout::shm, "shm"), "");
  EXPECT_EQ(denial(Layout::ib, "ib_gdr"), "");
  EXPECT_EQ(denial(Layout::ib, "ib"), "");
  EXPECT_EQ(denial(Layout::socket, "socket"), "");
  EXPECT_EQ(denial(Layout::nvlink, "mixed", {0, 0, 1, 1}), "");
  for (const char* log : {"nvlink_nvls", "p2p_ipc", "shm", "ib_gdr", "ib", "socket", "mixed"}) {
    EXPECT_EQ(denial(Layout::automatic, log), "");
  }
}

TEST(Layout, is_not_in_effect_where_the_log_shows_another) {
  for (const Layout layout : gpu_layouts) {
    if (layout != Layout::shm) {
      EXPECT_THAT(denial(layout, "shm"),
                  HasSubstr("messages to rank 1 of the group went through shm"))
          << layout_name(layout);
    }
    if (layout != Layout::socket) {
      EXPECT_THAT(denial(layout, "socket"), HasSubstr("socket")) << layout_name(layout);
    }
    if (layout != Layout::ib) {
      EXPECT_THAT(denial(layout, "ib_gdr"), HasSubstr("ib+gdr")) << layout_name(layout);
    }
  }
  EXPECT_THAT(denial(Layout::nvlink_ring, "nvlink_nvls"),
              HasSubstr("--layout nvlink-ring did not take effect in the tp group of rank 4: an "
                        "all_reduce of 67108864 bytes was done by nvls"));
  // Between hosts the network is as it should be; on one host it is not.
  EXPECT_THAT(denial(Layout::nvlink, "mixed"), HasSubstr("ib+gdr"));
  EXPECT_THAT(denial(Layout::shm, "mixed", {0, 0, 1, 1}), HasSubstr("went through p2p"));
}

TEST(Layout, is_not_proven_by_a_log_that_says_nothing) {
  const LoggedCommunicator silent{.handle = 1, .rank = 0, .n_ranks = 2, .n_calls = 1};
  const LoggedCommunicator unused{.handle = 1, .rank = 0, .n_ranks = 2};
  const GroupInfo pair{.axis = Axis::pp, .rank = 0, .size = 2, .world_ranks = {0, 1}};
  const GroupInfo alone{.axis = Axis::pp, .rank = 0, .size = 1, .world_ranks = {0}};
  for (const Layout layout : gpu_layouts) {
    EXPECT_THAT(why_not_in_effect(layout, silent, pair).value_or(""), HasSubstr("no channel"));
    EXPECT_EQ(why_not_in_effect(layout, silent, alone), std::nullopt);
    EXPECT_EQ(why_not_in_effect(layout, unused, pair), std::nullopt);
  }
  EXPECT_EQ(why_not_in_effect(Layout::automatic, silent, pair), std::nullopt);
}

TEST(Layout, of_processors) {
  EXPECT_EQ(why_not_on_cpu(Layout::automatic), std::nullopt);
  EXPECT_EQ(why_not_on_cpu(Layout::mpi), std::nullopt);
  EXPECT_THAT(why_not_on_cpu(Layout::tcp).value_or(""), HasSubstr("not built yet"));
  EXPECT_THAT(why_not_on_cpu(Layout::shm).value_or(""), HasSubstr("not built yet"));
  EXPECT_THAT(why_not_on_cpu(Layout::nvlink_ring).value_or(""), HasSubstr("--device cuda"));
}

}  // namespace
}  // namespace testbed
