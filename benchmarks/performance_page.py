"""docs/performance.md and its chart, made from benchmarks/results/losses_cuda.json.

python benchmarks/performance_page.py
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
from common import number
from loss_cases import DIM, MANY_SIZES, METHOD, SAMPLED

RESULTS = common.ROOT / "benchmarks" / "results" / "losses_cuda.json"
CHART = common.ROOT / "docs" / "images" / "performance.svg"
#: Losses of which a query has more than one term for each of its pairs, and so more time.
HEAVY = ("triplet, all", "lifted structure")
#: What a network between GPUs is taken to carry, in bytes a second for each of them: 400 Gbit/s.
NETWORK = 50e9
#: The sizes that the chart names.
NAMED_SIZES = (180, 1024, 4096, 16_384, 65_536, 1 << 20)
TYPES = ("float32", "bfloat16")
Row = dict[str, Any]


class Results:
    """The rows of a run, by what they are of."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data, self.rows = data, data["rows"]
        self.floors = {(f["size"], f["dtype"]): f for row in self.rows for f in row.get("floor", ())}

    def losses(self, size: int, dtype: str) -> list[Row]:
        """Every loss of one size and type, as far as it was measured."""
        return [r for r in self.rows if (r.get("size"), r.get("dtype")) == (size, dtype)]

    def of(self, loss: str, size: int, dtype: str) -> Row:
        """One loss of one size and type; empty where it was not measured."""
        return next((r for r in self.losses(size, dtype) if r["loss"] == loss), {})

    def method(self, dtype: str = "bfloat16") -> list[Row]:
        """RAW with valid triplets at all sizes."""
        rows = [r for r in self.rows if r.get("loss") == METHOD and r.get("dtype") == dtype]
        return sorted(rows, key=lambda r: r["size"])

    def single(self, key: str) -> Any:
        """What only one row has; None where it was not measured."""
        return next((row[key] for row in self.rows if key in row), None)

    def accuracies(self) -> list[Row]:
        """The rows on precision."""
        return [row for row in self.rows if "accuracy" in row]

    def floor(self, row: Row) -> float | None:
        """The milliseconds of the products of a row's batch in its type."""
        found = self.floors.get((row["size"], row["dtype"]))
        return found["ms"] if found else None


# The targets

#: What was reached, in words, and whether that is what was aimed at.
Reached = tuple[str, str]
YES, NO = "yes", "**no**"


def limited(row: Row, ms: float, gib: float = float("inf")) -> Reached:
    if "ours" not in row:
        return row.get("failed", "not measured"), "–"
    ours = row["ours"]
    found = [f"{duration(ours['ms'])} waited for"] if "row_ms" in ours else [duration(ours["ms"])]
    found += [f"{duration(ours['row_ms'])} in a row"] if "row_ms" in ours else []
    met = within(ours, ms) if ours["mib"] <= 1024 * gib else NO
    return f"{', '.join(found)}; {number(ours['mib'] / 1024)} GiB", met


def within(ours: Row, ms: float) -> str:
    """Whether a step keeps a time: waited for, or at least where steps are launched in a row."""
    if ours["ms"] <= ms:
        return YES
    return "in a row" if "row_ms" in ours and ours["row_ms"] <= ms else NO


def every(rows: list[Row], limit: Callable[[Row], float], figure: str, unit: str) -> Reached:
    """How many of some losses keep a limit, and which of them is farthest from it."""
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
    """The same of times, both of steps that are waited for and of steps in a row."""
    (alone, kept), (row, kept_in_row) = (every(rows, limit, figure, "ms") for figure in ("ms", "row_ms"))
    if not rows:
        return alone, kept
    return f"waited for: {alone}. In a row: {row}", kept if kept == YES or kept_in_row == NO else "in a row"


def small(results: Results) -> Reached:
    rows = results.losses(180, "float32")
    text, met = every_time(rows, lambda r: 0.4)
    waiting = [r["loss"] for r in rows if r.get("ours", {}).get("wait")]
    text += f". Waits: {', '.join(waiting) or 'none'}"
    host = results.single("host")
    if host:
        text += f". (The least that autograd takes here: {number(host['ms'])} and {number(host['row_ms'])} ms)"
    return text, NO if waiting else met


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
    """The loss's part of a training step: the larger of what it adds to the step, and of what it takes alone."""
    step, alone = results.single("training_step"), results.of(METHOD, 180, "float32")
    if not step or "ours" not in alone:
        return None
    whole = step["ms"]["with_loss"]
    return max(whole - step["ms"]["without"], alone["ours"]["ms"]) / whole


def training(results: Results) -> Reached:
    share = step_share(results)
    return ("not measured", "–") if share is None else (f"{share:.1%}", YES if share < 0.02 else NO)


TARGETS: list[tuple[str, str, Callable[[Results], Reached]]] = [
    ("N = 180, every loss, float32", "0.4 ms, and no wait for the GPU", small),
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
    ("the loss's part of a training step of ResNet-50, 180 images", "2 %", training),
]


