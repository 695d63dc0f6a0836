"""The targets of the losses on a GPU, and whether a run meets them."""

from collections.abc import Callable
from typing import Any

from common import number, table
from loss_peers import METHOD, SAMPLED

#: Losses with more than one term for each pair, which are allowed more time.
HEAVY = ("triplet, all", "lifted structure")
Row = dict[str, Any]
#: Small batches are measured in one process, all others in one process for each loss.
PHASES = ("small", "large")


class Results:
    """The rows of all phases."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.runs = {phase: data[phase] for phase in PHASES if phase in data}
        self.rows = [row for run in self.runs.values() for row in run["rows"]]
        self.floors = {(f["size"], f["dtype"]): f for row in self.rows for f in row.get("floor", ())}

    def losses(self, size: int, dtype: str) -> list[Row]:
        """Return the rows of all losses at one size and type."""
        return [r for r in self.rows if (r.get("size"), r.get("dtype")) == (size, dtype)]

    def of(self, loss: str, size: int, dtype: str) -> Row:
        """Return the row of one loss at one size and type, or {}."""
        return next((r for r in self.losses(size, dtype) if r["loss"] == loss), {})

    def method(self, dtype: str = "bfloat16") -> list[Row]:
        """Return the rows of RAW with valid triplets, by size."""
        rows = [r for r in self.rows if r.get("loss") == METHOD and r.get("dtype") == dtype]
        return sorted(rows, key=lambda r: r["size"])

    def single(self, key: str) -> Any:
        """Return an entry that only one row has, or None."""
        return next((row[key] for row in self.rows if key in row), None)

    def accuracies(self) -> list[Row]:
        """Return the rows with errors of gradients."""
        return [row for row in self.rows if "accuracy" in row]

    def floor(self, row: Row) -> float | None:
        """Return the milliseconds of the matrix products at a row's size and type, or None."""
        found = self.floors.get((row["size"], row["dtype"]))
        return found["ms"] if found else None


#: The value that was reached, and whether the target is met.
Reached = tuple[str, str]
YES, NO = "yes", "**no**"


def limited(row: Row, ms: float, gib: float = float("inf")) -> Reached:
    if "ours" not in row:
        return row.get("failed", "not measured"), "–"
    ours = row["ours"]
    queued = f", {duration(ours['row_ms'])} queued" if "row_ms" in ours else ""
    met = within(ours, ms) if ours["mib"] <= 1024 * gib else NO
    return f"{duration(ours['ms'])}{queued}; {number(ours['mib'] / 1024)} GiB", met


def within(ours: Row, ms: float) -> str:
    """Return whether a step meets a time: waited for, or at least queued."""
    if ours["ms"] <= ms:
        return YES
    return "queued" if "row_ms" in ours and ours["row_ms"] <= ms else NO


def every(rows: list[Row], limit: Callable[[Row], float], figure: str, unit: str) -> Reached:
    """Count the losses that keep a limit, and name the one that is nearest to it or beyond."""
    if not rows:
        return "not measured", "–"
    measured = sorted((r for r in rows if figure in r.get("ours", ())), key=lambda r: r["ours"][figure] / limit(r))
    good = [r for r in measured if r["ours"][figure] <= limit(r)]
    missing = [r["loss"] for r in rows if figure not in r.get("ours", ())]
    text = f"{len(good)} of {len(rows)}"
    if measured:
        last = measured[-1]
        text += f", at most {number(last['ours'][figure])} {unit} ({last['loss']})"
    if missing:
        text += f"; failed: {', '.join(missing)}"
    return text, YES if len(good) == len(rows) else NO


def every_time(rows: list[Row], limit: Callable[[Row], float]) -> Reached:
    """Do the same for times, of steps that are waited for and of queued steps."""
    (waited, met), (queued, met_queued) = (every(rows, limit, figure, "ms") for figure in ("ms", "row_ms"))
    if not rows:
        return waited, met
    return f"{waited}. Queued: {queued}", met if met == YES or met_queued == NO else "queued"


