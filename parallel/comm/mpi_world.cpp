#include "parallel/comm/mpi_world.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <set>
#include <sstream>

#include "parallel/comm/gather_values.hpp"
#include "parallel/comm/group_placement.hpp"
#include "parallel/comm/mpi_control.hpp"
#include "parallel/comm/shm_hierarchy.hpp"

extern char** environ;

namespace testbed {
namespace {

int integer_in_environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

cpu_set_t affinity_mask() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  return cores;
}

// Before MPI can be asked. A launcher that binds each rank to cores of its own has all of them to
// give; otherwise this process's mask is every rank's.
int cores_for_ranks_of_host() {
  if (integer_in_environment("OMPI_MCA_orte_bound_at_launch") == 1) {
    return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  }
  const cpu_set_t mine = affinity_mask();
  return CPU_COUNT(&mine);
}

void set_open_mpi_defaults(const MpiOptions& options) {
  constexpr int keep_users = 0;
  if (!options.receiver_fetches) {
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", keep_users);
  }
  if (integer_in_environment("OMPI_COMM_WORLD_LOCAL_SIZE") > cores_for_ranks_of_host()) {
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", keep_users);
  }
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::vector<std::string> all_host_names(int size) {
  std::array<char, 256> mine{};
  host_name().copy(mine.data(), mine.size() - 1);
  std::vector<char> all(mine.size() * static_cast<size_t>(size));
  check_mpi(MPI_Allgather(mine.data(),
                          static_cast<int>(mine.size()),
                          MPI_CHAR,
                          all.data(),
                          static_cast<int>(mine.size()),
                          MPI_CHAR,
                          MPI_COMM_WORLD),
            "MPI_Allgather");
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) {
    names.emplace_back(all.data() + static_cast<size_t>(r) * mine.size());
  }
  return names;
}

// The value in force, wherever it was set (environment, mpirun, a file).
std::string open_mpi_parameter(const char* name) {
  int provided = 0;
  int index = 0;
  int count = 0;
  std::string value;
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return value;
  if (MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
    std::vector<char> text(static_cast<size_t>(std::max(count, 4096)) + 1, '\0');
    if (MPI_T_cvar_read(handle, text.data()) == MPI_SUCCESS) value = text.data();
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  return value;
}

// Of the ranks that share memory with this one.
struct Node {
  int first_rank = 0;
  int n_usable_cores = 1;
};

Node find_node(int rank) {
  MPI_Comm local = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local),
            "MPI_Comm_split_type");
  Node node;
  check_mpi(MPI_Allreduce(&rank, &node.first_rank, 1, MPI_INT, MPI_MIN, local), "MPI_Allreduce");
  const cpu_set_t mine = affinity_mask();
  cpu_set_t all;
  CPU_ZERO(&all);
  check_mpi(MPI_Allreduce(&mine, &all, static_cast<int>(sizeof mine), MPI_BYTE, MPI_BOR, local),
            "MPI_Allreduce");
  node.n_usable_cores = std::max(1, CPU_COUNT(&all));
  MPI_Comm_free(&local);
  return node;
}

// One label a node: its first rank's host name, numbered if an earlier node has the same.
std::vector<std::string> label_hosts(const std::vector<std::string>& names, int my_first_rank) {
  std::vector<int> first_rank(names.size());
  check_mpi(
      MPI_Allgather(&my_first_rank, 1, MPI_INT, first_rank.data(), 1, MPI_INT, MPI_COMM_WORLD),
      "MPI_Allgather");
  std::map<std::string, int> n_nodes;
  std::vector<std::string> labels;
  for (size_t r = 0; r < names.size(); ++r) {
    const auto first = static_cast<size_t>(first_rank[r]);
    if (first < r) {
      labels.push_back(labels[first]);
      continue;
    }
    const int n = ++n_nodes[names[r]];
    labels.push_back(n == 1 ? names[r] : names[r] + "#" + std::to_string(n));
  }
  return labels;
}

}  // namespace

MpiWorld::MpiWorld(const MpiOptions& options) {
  set_open_mpi_defaults(options);
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  const Node node = find_node(rank_);
  hosts_ = label_hosts(all_host_names(size_), node.first_rank);
  n_usable_cores_ = node.n_usable_cores;
  shared_memory_ = allows_shared_memory(open_mpi_parameter("btl"));
  waiting_.may_spin = n_local_ranks() <= n_usable_cores_;
  std::vector<int> locals;
  for (int r = 0; r < size_; ++r) {
    if (hosts_[static_cast<size_t>(r)] == host()) locals.push_back(r);
  }
  board_ = std::make_unique<OpBoard>(*make_messages(group_of(locals, Axis::world), {}));
}

MpiWorld::~MpiWorld() {
  // While an error unwinds, the others would be waited for.
  if (std::uncaught_exceptions() > 0) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Finalize();
}

int MpiWorld::local_rank() const {
  return static_cast<int>(std::count(hosts_.begin(), hosts_.begin() + rank_, host()));
}

