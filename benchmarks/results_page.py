"""Write docs/results.md and docs/results_details.md from the files in benchmarks/results (`make results`)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

import common
import planned_runs
import protocols
from ablations import ABLATIONS, CAUSES
from hyperparameter_space import SYSTEM_LRS_LIKE
from methods import DATASETS, FAMILIES, METHODS, RECIPE_ROWS, SYSTEMS, TARGETS, row_title
from results_data import Result, Results, choice, mean_recalls, read, rows, spread
from results_findings import causes, findings, item, paragraph, protocol
from runs import RESULTS, Job, Runner
from tuplet.training import published

DOCS = common.ROOT / "docs"
IMAGES = DOCS / "images"
MEASURED = ("cub200", "cars196")
_COLUMNS = {"recall_at_1": "R@1", "recall_at_2": "R@2", "recall_at_4": "R@4", "recall_at_8": "R@8"}
_COLUMNS |= {"map_at_r": "MAP@R", "nmi": "NMI", "f1": "F1"}
#: A difference of Recall@1 that neither chance nor another network explains.
_FAR = 0.05


def render(results: Results, jobs: Iterable[Job] = ()) -> dict[str, str]:
    """Return the pages by the names of their files: findings with one table of all methods, and all details.

    Args:
        results: what was measured.
        jobs: all runs of the protocol; those without a result are listed.
    """
    summary = [findings(MEASURED, results), _summary(results), _commands(results)]
    details = [protocol(results), _remeasured(results)]
    for dataset in MEASURED:
        details += [f"## {DATASETS[dataset].title}\n", _table(dataset, results)]
    details += [
        _reranked(results),
        _transfers(results),
        _frozen(results),
        _chosen(results),
        _ablations(results),
        _causes(results),
        _figures(results),
        _missing(results, jobs),
    ]
    pages = {"results.md": summary, "results_details.md": details}
    return {name: "\n".join(part.rstrip() + "\n" for part in parts if part) for name, parts in pages.items()}


# Tables


def _summary(results: Results) -> str:
    about = """Recall@1 and MAP@R. *Printed* is the highest Recall@1 of the papers' tables, in 512 dimensions unless it
        says so, of their own networks (GoogLeNet or BN-Inception), so it tells where a method stood, not which network
        is better. The best recipes, with any loss and any number of pixels, stand beside the highest numbers that we
        know to be printed for such a network: ProxyNCA++ (72.2, 2,048 dimensions) and AVSL (91.5, a learned similarity)
        for ResNet-50, VPTSP-G (86.6) and HIER (91.3) for ViT-S. Those used other weights and the original images, and
        some chose their checkpoint by test scores.
        [Results in detail](results_details.md) has the protocol, all metrics, the options, and why some rows are below
        their papers."""
    found = []
    for method in (*METHODS, *RECIPE_ROWS):
        runs = {dataset: rows(dataset, method, results) for dataset in MEASURED}
        title = f"**{row_title(method)}**" if method in RECIPE_ROWS else row_title(method)
        if any(runs.values()):
            found.append([title, *(cell for each in runs.items() for cell in _summary_cells(method, *each))])
    # Short names and dimensions without line breaks keep the table narrow.
    short = [DATASETS[dataset].title.partition("-")[0] for dataset in MEASURED]
    head = [f"{title}: {name}" for title in short for name in ("R@1", "printed", "MAP@R")]
    return "\n".join(["## All methods", "", paragraph(about), "", common.table(["method", *head], found)])


def _summary_cells(method: str, dataset: str, runs: Sequence[Result]) -> list[str]:
    """Return Recall@1, the highest printed number, and MAP@R."""
    good = [run["metrics"] for run in runs if "metrics" in run]
    if method in RECIPE_ROWS:
        aim = TARGETS.get(method, {}).get(dataset)
        printed = "" if aim is None else f"{aim:.1f}"
    else:
        best = max(
            published(dataset, method), key=lambda row: (row.dim == 512, row.metrics["recall_at_1"]), default=None
        )
        dim = "" if best is None or best.dim == 512 else f" ({best.dim:,}\N{NON-BREAKING HYPHEN}d)"
        printed = "" if best is None else f"{100 * best.metrics['recall_at_1']:.1f}{dim}"
    if not good:
        return ["diverged" if runs else "–", printed, "–"]
    recall, precision = (spread([metrics[name] for metrics in good]) for name in ("recall_at_1", "map_at_r"))
    return [recall, printed, precision]


def _remeasured(results: Results) -> str:
    """Say how rows that were measured again differ (remeasured.json, by benchmarks/remeasure.py)."""
    if "remeasured" not in results:
        return ""
    again = results["remeasured"]["rows"]
    differences = [100 * (row["new"] - row["old"]) for row in again]
    repeats: dict[tuple[str, str], list[float]] = {}
    for row in again:
        repeats.setdefault((row["dataset"], row["row"]), []).append(100 * row["new"])
    counts = " and ".join(
        f"{sum(each == dataset for each, _ in repeats)} on {DATASETS[dataset].title}"
        for dataset in dict.fromkeys(dataset for dataset, _ in repeats)
    )
    lowest = f"{min(differences):+.1f}".replace("-", "−")
    text = f"""{len(repeats)} rows were measured again with seed 0 ({counts}) after test images came to be resized with
        antialiasing, as `tuplet embed` and `tuplet index` do: in {len(again)} runs Recall@1 moved by
        {fmean(differences):+.2f} points on average, from {lowest} to {max(differences):+.1f}. The tables
        show the first measurement."""
    if apart := [max(values) - min(values) for values in repeats.values() if len(values) > 1]:
        text += f""" Two later runs of one row with the same seed differ by up to {max(apart):.1f} points, more than
            the ± over seeds suggests."""
    return paragraph(text)


def _table(dataset: str, results: Results) -> str:
    found = []
    for method, about in METHODS.items():
        if runs := rows(dataset, method, results):
            found.append(_row(about.title, runs, _printed(dataset, method)))
    for name, title in RECIPE_ROWS.items():
        if best := rows(dataset, name, results):
            found.append(_row(f"**{title}** ({METHODS[best[0]['method']].title})", best, ""))
    head = ["method", "R@1", "printed", *list(_COLUMNS.values())[1:], "flip test R@1", "seeds"]
    return "\n".join([common.table(head, found), *_far_below(dataset, results)])


def _far_below(dataset: str, results: Results) -> list[str]:
    """Name the rows that stay far below every printed number, and the method that chose their options."""
    listed = []
    for method, found in mean_recalls(dataset, results).items():
        lowest = min((row.metrics["recall_at_1"] for row in published(dataset, method)), default=0.0)
        if found < lowest - _FAR and method not in TARGETS:
            chooser = FAMILIES[METHODS[method].family]
            options = "its own options" if chooser == method else f"options of {METHODS[chooser].title}"
            if method in SYSTEMS and (like := SYSTEM_LRS_LIKE.get(dataset)):
                options = f"learning rate after {DATASETS[like].title}"
            listed.append(f"{METHODS[method].title} (by {100 * (lowest - found):.1f}; {options})")
    return ["", f"More than {100 * _FAR:g} points below the papers: {', '.join(listed)}."] if listed else []


def _row(title: str, runs: Sequence[Result], printed: str) -> list[str]:
    good = [run["metrics"] for run in runs if "metrics" in run]
    if not good:
        return [title, "diverged", printed, *["–"] * len(_COLUMNS), str(len(runs))]
    first, *others = [spread([metrics[name] for metrics in good]) for name in _COLUMNS]
    flipped = spread([metrics["flip_test"]["recall_at_1"] for metrics in good])
    return [title, first, printed, *others, flipped, str(len(runs))]


def _printed(dataset: str, method: str) -> str:
    """Return Recall@1 as the papers print it, the highest first; in 512 dimensions unless it says so."""
    by_dim: dict[int, list[float]] = {}
    for row in published(dataset, method):
        by_dim.setdefault(row.dim, []).append(100 * row.metrics["recall_at_1"])
    return "; ".join(
        ("" if dim == 512 else f"{dim}-d: ") + ", ".join(f"{value:.1f}" for value in sorted(values, reverse=True))
        for dim, values in sorted(by_dim.items(), key=lambda pair: (pair[0] != 512, -pair[0]))
    )


# What the search chose, what the papers vary, figures, commands


def _reranked(results: Results) -> str:
    """Return the table of recipes with and without re-ranking, of the same runs."""
    text = """Runs of the recipes whose vectors were also searched with re-ranking by k-reciprocal neighbours
        (`tuplet evaluate --rerank`), with its default options."""
    head = ["dataset", "recipe", "R@1", "re-ranked R@1", "MAP@R", "re-ranked MAP@R", "seeds"]
    lines = []
    for dataset in MEASURED:
        for name, title in RECIPE_ROWS.items():
            found = [run["metrics"] for run in rows(dataset, name, results) if "reranked" in run.get("metrics", {})]
            if found:
                values = [
                    spread([each[key] for each in side])
                    for key in ("recall_at_1", "map_at_r")
                    for side in (found, [metrics["reranked"] for metrics in found])
                ]
                lines.append([DATASETS[dataset].title, title, *values, str(len(found))])
    return "\n".join(["## Re-ranking", "", paragraph(text), "", common.table(head, lines)]) if lines else ""


def _transfers(results: Results) -> str:
    """Return the table of recipes on data that they were not chosen on."""
    text = """The best recipes on data that they were not chosen on, one seed. *Before training* is the network with its
        ImageNet weights, at the same size and without a head; the last column is the recipe that was chosen on the
        dataset itself."""
    head = ["dataset", "recipe", "chosen on", "before training R@1", "R@1", "MAP@R", "own recipe R@1"]
    lines = []
    for run in results.values():
        if run["kind"] == "transfer" and "metrics" in run:
            own = mean_recalls(run["dataset"], results).get(run["recipe"])
            values = [run["metrics"][key] for key in ("recall_at_1", "map_at_r")]
            cells = [run["metrics"]["start"]["recall_at_1"], *values, *([own] if own else [])]
            titles = [DATASETS[run["dataset"]].title, RECIPE_ROWS[run["recipe"]], DATASETS[run["origin"]].title]
            lines.append([*titles, *(f"{100 * cell:.1f}" for cell in cells), *([] if own else ["–"])])
    return "\n".join(["## Recipes on other data", "", paragraph(text), "", common.table(head, lines)]) if lines else ""


def _frozen(results: Results) -> str:
    """Return the table of heads on frozen features (frozen_features.json, by benchmarks/frozen_features.py)."""
    if "frozen_features" not in results:
        return ""
    measured = results["frozen_features"]["rows"]
    devices = " or ".join(dict.fromkeys(row["device"] for row in measured))
    text = f"""One linear layer of 512 outputs on the features of a network that is not trained, at the size of its
        weights. Every step sees the exact loss of all training vectors at once. Loss, learning rate and steps are
        chosen on validation classes over three seeds. The seconds are those of embedding both splits and of training,
        on {devices} beside other work.
        `benchmarks/frozen_features.py` repeats it."""
    head = ["weights", "dataset", "features R@1", "head R@1", "embedding, s", "training, s", "chosen"]
    cells = []
    for row in measured:
        trained = [each["recall_at_1"] for each in row["trained"]]
        seconds = [f"{row['embedding_seconds']:.1f}", f"{row['training_seconds']:.2f}"]
        title, frozen = DATASETS[row["dataset"]].title, f"{100 * row['frozen']:.1f}"
        cells.append([row["weights"], title, frozen, spread(trained), *seconds, _listed(row["recipe"])])
    return "\n".join(["## A head on frozen features", "", paragraph(text), "", common.table(head, cells)])


def _chosen(results: Results) -> str:
    chosen = [choice(dataset, results) or {"complete": False, "shared": {}} for dataset in MEASURED]
    if not any(each["shared"] for each in chosen):
        return ""
    lines = [["all methods", *(_listed(each["shared"]) for each in chosen)]]
    for family in dict.fromkeys(family for each in chosen for family in each.get("per_family", ())):
        cells = (each.get("per_family", {}).get(family) for each in chosen)
        title = f"family of {METHODS[FAMILIES[family]].title}"
        lines.append([title, *("–" if cell is None else _listed(cell) or "as above" for cell in cells)])
    for name, title in RECIPE_ROWS.items():
        best = [results.get(f"{name}_{dataset}", {"shared": {}})["shared"] for dataset in MEASURED]
        if any(best):
            lines.append([title, *(_listed(options) or "–" for options in best)])
    unfinished = [DATASETS[d].title for d, each in zip(MEASURED, chosen, strict=True) if not each["complete"]]
    table = common.table(["", *(DATASETS[dataset].title for dataset in MEASURED)], lines)
    note = f"\n\nThe search is not complete on {', '.join(unfinished)}." if unfinished else ""
    return f"## Chosen options\n\n{table}{note}"


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _measured_ablations(results: Results) -> dict[tuple[str, str, str], Result]:
    """Return the runs of ablations and causes by name, value and dataset."""
    return {(r["ablation"], r["value"], r["dataset"]): r for r in results.values() if r["kind"] == "ablation"}


def _causes(results: Results) -> str:
    """Return what the runs tell about rows below their papers' numbers, and the runs."""
    measured, lines = _measured_ablations(results), []
    for name, about in CAUSES.items():
        for dataset in MEASURED:
            found = {value: measured[key] for value in about.changes if (key := (name, value, dataset)) in measured}
            if found:
                cells = ", ".join(f"{value} {_cells([run])}" for value, run in found.items())
                lines.append([about.title, DATASETS[dataset].title, cells])
    if not lines:
        return ""

    def recall(name: str, value: str, dataset: str | None = None) -> str:
        return _cells([measured.get((name, value, dataset or CAUSES[name].datasets[0]))])

    text = causes(recall)
    return "\n".join([text, common.table(["question", "dataset", "R@1 of the runs"], lines)])


