"""Rows of docs/performance.md: ratios of alternating runs, held against a floor and an aim, written as Markdown."""
import statistics


def quartiles(values):
    ordered = sorted(values)
    at = [ordered[round(q * (len(ordered) - 1))] for q in (0.25, 0.75)]
    return at[0], at[1]


class Row:
    """One ratio. With `at_most` the floor is a ceiling. Without figures (None is none), or with a `fault`, it fails."""

    def __init__(self, name, values, floor=None, aim=None, note="", fault="", at_most=False, percent=False):
        self.name, self.values, self.floor, self.aim = name, [v for v in values if v is not None], floor, aim
        self.note, self.at_most, self.percent = note, at_most, percent
        self.fault = fault or ("" if self.values else "no figure")

    @property
    def median(self):
        return statistics.median(self.values) if self.values else None

    def reaches(self, bound):
        return self.median <= bound if self.at_most else self.median >= bound

    def verdict(self):
        if self.floor is None:
            return self.fault
        if self.fault:
            return "FAIL: " + self.fault
        if not self.reaches(self.floor):
            return "BELOW FLOOR" if not self.at_most else "ABOVE CEILING"
        return "aim reached" if self.aim is not None and self.reaches(self.aim) else "floor reached"

    def misses_floor(self):
        return self.floor is not None and (bool(self.fault) or not self.reaches(self.floor))

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
