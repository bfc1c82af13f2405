"""All-reduce between ranks of this host for docs/performance.md, from bench_all_reduce: beside MPI_Allreduce in both of
its settings, and what it adds to steps of 500 us of work when ranks exceed the cores."""
import statistics

import all_reduce
from ratio_page import Row, Section

SETTINGS = {all_reduce.MPI_DEFAULT: "MPI default", "none": "MPI single-copy off"}
SMALL = 8 << 10
LARGE = (1 << 20, 64 << 20)
UNSTEADY = 2  # times by which a launch differs from the others


def result(setup, ranks, *options, environment=None):
    rounds = "9" if setup.quick else "31"
    return all_reduce.run(setup.all_reduce, ranks, [*options, "--rounds", rounds], environment or {})


def size_name(n_bytes):
    return f"{n_bytes >> 20} MiB" if n_bytes >= 1 << 20 else f"{n_bytes >> 10} KiB"


def all_reduce_row(name, launches, first, last, floor, aim):
    """Held by the worst of the sizes from first to last; a size's figures are the launches'."""
    sizes = {}
    for launch in launches:
        for row in launch["sizes"]:
            if first <= row["bytes"] <= last:
                sizes.setdefault(row["bytes"], []).append(row)

    def case(n_bytes, rows):
        us = [statistics.median(row[side] for row in rows) for side in ("ours_us", "mpi_us")]
        memory = " or ".join(sorted({row["mpi_memory"] for row in rows}))
        return f"{size_name(n_bytes)} ({us[0]:.1f} to {us[1]:.1f} us, {memory})"

    return Row.of_worst(name, {case(*size): [row["ratio"] for row in size[1]] for size in sizes.items()}, floor, aim,
                        fault="" if sizes else "bench_all_reduce gave no such size")


def unsteady(launches):
    """Sentences on launches whose times of ours are not those of the others: {MPI's setting: launches}."""
    ours = [(f"launch {number + 1} beside {SETTINGS[setting]}",
             {row["bytes"]: row["ours_us"] for row in launch["sizes"]})
            for setting, found in launches.items() for number, launch in enumerate(found)]
    for name, times in ours:
        for n_bytes, us in times.items():
            others = [other[n_bytes] for whose, other in ours if whose != name and n_bytes in other]
            if not others or n_bytes != SMALL and not LARGE[0] <= n_bytes <= LARGE[1]:
                continue
            usual = statistics.median(others)
            if max(us, usual) > UNSTEADY * min(us, usual):
                yield f"{name}: ours {us:.1f} us at {size_name(n_bytes)}, {usual:.1f} us in the others"


def settings_of(launches):
    """Of launches of each number of ranks, the cores that they had and how MPI waited, each once."""
    found = {f"{launch['ranks']} ranks on cores {' | '.join(launch['binding'])}, "
             f"mpi_yield_when_idle {launch['mpi_yield_when_idle']}": None for launch in launches}
    return "; ".join(found)


def collective_section(setup):
    launches = {setting: [] for setting in SETTINGS}
    for _ in range(2 if setup.quick else 3):
        for setting, found in launches.items():
            found.append(result(setup, 2, environment={all_reduce.SINGLE_COPY: setting}))
    rows = []
    for setting, (floor, aim) in zip(SETTINGS, ((3, 5), (1.5, 2))):
        rows.append(all_reduce_row(f"all-reduce 8 KiB, 2 ranks, to {SETTINGS[setting]}", launches[setting], SMALL, SMALL,
                                   floor, aim))
    for setting, name in SETTINGS.items():
        rows.append(all_reduce_row(f"all-reduce 1 – 64 MiB, 2 ranks, to {name}", launches[setting], *LARGE, 2, 3))
    every = [launch for found in launches.values() for launch in found]
    for ranks in (4, 8):
        steps = [result(setup, ranks, "--steps") for _ in range(2 if setup.quick else 3)]
        rows.append(Row(f"step overhead, {ranks} ranks on {steps[0]['cores']} cores, {steps[0]['work_us']:.0f} us of work",
                        [step["overhead"] for step in steps], 0.10, 0.03, at_most=True, percent=True,
                        note=f"MPI_Allreduce's {statistics.median(s['mpi_overhead'] for s in steps):.1%}; to processor "
                             f"time {statistics.median(s['overhead_to_cpu_time'] for s in steps):.1%}"))
        every += steps
    text = ("A figure is a launch's median of rounds that alternate within it, each timing after an untimed call of the "
            "same side so that it finds its own caches; launches with the two settings of MPI "
            "alternate. A row of several sizes is held by the worst one. MPI_Allreduce runs on the tensors that our "
            "ranks share and on private ones: the peer at each size and launch is the faster of the two, which is "
            "named. Default is single copy through the kernel (CMA), off is "
            "`btl_vader_single_copy_mechanism=none`. Overhead: steps with an all-reduce of 8 KiB over the same work "
            f"without. In force: {settings_of(every)}.")
    odd = list(unsteady(launches))
    if odd:
        text += f"\n\nUnsteady, by more than {UNSTEADY} x: " + "; ".join(odd) + "."
    return Section("Ranks of one host", rows, text)