def _ablations(results: Results) -> str:
    titles = [DATASETS[dataset].title for dataset in MEASURED]
    head = ["option", "value", *(f"R@1, {title}" for title in titles), "R@1 in the paper", "source"]
    measured, lines = _measured_ablations(results), []
    for name, about in ABLATIONS.items():
        values = [value for value in about.changes if any((name, value, dataset) in measured for dataset in MEASURED)]
        if values:
            cells = [_cells(measured.get((name, value, dataset)) for value in values) for dataset in MEASURED]
            printed = " / ".join(f"{about.printed[value]:.1f}" for value in values) if about.printed else "–"
            lines.append([about.title, " / ".join(values), *cells, printed, about.source])
    opening = ["## Options that the papers vary", "", "One seed, half the steps of the tables above.", ""]
    return "\n".join([*opening, common.table(head, lines)]) if measured else ""


def _cells(runs: Iterable[Result | None]) -> str:
    return " / ".join(
        "–" if run is None else f"{100 * run['metrics']['recall_at_1']:.1f}" if "metrics" in run else "diverged"
        for run in runs
    )


def _figures(results: Results) -> str:
    lines = _figure("weights.png", "The weight that losses give a pair, by its similarity")
    lines += _figure("rank_transfer.png", "The transfer function of NRA, its loss, and Recall@1 by α")
    for dataset in MEASURED:
        title = DATASETS[dataset].title
        lines += _figure(f"nearest_{dataset}.jpg", f"The five nearest images of some queries, {title}")
        lines += _figure(f"tsne_{dataset}.jpg", f"Test images of {title} where t-SNE puts their vectors")
    lines += _figure("curves.png", "The 60-pair loss and the 60-way accuracy of three losses, Omniglot")
    lines += _figure("maps.png", "Fashion-MNIST in two dimensions")
    maps = ", ".join(
        f"{METHODS[r['method']].title} {100 * r['metrics']['mean_average_precision']:.1f}"
        for r in results.values()
        if r["kind"] == "map"
    )
    about = f"""The weights are those of one query with 75 positives and 75 negatives at the same similarities, after
        figure 1 of the unified view 2019; each curve is a share of its own maximum. The curves of α are drawn after
        figure 3 of NRA 2019, and the nearest images of some queries (a green frame is the query's class) after figure 5
        of Angular 2017. The t-SNE after its figure 6 is that of the best recipe with ResNet-50, from the first 50
        principal components; of the images that fall into a cell of the grid, the one nearest to its centre is drawn.
        The learning curves after figure 3 of N-pair 2016 are those of a convnet on training classes of Omniglot: all
        three networks are measured by the same loss and accuracy, whatever loss trains them. The maps of Fashion-MNIST
        are drawn after figure 4 of NRA 2019. mAP of the maps' test examples: {maps}. The maps have one seed and one
        learning rate, which was not searched; on MNIST the paper has NRA highest."""
    return "\n".join(["## Figures", "", paragraph(about), "", *lines]) if lines else ""


