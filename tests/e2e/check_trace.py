"""Strict reader of a Chrome trace (--trace): python3 check_trace.py trace.json [...]. Strict JSON, complete events with
durations >= 0, no two of which overlap on a track. Exit code 1 says what is wrong."""
import collections
import sys

from check_record import NUM, STR, INT, Wrong, check_type, main

COMPLETE = {"name": STR, "cat": STR, "ph": STR, "pid": INT, "tid": INT, "ts": NUM, "dur": NUM, "args": {}}
TOLERANCE_US = 1e-6  # stamps are multiples of 1e-3 us, added as doubles


def check(trace):
    tracks = collections.defaultdict(list)
    names = set()
    check_type(trace, {"traceEvents": [{"name": STR, "ph": STR, "pid": INT, "tid": INT}]}, "trace")
    for i, event in enumerate(trace["traceEvents"]):
        where = f"traceEvents[{i}]"
        if event["ph"] == "M":
            check_type(event, {"args": {"name": STR}}, where)
            names.add((event["pid"], event["tid"]))
            continue
        if event["ph"] != "X":
            raise Wrong(f"{where} is of kind {event['ph']}")
        check_type(event, COMPLETE, where)
        if event["dur"] < 0 or event["ts"] < 0:
            raise Wrong(f"{where}: ts {event['ts']}, dur {event['dur']}")
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    if not tracks:
        raise Wrong("no events")
    for track, events in tracks.items():
        if track not in names:
            raise Wrong(f"track {track} has no name")
        events.sort()
        for before, after in zip(events, events[1:]):
            if after[0] < before[1] - TOLERANCE_US:
                raise Wrong(f"track {track}: {after} overlaps {before}")


if __name__ == "__main__":
    sys.exit(main(check, sys.argv[1:]))
