"""Write docs/performance.md and its chart from benchmarks/results/losses_cuda.json.

python benchmarks/performance_page.py
"""

import json
from typing import Any

import common
from common import number, table
from gpu_targets import Results, Row, duration, step_share, targets
from loss_peers import DIM, MANY_SIZES, METHOD
from performance_chart import chart

RESULTS = common.results_file("losses_cuda")
#: The assumed network between GPUs, in bytes a second for each: 400 Gbit/s.
NETWORK = 50e9
TYPES = ("float32", "bfloat16")


def times(a: float, b: float) -> str:
    return f"{number(a / b)}×"


def cells(row: Row, results: Results) -> list[str]:
    """Return our figures, their ratio to the matrix products, and the peer's."""
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


#: The titles of `cells`, and those that do not speak of the peer or of queued steps.
FIGURES = ("ms", "queued", "÷ products", "PML, ms", "PML ÷ ours", "MiB", "PML, MiB")
OURS_ALONE = ("ms", "÷ products", "MiB")


def by_size(results: Results) -> str:
    return table(["N", *FIGURES], [[f"{row['size']:,}", *cells(row, results)] for row in results.method()])


def by_loss(results: Results, size: int, dtype: str, figures: tuple[str, ...] = FIGURES) -> str:
    rows = []
    for row in results.losses(size, dtype):
        beside = row.get("beside", "–") if figures == FIGURES else "–"
        found = dict(zip(FIGURES, cells(row, results), strict=True))
        first = number(row["ours"]["first_s"]) if "ours" in row else "–"
        rows.append([row["loss"] + (f" ({beside})" if beside != "–" else ""), *(found[key] for key in figures), first])
    floor = results.floors.get((size, dtype)) if figures == FIGURES else None
    known = f"The matrix products take {number(floor['ms'])} ms.\n\n" if floor else ""
    return f"### N = {size:,}, {dtype} vectors\n\n{known}{table(['loss', *figures, 'first call, s'], rows)}"


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
            ["the same with a sum in place of the loss", f"{ms['without']:.2f} ms"],
            ["the loss alone at this size", f"{results.of(METHOD, 180, 'float32')['ours']['ms']:.3f} ms"],
            ["share of the loss", f"{share:.1%}"],
        ],
    )


def first_calls(results: Results) -> str:
    row = next((row for row in results.rows if "first_calls" in row), None)
    if row is None:
        return "Not measured."
    calls = row["first_calls"]["calls"]
    later = sorted(call["first_s"] for call in calls[1:])
    slow = [f"{call['size']:,} ({call['first_s']:.1f} s)" for call in calls[1:] if call["first_s"] > 1]
    met = f"{len(calls)} of {len(MANY_SIZES)}" if len(calls) < len(MANY_SIZES) else str(len(calls))
    ended = f"; the next {row['cut_short']}" if "cut_short" in row else ""
    return table(
        ["figure", "value"],
        [
            ["sizes, one after another", f"{met}, from {calls[0]['size']:,} to {calls[-1]['size']:,}{ended}"],
            ["first call", f"{calls[0]['first_s']:.2f} s"],
            ["first calls at the other sizes, median", f"{later[len(later) // 2]:.2f} s" if later else "–"],
            ["other sizes with a first call of over a second", ", ".join(slow) or "none"],
            ["graphs that torch compiled", str(calls[-1]["graphs"])],
            ["times that torch reached its limit of recompilations", str(calls[-1]["refused"])],
        ],
    )


def ranks(results: Results) -> str:
    """Estimate the cost of several GPUs from shapes: 1,024 bfloat16 vectors on each."""
    known = results.floors.get((65_536, "bfloat16"))
    if not known:
        return "The matrix products were not measured."
    each, item = 1024, 2
    rows = []
    for world in (1, 8, 64, 256, 1024):
        n = each * world
        gathered = (world - 1) * each * (DIM * item + 8)
        reduced = (world - 1) * each * DIM * item
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
        f"Matrix products at {known['tflops']:,.0f} TFLOP/s, as measured at N = 65,536; "
        f"a network of {size(NETWORK)}/s for each GPU:\n\n{table(head, rows)}"
    )


def size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def heading(results: Results) -> str:
    """Return the machine and versions; and the times, if the phases are from different runs."""
    *_, last = results.runs.values()
    text = f"{made_with(last)}; d = {DIM}. The run took {last['seconds']:,.0f} s."
    if len({run["began"] for run in results.runs.values()}) > 1:
        small = results.runs["small"]
        other = "" if made_with(small) == made_with(last) else f" ({made_with(small)})"
        text += f" Small batches (N ≤ 512) are from another run{other}, which ended at {small['ended']}; "
        text += f"the run of all others ended at {last['ended']}."
    return text


def made_with(run: Row) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in run["versions"].items())
    return f"One {run['machine']}; {versions}"


def sections(data: dict[str, Any]) -> dict[str, str]:
    """Return the generated parts of the page by the names of their markers."""
    results = Results(data)
    return {
        "performance machine": heading(results),
        "performance targets": targets(data),
        "performance sizes": by_size(results),
        "performance losses": "\n\n".join(
            [
                by_loss(results, 180, "float32"),
                by_loss(results, 4096, "bfloat16"),
                by_loss(results, 65_536, "bfloat16", OURS_ALONE),
            ]
        ),
        "performance accuracy": accuracy(results),
        "performance training": training_text(results),
        "performance first calls": first_calls(results),
        "performance ranks": ranks(results),
    }


def write(data: dict[str, Any]) -> None:
    """Write the generated parts of the page, and the chart."""
    for key, text in sections(data).items():
        common.write_between("performance.md", key, text)
    chart(data)


def line(row: Row) -> str:
    """Return a row in a few words, for the log."""
    what = ", ".join(str(row[key]) for key in ("loss", "size", "dtype") if key in row)
    if "ours" in row:
        ours, peer = row["ours"], row.get("peer")
        text = f"{number(ours['ms'])} ms, {number(ours['mib'])} MiB, first {ours['first_s']:.1f} s"
        text += f"; SYNCHRONISES: {ours['wait']}" if ours.get("wait") else ""
        theirs = f"{number(peer['ms'])} ms, {number(peer['mib'])} MiB" if peer else row.get("left_out") or "–"
        return f"{what}: {text} | {theirs}"
    rest = {k: v for k, v in row.items() if k not in ("loss", "size", "dtype", "beside")}
    return f"{what}: {json.dumps(rest)[:300]}"


def beside_stored(data: dict[str, Any], stored: dict[str, Any]) -> str:
    """Return a table of the times of a run and of the stored ones, in milliseconds."""
    before = Results(stored)
    rows = []
    for row in Results(data).rows:
        if "ours" in row:
            old = before.of(row["loss"], row["size"], row["dtype"]).get("ours", {})
            pairs = [(row["ours"].get(key), old.get(key)) for key in ("ms", "row_ms")]
            cells = [number(value) if value else "–" for pair in pairs for value in pair]
            ratio = times(row["ours"]["ms"], old["ms"]) if old else "–"
            rows.append([row["loss"], f"{row['size']:,}", row["dtype"], *cells, ratio])
    return table(["loss", "N", "type", "ms", "stored", "queued, ms", "stored", "ms ÷ stored"], rows)


def main() -> None:
    write(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