int MpiWorld::n_local_ranks() const {
  return static_cast<int>(std::count(hosts_.begin(), hosts_.end(), host()));
}

std::map<std::string, std::string> MpiWorld::settings() const {
  const std::string prefix = "OMPI_MCA_";
  const auto is_internal = [](const std::string& name) {
    for (const char* start : {"ess", "orte_", "pmix", "shmem_RUNTIME", "initial_wdir"}) {
      if (name.rfind(start, 0) == 0) return true;
    }
    return false;
  };
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const size_t equals = text.find('=');
    if (text.rfind(prefix, 0) != 0 || equals == std::string::npos) continue;
    if (is_internal(text.substr(prefix.size()))) continue;
    found[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return found;
}

std::string MpiWorld::library() const {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data());
  return version.substr(0, version.find(','));
}

void MpiWorld::pretend_hosts(std::vector<std::string> hosts) {
  CHECK(hosts.size() == hosts_.size());
  hosts_ = std::move(hosts);
}

std::vector<std::string> MpiWorld::hosts_of(const std::vector<int>& world_ranks) const {
  std::vector<std::string> hosts;
  hosts.reserve(world_ranks.size());
  for (const int r : world_ranks) hosts.push_back(hosts_[static_cast<size_t>(r)]);
  return hosts;
}

GroupInfo MpiWorld::group_of(const std::vector<int>& world_ranks, Axis axis) const {
  const auto mine = std::find(world_ranks.begin(), world_ranks.end(), rank_);
  CHECK(mine != world_ranks.end());
  GroupInfo group{.axis = axis,
                  .rank = static_cast<int>(mine - world_ranks.begin()),
                  .size = static_cast<int>(world_ranks.size()),
                  .world_ranks = world_ranks,
                  .host = false,
                  .node_of = {}};
  group.node_of.reserve(world_ranks.size());
  for (const std::string& host : hosts_of(world_ranks)) {
    const auto first = std::find(hosts_.begin(), hosts_.end(), host);
    group.node_of.push_back(static_cast<int>(first - hosts_.begin()));
  }
  group.node_of = by_first_appearance(group.node_of);
  return group;
}

MpiWaiting MpiWorld::waiting_with_whereabouts() const {
  MpiWaiting waiting = waiting_;
  waiting.whereabouts = [this](const std::vector<int>& world_ranks) {
    return board_ == nullptr ? "" : board_->whereabouts(world_ranks);
  };
  return waiting;
}

// A wait by MPI must not hold up messages through shared memory.
MpiWaiting MpiWorld::waiting_with_progress() const {
  MpiWaiting waiting = waiting_with_whereabouts();
  waiting.progress = [shared = shared_] { shared->progress.move_messages(); };
  return waiting;
}

std::unique_ptr<Communicator> MpiWorld::make_messages(GroupInfo group,
                                                      const AllReduceSizes& sizes,
                                                      int64_t largest_message,
                                                      const Clock& clock) {
  std::vector<std::string> hosts = hosts_of(group.world_ranks);
  const std::string transport = transport_of(hosts, shared_memory_);
  return std::make_unique<MpiCommunicator>(
      std::move(group),
      MpiCommunicator::Options{
          std::move(hosts), transport, waiting_with_progress(), sizes, largest_message},
      clock);
}

std::unique_ptr<Communicator> MpiWorld::make_group(const std::vector<int>& world_ranks,
                                                   Axis axis,
                                                   const AllReduceSizes& sizes,
                                                   int64_t largest_message,
                                                   const Clock* host_clock) {
  std::unique_ptr<Communicator> group =
      make_bare_group(world_ranks, axis, sizes, largest_message, host_clock);
  group->set_row(&board_->mine());
  if (faults_ != nullptr) group->add_hooks(faults_);
  return group;
}

std::unique_ptr<Communicator> MpiWorld::make_bare_group(const std::vector<int>& world_ranks,
                                                        Axis axis,
                                                        const AllReduceSizes& sizes,
                                                        int64_t largest_message,
                                                        const Clock* host_clock) {
  GroupInfo group = group_of(world_ranks, axis);
  group.host = host_clock != nullptr;
  const int n_hosts = group.n_nodes();
  std::unique_ptr<Communicator> messages =
      make_messages(std::move(group),
                    sizes,
                    largest_message,
                    host_clock == nullptr ? steady_clock() : *host_clock);
  // No two ranks on a host, or the caller wants messages.
  if (n_hosts == messages->size() || host_clock != nullptr ||
      largest_message != mpi_largest_message) {
    return messages;
  }
  if (!shared_memory_ || !shared_memory_use_.enabled) {
    exchange_within_host_ =
        shared_memory_ ? "MPI: as asked" : "MPI: its transports (btl) leave shared memory out";
    return messages;
  }
  return n_hosts == 1 ? share_memory(std::move(messages), sizes)
                      : make_hierarchy(std::move(messages), sizes);
}

