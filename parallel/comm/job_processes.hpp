// The processes of this MPI job on this host, as /proc shows them: for when MPI cannot be asked.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace testbed {

// "stopped", "dead", "" (at work or asleep) or "gone".
std::string process_state(pid_t pid);

// "rank 2" as the launcher numbers it, before MPI can say; "" if nobody does.
std::string name_by_launcher();

// What a launcher that numbers its processes (Open MPI, PMIx, Slurm) has started here and is not at
// work, by rank: "rank 2 (pid 4711) is stopped". "" if all are, or nobody numbers them.
std::string idle_processes_of_job();

}  // namespace testbed