def small(results: Results) -> Reached:
    rows = results.losses(180, "float32")
    text, met = every_time(rows, lambda r: 0.4)
    waiting = [r["loss"] for r in rows if r.get("ours", {}).get("wait")]
    text += f". Synchronise with the GPU: {', '.join(waiting) or 'none'}"
    host = results.single("host")
    if host:
        text += f". (A minimal autograd step takes {number(host['ms'])} ms, {number(host['row_ms'])} queued"
        text += f"; {spread(host['core_ms'])} ms over all cores" if "core_ms" in host else ""
        text += f"; {number(host['free_ms'])} ms if it is not pinned to a core)"
    return text, NO if waiting else met


def spread(figures: list[float]) -> str:
    return f"{number(min(figures))} to {number(max(figures))}"


def large(results: Results) -> Reached:
    return every(results.losses(65_536, "bfloat16"), lambda r: 4096, "mib", "MiB")


def error(dtype: str, limit: float) -> Callable[[Results], Reached]:
    def reached(results: Results) -> Reached:
        found = {
            r["loss"]: r["accuracy"][dtype]["error"]
            for r in results.accuracies()
            if "other_picks" not in r["accuracy"][dtype]
        }
        if not found:
            return "not measured", "–"
        worst = max(found, key=found.__getitem__)
        return f"{found[worst]:.1e} at most ({worst})", YES if found[worst] <= limit else NO

    return reached


def step_share(results: Results) -> float | None:
    """Return the loss's share of a training step: what it adds to the step or takes alone, whichever is more."""
    step, alone = results.single("training_step"), results.of(METHOD, 180, "float32")
    if not step or "ours" not in alone:
        return None
    whole = step["ms"]["with_loss"]
    return max(whole - step["ms"]["without"], alone["ours"]["ms"]) / whole


def training(results: Results) -> Reached:
    share = step_share(results)
    return ("not measured", "–") if share is None else (f"{share:.1%}", YES if share < 0.02 else NO)


TARGETS: list[tuple[str, str, Callable[[Results], Reached]]] = [
    ("N = 180, every loss, float32", "0.4 ms, no synchronisation", small),
    (
        "N = 4,096, every loss, bfloat16",
        "1 ms; all triplets and lifted structure 3 ms",
        lambda r: every_time(r.losses(4096, "bfloat16"), lambda row: 3 if row["loss"] in HEAVY else 1),
    ),
    (
        "N = 16,384, RAW with valid triplets, bfloat16",
        "2 ms, 0.8 GiB",
        lambda r: limited(r.of(METHOD, 16_384, "bfloat16"), 2, 0.8),
    ),
    (
        "N = 65,536, RAW with valid triplets, bfloat16",
        "32 ms, 3 GiB",
        lambda r: limited(r.of(METHOD, 65_536, "bfloat16"), 32, 3),
    ),
    ("N = 65,536, every loss, bfloat16", "4 GiB", large),
    (
        "N = 1,048,576, RAW with valid triplets, bfloat16",
        "10 s, 8 GiB",
        lambda r: limited(r.of(METHOD, 1 << 20, "bfloat16"), 10_000, 8),
    ),
    (
        "N = 16,384, margin with distance-weighted sampling, bfloat16",
        "10 ms",
        lambda r: limited(r.of(SAMPLED, 16_384, "bfloat16"), 10),
    ),
    ("error of the gradient, float32 vectors", "1e-4", error("float32", 1e-4)),
    ("error of the gradient, bfloat16 vectors", "5e-3", error("bfloat16", 5e-3)),
    ("share of the loss in a training step of ResNet-50, 180 images", "2 %", training),
]


def duration(ms: float) -> str:
    return f"{number(ms / 1000)} s" if ms >= 1000 else f"{number(ms)} ms"


def targets(data: dict[str, Any]) -> str:
    """Return a table of the targets and the values reached."""
    results = Results(data)
    rows = [(what, limit, *reached(results)) for what, limit, reached in TARGETS]
    return table(["figure", "target, at most", "reached", "met"], rows)