ShmCommunicator::Made MpiWorld::make_shared(Communicator& messages, const AllReduceSizes& sizes) {
  return ShmCommunicator::make(messages,
                               shared_,
                               {.hosts = hosts_of(messages.group().world_ranks),
                                .waiting = waiting_with_whereabouts(),
                                .sizes = sizes,
                                .may_fetch = shared_memory_use_.may_fetch});
}

std::unique_ptr<Communicator> MpiWorld::share_memory(std::unique_ptr<Communicator> messages,
                                                     const AllReduceSizes& sizes) {
  ShmCommunicator::Made made = make_shared(*messages, sizes);
  exchange_within_host_ = made.group != nullptr ? "own shared memory" : "MPI: " + made.why_not;
  if (made.group == nullptr) return messages;
  return std::move(made.group);
}

std::unique_ptr<Communicator> MpiWorld::make_hierarchy(std::unique_ptr<Communicator> messages,
                                                       const AllReduceSizes& sizes) {
  const GroupInfo& group = messages->group();
  const auto world_ranks = [&](const std::vector<int>& ranks) {
    std::vector<int> found;
    found.reserve(ranks.size());
    for (const int r : ranks) found.push_back(group.world_ranks[static_cast<size_t>(r)]);
    return found;
  };
  const std::vector<std::vector<int>> by_host = ShmHierarchy::ranks_by_host(group);
  size_t n_parts = by_host.front().size();
  for (const std::vector<int>& ranks : by_host) n_parts = std::min(n_parts, ranks.size());
  const std::vector<int>& locals = by_host[static_cast<size_t>(group.node(group.rank))];

  std::unique_ptr<ShmCommunicator> local;
  std::string why_not;
  if (locals.size() > 1) {
    const auto by_messages = make_messages(group_of(world_ranks(locals), group.axis), sizes);
    ShmCommunicator::Made made = make_shared(*by_messages, sizes);
    local = std::move(made.group);
    why_not = std::move(made.why_not);
  }
  why_not = agreed_reason(*messages, why_not);
  exchange_within_host_ = why_not.empty() ? "own shared memory" : "MPI: " + why_not;
  if (!why_not.empty()) return messages;

  const auto mine =
      static_cast<size_t>(std::find(locals.begin(), locals.end(), group.rank) - locals.begin());
  std::unique_ptr<Communicator> across;
  if (mine < n_parts) {
    std::vector<int> ranks;
    ranks.reserve(by_host.size());
    for (const std::vector<int>& host : by_host) ranks.push_back(host[mine]);
    across = make_messages(group_of(world_ranks(ranks), group.axis), sizes);
  }
  const GroupInfo info = group;
  return std::make_unique<ShmHierarchy>(ShmHierarchy::Parts{.messages = std::move(messages),
                                                            .local = std::move(local),
                                                            .across = std::move(across),
                                                            .n_parts = static_cast<int>(n_parts),
                                                            .across_sizes = sizes},
                                        info);
}

std::unique_ptr<ControlChannel> MpiWorld::make_control() {
  return std::make_unique<MpiControl>(hosts_, waiting_with_progress());
}

void MpiWorld::abort(int exit_code) {
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

std::string transport_of(const std::vector<std::string>& hosts, bool shared_memory) {
  if (hosts.size() == 1) return "none";
  const std::set<std::string> distinct(hosts.begin(), hosts.end());
  if (!shared_memory || distinct.size() == hosts.size()) return "tcp";
  return distinct.size() == 1 ? "shm" : "mixed";
}

bool allows_shared_memory(const std::string& btl) {
  if (btl.empty()) return true;
  const bool excludes = btl.front() == '^';
  std::stringstream names(excludes ? btl.substr(1) : btl);
  bool named = false;
  for (std::string name; std::getline(names, name, ',');) named |= name == "vader" || name == "sm";
  return named != excludes;
}

std::optional<std::string> singleton_under_launcher(int world_size) {
  if (world_size > 1) return std::nullopt;
  // mpirun was asked for one, in whatever allocation; without it the variable is not there.
  if (integer_in_environment("OMPI_COMM_WORLD_SIZE") == 1) return std::nullopt;
  for (const char* name : {"SLURM_NTASKS", "PMI_SIZE", "PMIX_SIZE", "OMPI_COMM_WORLD_SIZE"}) {
    const int n = integer_in_environment(name);
    if (n > 1) {
      return std::string("started as a single process while ") + name + "=" + std::to_string(n) +
             ": the launcher and this MPI do not know each other (under Slurm: srun --mpi=pmix)";
    }
  }
  return std::nullopt;
}

std::optional<std::string> task_without_pmi() {
  if (std::getenv("SLURM_STEP_ID") == nullptr) return std::nullopt;
  // mpirun within a step starts processes of its own.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (std::getenv(name) != nullptr) return std::nullopt;
  }
  return "a task of srun that offers no PMI: MPI cannot start (srun --mpi=pmix)";
}

}  // namespace testbed