def _figure(name: str, about: str) -> list[str]:
    """Return a figure if it was drawn (benchmarks/figures.py)."""
    path = IMAGES / f"results_{name}"
    return [f"![{about}](images/{path.name})", ""] if path.is_file() else []


def _missing(results: Results, jobs: Iterable[Job]) -> str:
    lacking: dict[str, Counter[str]] = {}
    for job in jobs:
        if job.name not in results:
            lacking.setdefault(job.dataset, Counter())[_job_title(job)] += 1
    lines = [
        f"{DATASETS[dataset].title}: " + "; ".join(f"{title} ({n})" for title, n in counts.items())
        for dataset, counts in lacking.items()
    ]
    return "\n".join(["## Runs that are missing", "", *map(item, lines)]) if lines else ""


def _job_title(job: Job) -> str:
    if job.kind == "ablation":
        return (ABLATIONS | CAUSES)[job.facts["ablation"]].title
    if job.kind == "transfer":
        return f"{RECIPE_ROWS[job.facts['recipe']]}, as chosen on {DATASETS[job.facts['origin']].title}"
    return row_title(job.kind if job.kind in RECIPE_ROWS else job.method)


def planned() -> list[Job]:
    """Return all runs of the protocol, with the stored choices."""
    runner = Runner(RESULTS, limit=0.0, device="cpu")
    stages = [name for name in protocols.STAGES if name not in protocols.SEARCHES]
    jobs = [planned_runs.stage(name, dataset, runner) for dataset in MEASURED for name in stages]
    return list(chain(*jobs, planned_runs.stage("11", "omniglot", runner)))


def _commands(results: Results) -> str:
    examples = rows(MEASURED[0], "raw_vthm", results)[:1]
    examples += [run for name in ("best", "vit") for dataset in MEASURED for run in rows(dataset, name, results)[:1]]
    lines = [
        "## Repeat a run",
        "",
        "Every result file in `benchmarks/results` and every row of `trials.csv` holds the `command` of its run.",
        "`TUPLET_DATA` is the folder with the images and the weights. RAW+VTHM and the best recipes:",
        "",
        "```sh",
        *(run["command"] for run in examples),
        "```",
        "",
        "All runs of the tables, in stages; `--dataset glyphs` tries the protocol out in minutes:",
        "",
        "```sh",
        f"python benchmarks/protocols.py --stage {' '.join(protocols.STAGES)} --dataset cub200 cars196",
        "python benchmarks/remeasure.py --out folder  # six rows of each dataset again, beside these",
        "```",
    ]
    return "\n".join(lines) if examples else ""


if __name__ == "__main__":
    for name, text in render(read(), planned()).items():
        (DOCS / name).write_text(text)