def targets(data: dict[str, Any]) -> str:
    """What was aimed at, beside what was reached."""
    results = Results(data)
    lines = ["| what | at most | reached | met |", "| --- | --- | --- | --- |"]
    for what, limit, function in TARGETS:
        text, met = function(results)
        lines.append(f"| {what} | {limit} | {text} | {met} |")
    return "\n".join(lines)


# The tables


def duration(ms: float) -> str:
    return f"{number(ms / 1000)} s" if ms >= 1000 else f"{number(ms)} ms"


def times(a: float, b: float) -> str:
    return f"{number(a / b)}×"


def cells(row: Row, results: Results) -> list[str]:
    """Ours, beside the floor and beside the peer."""
    if "ours" not in row:
        return [row.get("failed", "not measured"), *["–"] * 6]
    ours, peer, floor = row["ours"], row.get("peer"), results.floor(row)
    found = [number(ours["ms"]), number(ours["row_ms"]) if "row_ms" in ours else "–"]
    found += [times(ours["ms"], floor) if floor else "–"]
    if peer:
        in_type = "" if peer["dtype"] == row["dtype"] else f" ({peer['dtype']})"
        found += [number(peer["ms"]) + in_type, times(peer["ms"], ours["ms"])]
    else:
        found += [row.get("left_out") or "–", "–"]
    return [*found, number(ours["mib"]), number(peer["mib"]) if peer else "–"]


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


def by_size(results: Results) -> str:
    head = ["N", "ms", "in a row", "÷ floor", "PML, ms", "PML ÷ ours", "MiB", "PML, MiB"]
    return table(head, [[f"{row['size']:,}", *cells(row, results)] for row in results.method()])


def by_loss(results: Results, size: int, dtype: str) -> str:
    head = ["loss", "ms", "in a row", "÷ floor", "PML, ms", "PML ÷ ours", "MiB", "PML, MiB", "first call, s"]
    rows = [
        [
            row["loss"] + (f" ({row['beside']})" if row.get("beside", "–") != "–" else ""),
            *cells(row, results),
            number(row["ours"]["first_s"]) if "ours" in row else "–",
        ]
        for row in results.losses(size, dtype)
    ]
    floor = results.floors.get((size, dtype))
    known = f" The floor is {number(floor['ms'])} ms." if floor else ""
    return f"### N = {size:,}, {dtype} vectors\n\n{known.strip()}\n\n{table(head, rows)}"


def by_loss_alone(results: Results, size: int, dtype: str) -> str:
    head = ["loss", "ms", "÷ floor", "MiB", "first call, s"]
    rows = []
    for row in results.losses(size, dtype):
        if "ours" not in row:
            rows.append([row["loss"], row.get("failed", "not measured"), "–", "–", "–"])
            continue
        ours, floor = row["ours"], results.floor(row)
        ratio = times(ours["ms"], floor) if floor else "–"
        rows.append([row["loss"], number(ours["ms"]), ratio, number(ours["mib"]), number(ours["first_s"])])
    return f"### N = {size:,}, {dtype} vectors\n\n{table(head, rows)}"


def accuracy(results: Results) -> str:
    def cell(found: Row, key: str) -> str:
        value = found.get(key, "–")
        return value if isinstance(value, str) else f"{value:.2%}" if key == "other_picks" else f"{value:.1e}"

    head = ["loss", "float32", "bfloat16", "other picks, float32", "other picks, bfloat16"]
    head += ["PML, float32", "PML, bfloat16"]
    smooth_first = sorted(results.accuracies(), key=lambda row: "other_picks" in row["accuracy"]["float32"])
    rows = [
        [row["loss"], *(cell(row["accuracy"][t], k) for k in ("error", "other_picks", "peer") for t in TYPES)]
        for row in smooth_first
    ]
    return table(head, rows)


def training_text(results: Results) -> str:
    step = results.single("training_step")
    share = step_share(results)
    if not step or share is None:
        return "Not measured."
    ms = step["ms"]
    return table(
        ["figure", "value"],
        [
            [f"step of {step['network']} on {step['images']} images of {step['pixels']}²", f"{ms['with_loss']:.2f} ms"],
            ["the same with a plain sum in place of the loss", f"{ms['without']:.2f} ms"],
            ["the loss by itself at this size", f"{results.of(METHOD, 180, 'float32')['ours']['ms']:.3f} ms"],
            ["the loss's part of the step", f"{share:.1%}"],
        ],
    )


def first_calls(results: Results) -> str:
    found = results.single("first_calls")
    if not found:
        return "Not measured."
    calls = found["calls"]
    later = sorted(call["first_s"] for call in calls[1:])
    met = f"{len(calls)} of {len(MANY_SIZES)}" if len(calls) < len(MANY_SIZES) else str(len(calls))
    return table(
        ["figure", "value"],
        [
            ["sizes met one after another", f"{met}, from {calls[0]['size']:,} to {calls[-1]['size']:,}"],
            ["first call of all", f"{calls[0]['first_s']:.2f} s"],
            ["first call at another size: median", f"{later[len(later) // 2]:.2f} s" if later else "–"],
            ["first call at another size: slowest", f"{later[-1]:.2f} s" if later else "–"],
            ["graphs that torch compiled for all of them", str(calls[-1]["graphs"])],
            ["times that it gave up compiling", str(calls[-1]["refused"])],
        ],
    )


