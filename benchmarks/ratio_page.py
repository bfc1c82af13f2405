"""Rows of docs/performance.md: ratios of alternating runs, held against a floor and an aim, written as Markdown."""
import statistics


def quartiles(values):
    ordered = sorted(values)
    at = [ordered[round(q * (len(ordered) - 1))] for q in (0.25, 0.75)]
    return at[0], at[1]


class Row:
    """One ratio. With `at_most` the floor is a ceiling. Without figures (None is none), or with a `fault`, it fails;
    what this machine cannot have is `not_held`, and why: listed, but no miss."""

    def __init__(self, name, values, floor=None, aim=None, *, note="", fault="", at_most=False, percent=False,
                 not_held=""):
        self.name, self.values, self.floor, self.aim = name, [v for v in values if v is not None], floor, aim
        self.note, self.at_most, self.percent, self.not_held = note, at_most, percent, not_held
        self.fault = fault or ("" if self.values else "no figure")

    @classmethod
    def of_worst(cls, name, cases, *bounds, note="", at_most=False, **options):
        """A row of several cases (sizes, shapes), {case: its figures}: the figures and the verdict are those of the
        case with the worst median; the note has every median."""
        medians = {case: statistics.median(values) for case, values in cases.items() if values}
        if not medians:
            return cls(name, [], *bounds, note=note, at_most=at_most, **options)
        worst = (max if at_most else min)(medians, key=medians.get)
        row = cls(name, cases[worst], *bounds, at_most=at_most, **options)
        every = "; ".join(f"{case} {row.text(median)}" for case, median in medians.items())
        row.note = ". ".join(filter(None, (note, f"worst: {worst}; all: {every}" if len(medians) > 1 else every)))
        return row

    @property
    def median(self):
        return statistics.median(self.values) if self.values else None

    def reaches(self, bound):
        return self.median <= bound if self.at_most else self.median >= bound

    def verdict(self):
        if self.not_held:
            return "not held: " + self.not_held
        if self.floor is None:
            return self.fault
        if self.fault:
            return "FAIL: " + self.fault
        if not self.reaches(self.floor):
            return "BELOW FLOOR" if not self.at_most else "ABOVE CEILING"
        return "aim reached" if self.aim is not None and self.reaches(self.aim) else "floor reached"

    def misses_floor(self):
        return self.is_held() and (bool(self.fault) or not self.reaches(self.floor))

    def is_held(self):
        return self.floor is not None and not self.not_held

    def text(self, value):
        if value is None:
            return ""
        return f"{value:.1%}" if self.percent else f"{value:.3g}" if value >= 10 else f"{value:.2f}"

    def measured(self):
        if not self.values:
            return "", ""
        low, high = quartiles(self.values)
        return self.text(self.median), f"{self.text(low)} – {self.text(high)} of {len(self.values)}"

    def cells(self):
        median, spread = self.measured()
        return [self.name, self.text(self.floor), self.text(self.aim), median, spread, self.verdict(), self.note]


HEADER = ["ratio", "floor", "aim", "median", "quartiles of runs", "verdict", "how"]


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


class Section:
    """A part of the page: its rows, and what stands below them."""

    def __init__(self, title, rows, text=""):
        self.title, self.rows, self.text = title, list(rows), text

    def markdown(self):
        return f"## {self.title}\n\n{table(HEADER, [row.cells() for row in self.rows])}" + (
            f"\n{self.text.rstrip()}\n" if self.text else "")
