"""All-reduce between ranks of this host for docs/performance.md, from bench_all_reduce: beside MPI_Allreduce in both of
its settings, and what it adds to steps of 500 us of work when ranks exceed the cores."""
import statistics

import all_reduce
from ratio_page import Row, Section

SETTINGS = {all_reduce.MPI_DEFAULT: "MPI default", "none": "MPI single-copy off"}
SMALL = 8 << 10
LARGE = (1 << 20, 64 << 20)


def result(setup, ranks, *options, environment=None):
    rounds = "9" if setup.quick else "31"
    return all_reduce.run(setup.all_reduce, ranks, [*options, "--rounds", rounds], environment or {})


def all_reduce_row(name, launches, first, last, floor, aim):
    """All sizes from first to last, of all launches, together."""
    sizes = {}
    for launch in launches:
        for row in launch["sizes"]:
            if first <= row["bytes"] <= last:
                sizes.setdefault(row["bytes"], []).append(row)
    ratios = [row["ratio"] for rows in sizes.values() for row in rows]

    def of_size(n_bytes, rows):
        us = [statistics.median(row[side] for row in rows) for side in ("ours_us", "mpi_us")]
        return f"{n_bytes >> 10} KiB {us[0]:.1f} to {us[1]:.1f} us"

    return Row(name, ratios, floor, aim, note="; ".join(of_size(*size) for size in sizes.items()),
               fault="" if ratios else "bench_all_reduce gave no such size")


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
    for ranks in (4, 8):
        steps = [result(setup, ranks, "--steps") for _ in range(2 if setup.quick else 3)]
        rows.append(Row(f"step overhead, {ranks} ranks on {steps[0]['cores']} cores, {steps[0]['work_us']:.0f} us of work",
                        [step["overhead"] for step in steps], 0.10, 0.03, at_most=True, percent=True,
                        note=f"MPI_Allreduce's {statistics.median(s['mpi_overhead'] for s in steps):.1%}; to processor "
                             f"time {statistics.median(s['overhead_to_cpu_time'] for s in steps):.1%}"))
    return Section("Ranks of one host", rows,
                   "A figure is a launch's median of rounds that alternate within it; launches with the two settings of MPI "
                   "alternate. Default is single copy through the kernel (CMA), off is "
                   "`btl_vader_single_copy_mechanism=none`. Overhead: steps with an all-reduce of 8 KiB over the same work "
                   "without.")
