"""Draw the chart of docs/performance.md: time and memory of RAW with valid triplets against the batch size."""

import hashlib
import json
from pathlib import Path
from typing import Any

import common
from gpu_targets import Results
from loss_peers import DIM

CHART = common.ROOT / "docs" / "images" / "performance.svg"
#: The sizes on the axis.
NAMED_SIZES = (180, 1024, 4096, 16_384, 65_536, 1 << 20)


def digest(data: dict[str, Any]) -> str:
    """Return a checksum of the figures, which the chart carries."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def chart(data: dict[str, Any], path: Path = CHART) -> None:
    """Draw time and memory against N, on logarithmic axes."""
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
        axes[0].plot(*zip(*floors, strict=True), color=grey, linestyle=":", label="the three matrix products")
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
    machine = " and ".join(dict.fromkeys(run["machine"] for run in results.runs.values()))
    figure.suptitle(f"RAW with valid triplets, bfloat16, d = {DIM}, one {machine}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(
        path, metadata={"Date": None, "Description": digest(data)} if path.suffix == ".svg" else None, dpi=150
    )
    plt.close(figure)