def ranks(results: Results) -> str:
    """What several GPUs cost, from shapes: 1,024 vectors of two bytes a number on each."""
    known = results.floors.get((65_536, "bfloat16"))
    if not known:
        return "The rate of products was not measured."
    each, item = 1024, 2
    rows = []
    for world in (1, 8, 64, 256, 1024):
        n = each * world
        gathered = (world - 1) * each * (DIM * item + 8)
        reduced = 2 * (world - 1) / world * n * DIM * item
        work = 6 * each * n * DIM
        rows.append(
            [
                f"{world:,}",
                f"{n:,}",
                size(gathered),
                size(reduced),
                number(work / 1e12),
                duration(work / known["tflops"] / 1e9),
                duration((gathered + reduced) / NETWORK * 1000),
                size(n * DIM * (2 * item + 8)),
            ]
        )
    head = ["GPUs", "N", "gathered", "reduced", "TFLOP", "products", "network", "vectors and gradients"]
    return (
        f"Products at the {known['tflops']:,.0f} TFLOP/s of the floor at N = 65,536, "
        f"a network of {size(NETWORK)}/s a GPU:\n\n{table(head, rows)}"
    )


def size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def heading(results: Results) -> str:
    data = results.data
    made = ", ".join(f"{package} {version}" for package, version in data["versions"].items())
    return f"One {data['machine']}; {made}; d = {DIM}. The last figure came after {data['seconds']:,.0f} s."


def sections(data: dict[str, Any]) -> dict[str, str]:
    """The parts of the page that are made from a run, by the markers that they stand between."""
    results = Results(data)
    return {
        "performance machine": heading(results),
        "performance targets": targets(data),
        "performance sizes": by_size(results),
        "performance losses": "\n\n".join(
            [
                by_loss(results, 180, "float32"),
                by_loss(results, 4096, "bfloat16"),
                by_loss_alone(results, 65_536, "bfloat16"),
            ]
        ),
        "performance accuracy": accuracy(results),
        "performance training": training_text(results),
        "performance first calls": first_calls(results),
        "performance ranks": ranks(results),
    }


# The chart


def digest(data: dict[str, Any]) -> str:
    """Names a run, so that a chart can tell whose it is."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def chart(data: dict[str, Any], path: Path = CHART) -> None:
    """Time and memory against N, both on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    results = Results(data)
    rows = [row for row in results.method() if "ours" in row]
    beside = [row for row in rows if "peer" in row]
    plt.rcParams.update({"svg.hashsalt": "tuplet", "font.size": 9, "axes.titlesize": 10})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    blue, red, grey = "#1f5fa8", "#c0392b", "#777777"
    floors = [(row["size"], floor) for row in rows if (floor := results.floor(row))]
    if floors:
        axes[0].plot(*zip(*floors, strict=True), color=grey, linestyle=":", label="the three matrix products alone")
    for axis, unit, scale in ((axes[0], "ms", 1.0), (axes[1], "mib", 1 / 1024)):
        for found, side, colour, label in (
            (rows, "ours", blue, "Tuplet"),
            (beside, "peer", red, "pytorch-metric-learning"),
        ):
            points = [(row["size"], row[side][unit] * scale) for row in found]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3.5, color=colour, label=label)
        axis.set(xscale="log", yscale="log", xlabel="N, vectors in the batch")
        axis.set_xticks([row["size"] for row in rows if row["size"] in NAMED_SIZES], minor=False)
        axis.minorticks_off()
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(visible=True, color="#e5e5e5", linewidth=0.7)
        axis.set_axisbelow(True)
    axes[0].set_title("Milliseconds, forward and backward")
    axes[1].set_title("GiB beyond the vectors, at the peak")
    axes[0].legend(frameon=False, loc="upper left")
    figure.suptitle(f"RAW with valid triplets, bfloat16, d = {DIM}, one {data['machine']}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(
        path, metadata={"Date": None, "Description": digest(data)} if path.suffix == ".svg" else None, dpi=150
    )
    plt.close(figure)


def write(data: dict[str, Any]) -> None:
    """Every part of the page, and the chart."""
    for key, text in sections(data).items():
        common.write_between("performance.md", key, text)
    chart(data)


def line(row: Row) -> str:
    """A row in a few words, for who watches."""
    what = ", ".join(str(row[key]) for key in ("loss", "size", "dtype") if key in row)
    if "ours" in row:
        ours, peer = row["ours"], row.get("peer")
        text = f"{number(ours['ms'])} ms, {number(ours['mib'])} MiB, first {ours['first_s']:.1f} s"
        text += f"; WAITS: {ours['wait']}" if ours.get("wait") else ""
        theirs = f"{number(peer['ms'])} ms, {number(peer['mib'])} MiB" if peer else row.get("left_out") or "–"
        return f"{what}: {text} | {theirs}"
    rest = {k: v for k, v in row.items() if k not in ("loss", "size", "dtype", "beside")}
    return f"{what}: {json.dumps(rest)[:300]}"


def main() -> None:
    write(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
