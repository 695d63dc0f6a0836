"""docs/results.md from the files in benchmarks/results: `make results`. Nothing on that page is typed by hand."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import choosing
import common
import protocols
from methods import ABLATIONS, BENCHES, FAMILIES, METHODS, SEEDS, TARGETS
from runs import RESULTS, as_json
from tuplet.training import published

PAGE = common.ROOT / "docs" / "results.md"
IMAGES = common.ROOT / "docs" / "images"
MEASURED = ("cub200", "cars196")
_COLUMNS = {"recall_at_1": "R@1", "recall_at_2": "R@2", "recall_at_4": "R@4", "recall_at_8": "R@8"}
_COLUMNS |= {"map_at_r": "MAP@R", "nmi": "NMI", "f1": "F1"}
#: Of Recall@1: farther below what is printed than chance or another network explain.
_FAR = 0.05

Result = Mapping[str, Any]


def read(folder: Path = RESULTS) -> dict[str, Result]:
    """Every result of the protocol by its file's name; other benchmarks' files are left alone."""
    kinds = ("row_", "search_", "chosen_", "best_", "ablation_", "curve_", "map_")
    return {
        path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json")) if path.name.startswith(kinds)
    }


def render(results: Mapping[str, Result]) -> str:
    """The page."""
    parts = [_opening(), _targets(results)]
    for dataset in MEASURED:
        parts += [f"## {BENCHES[dataset].title}\n", _table(dataset, results)]
    parts.append(_choice(results))
    parts.append(_ablations(results))
    parts.append(_figures(results))
    parts.append(_missing(results))
    parts.append(_commands(results))
    return "\n".join(part.rstrip() + "\n" for part in parts if part)


def _opening() -> str:
    return """# Results on photographs

What the methods of the five papers reach under one protocol, beside what the papers print. `make results` writes this
page from the files in `benchmarks/results`; `benchmarks/protocols.py` makes those, one a run, with `tuplet.train`.

**The protocol.** ResNet-50 v1 with ImageNet weights, 512 dimensions (each of L, M and H for the multilevel row), crops
of 224² in the photographs' true proportions, AdamW with a cosine schedule, new layers at the rate that was chosen and
proxies at 100 times that of the network, the same number of batches of 120 images for all. A batch is built as
the method's paper builds it: pairs (60 × 2), triplets (40 × 3), C × K with K = 5 (RAW, VTHM), 3 (ranked list) or 8 in
uniform groups (NRA). Hyper-parameters of a loss are its paper's. The first half of the classes trains, the other half
tests, by one centre crop; *mirrored* is Recall@1 with each vector averaged with its mirror image's, which no paper's
column has.

**The photographs** were read from copies that had been squashed to 256 × 256 pixels (WebP) with their first width and
height beside them, by which crops get their true proportions back. The papers had the originals, most of them 500
pixels wide in CUB-200-2011 and half of them 640 or more in Cars196; where the best recipe has more pixels than 256,
they are interpolated. CUB-200-2011 is complete: 5,864 train and 5,924 test. Of Cars196 15 are missing: 8,048 of 8,054
train and 8,122 of 8,131 test.

**What was chosen, and on what.** Rates, length and augmentation are chosen on a third of the *training* classes
([below](#what-was-chosen)): a run meets the test classes once, after its last step. Four decisions were made with test
scores in sight: which training classes validate, which alternatives are tried, how often they are measured, and which
methods choose for themselves (`benchmarks/choosing.py` tells how). So the rows are not wholly blind to the test
classes, though no rate, length or augmentation was chosen by them. Rows marked † were measured with an earlier choice
than the one below. The papers chose on their own terms and used GoogLeNet or BN-Inception, so their numbers say where
a method stood, not which network is better. Values are per cent; ± is the standard deviation over seeds.
"""


def _targets(results: Mapping[str, Result]) -> str:
    lines = [
        "## At a glance",
        "",
        "Recall@1 of the six methods that the papers are about, with how far that is above what the method's paper",
        "prints; and of one recipe with any loss and any number of pixels, with how far it is above what was aimed at.",
        "",
        *_lines(["method", *(BENCHES[dataset].title for dataset in MEASURED)]),
    ]
    for method, aims in TARGETS.items():
        runs = {d: _of_kind("best", d, results) if method == "best" else _runs(d, method, results) for d in MEASURED}
        title = "**the best recipe**" if method == "best" else METHODS[method].title
        lines.append(_line([title, *(_beside(aims.get(dataset), runs[dataset]) for dataset in MEASURED)]))
    tried = sum(result["kind"] == "search" for result in results.values())
    return "\n".join(
        [
            *lines,
            "",
            f"For what stays below, {tried} trials were made on validation classes, all of them",
            "[listed](#what-was-chosen): rates of the network and of its new layers from 5e-6 to 2e-3, one to three",
            "times the length, crops, colours, zoom, pooling, a LayerNorm, frozen layers, averages, weight decay,",
            "a memory of past vectors, starts that spare the network, several levels, and, for the best recipe alone,",
            "more pixels.",
        ]
    )


def _beside(aim: float | None, runs: Sequence[Result]) -> str:
    """Recall@1 of runs, and how far that is above what was aimed at.

    >>> _beside(51.0, [{"metrics": {"recall_at_1": 0.508}}])
    '50.8 (−0.2)'
    """
    found = [run["metrics"]["recall_at_1"] for run in runs if "metrics" in run]
    if not found:
        return "diverged" if runs else "–"
    above = "" if aim is None else f" ({100 * fmean(found) - aim:+.1f})".replace("-", "−")
    return _spread(found) + above


def _table(dataset: str, results: Mapping[str, Result]) -> str:
    lines = _lines(["method", *_COLUMNS.values(), "mirrored R@1", "seeds", "the papers print R@1"])
    for method, about in METHODS.items():
        runs = _runs(dataset, method, results)
        mark = " †" if any(not _current(run, results) for run in runs) else ""
        lines.append(_row(about.title + mark, runs, _printed(dataset, method)))
    if best := _of_kind("best", dataset, results):
        lines.append(_row(f"**the best recipe** ({METHODS[best[0]['method']].title})", best, ""))
    return "\n".join([*lines, *_far_below(dataset, results)])


def _far_below(dataset: str, results: Mapping[str, Result]) -> list[str]:
    """Which rows stay far below every number that is printed, and who chose their rates."""
    listed = []
    for method, about in METHODS.items():
        found = [run["metrics"]["recall_at_1"] for run in _runs(dataset, method, results) if "metrics" in run]
        printed = [row.metrics["recall_at_1"] for row in published(dataset, method)]
        if found and printed and fmean(found) < min(printed) - _FAR and method not in TARGETS:
            chooser = FAMILIES[about.family]
            rates = "its own" if chooser == method else f"those of {METHODS[chooser].title}"
            listed.append(f"{about.title} (by {100 * (min(printed) - fmean(found)):.1f}, rates: {rates})")
    if not listed:
        return []
    return [
        "",
        f"Below what is printed by more than {100 * _FAR:g} points: {'; '.join(listed)}.",
    ]


def _current(run: Result, results: Mapping[str, Result]) -> bool:
    """Whether a run has the options that are chosen now."""
    choice = results.get(f"chosen_{run['dataset']}")
    if choice is None:
        return False
    planned = as_json(protocols.row(run["dataset"], run["method"], run["seed"], choice).options)
    return {name: value for name, value in run["options"].items() if name != "compile"} == planned


def _row(title: str, runs: Sequence[Result], printed: str) -> str:
    good = [run["metrics"] for run in runs if "metrics" in run]
    if not good:
        return _line([title, "diverged" if runs else "–", *["–"] * len(_COLUMNS), str(len(runs)), printed])
    cells = [_spread([metrics[name] for metrics in good]) for name in _COLUMNS]
    mirrored = _spread([metrics["mirrored"]["recall_at_1"] for metrics in good])
    return _line([title, *cells, mirrored, str(len(runs)), printed])


def _runs(dataset: str, method: str, results: Mapping[str, Result]) -> list[Result]:
    return [run for run in _of_kind("row", dataset, results) if run["method"] == method]


def _of_kind(kind: str, dataset: str, results: Mapping[str, Result]) -> list[Result]:
    """In the order of their files' names, and so of their seeds."""
    return [result for result in results.values() if (result["kind"], result["dataset"]) == (kind, dataset)]


def _printed(dataset: str, method: str) -> str:
    rows = published(dataset, method)
    return "; ".join(f"{100 * row.metrics['recall_at_1']:.4g} ({row.paper}, {row.network}, {row.dim})" for row in rows)


def _spread(values: Sequence[float]) -> str:
    """A mean in per cent, with its deviation where there are several.

    >>> _spread([0.5]), _spread([0.5, 0.52])
    ('50.0', '51.0 ± 1.4')
    """
    mean = f"{100 * fmean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {100 * stdev(values):.1f}"


def _choice(results: Mapping[str, Result]) -> str:
    lines = [
        "## What was chosen",
        "",
        "The middle third of the training classes measures and the others train, for",
        f"{BENCHES['cub200'].short} steps. A run of the tables trains on half as many classes again, for",
        f"{choosing.LONGER:g} times the steps. One coordinate is tried after another, each alternative beside the best",
        f"so far. It is taken if it raises Recall@1 by {100 * choosing.MARGIN:g} points at least, or MAP@R where",
        "Recall@1 is a tie, else the cheaper one stays",
        "(`benchmarks/choosing.py`). RAW+VTHM chooses what all methods share, then one method of each family its own.",
    ]
    for dataset in MEASURED:
        chosen = results.get(f"chosen_{dataset}", {"complete": False, "shared": {}, "own": {}, "trials": []})
        others = [name for name, result in results.items() if result in _of_kind("search", dataset, results)]
        if not others:
            continue
        so_far = "" if chosen["complete"] else ", as far as the search has come"
        lines += [
            "",
            f"**{BENCHES[dataset].title}**{so_far}. Shared: {_listed(chosen['shared']) or 'nothing yet'}.",
            "",
        ]
        for family, own in chosen["own"].items():
            lines.append(f"- {family}, chosen with {METHODS[FAMILIES[family]].title}: {_listed(own) or 'as shared'}")
        if best := results.get(f"best_{dataset}"):
            lines.append(f"- the best recipe{'' if best['complete'] else ' so far'}: {_listed(best['shared'])}")
        lines += ["", "<details><summary>the trials: those that the rule compared, in order, then others</summary>", ""]
        lines += _lines(["method", "validation classes", "options", "Recall@1", "MAP@R"])
        for name in dict.fromkeys([*chosen["trials"], *others]):
            lines.append(_trial(results[name]))
        lines += ["", "</details>"]
    return "\n".join(lines)


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _trial(result: Result) -> str:
    metrics = result.get("metrics")
    values = [f"{100 * metrics[k]:.2f}" for k in ("recall_at_1", "map_at_r")] if metrics else ["diverged", ""]
    classes = "middle third" if "validation_from" in result["options"] else "drawn"
    return _line([METHODS[result["method"]].title, classes, result["about"], *values])


def _ablations(results: Mapping[str, Result]) -> str:
    lines: list[str] = []
    for name, about in ABLATIONS.items():
        for dataset in MEASURED:
            runs = {r["value"]: r for r in results.values() if r.get("ablation") == name and r["dataset"] == dataset}
            if runs:
                lines += ["", f"**{about.title}** on {BENCHES[dataset].title}; printed: {about.where}.", ""]
                lines += _lines(["", *about.changes])
                lines.append(_line(["Recall@1 here", *(_recall(runs.get(value)) for value in about.changes)]))
                if about.printed:
                    lines.append(_line(["printed", *(f"{about.printed[value]:.1f}" for value in about.changes)]))
    opening = ["## What the papers vary", "", "One seed, half the steps of the tables above, all else alike."]
    return "\n".join([*opening, *lines]) if lines else ""


def _recall(result: Result | None) -> str:
    if result is None:
        return "–"
    return f"{100 * result['metrics']['recall_at_1']:.1f}" if "metrics" in result else "diverged"


def _figures(results: Mapping[str, Result]) -> str:
    lines = ["## Figures", ""]
    for dataset in MEASURED:
        title = BENCHES[dataset].title
        nearest = f"The five nearest of some queries, {title}: a green frame is the query's class"
        lines += _figure(f"nearest_{dataset}.jpg", f"{nearest}. After figure 5 of Angular 2017.")
        progress = f"Progress on {title}: each loss's own value, and Recall@1 on validation classes"
        lines += _figure(f"curves_{dataset}.png", f"{progress}. After figure 3 of N-pair 2016.")
    maps = ", ".join(
        f"{METHODS[r['method']].title} {100 * r['metrics']['mean_average_precision']:.1f}"
        for r in results.values()
        if r["kind"] == "map"
    )
    about = f"Fashion-MNIST in two dimensions, after figure 4 of NRA 2019. mAP of the test examples: {maps}"
    caveat = "One rate for all four, not searched, and one seed. On MNIST the paper has NRA highest; here it is not"
    lines += _figure("maps.png", f"{about}. {caveat}.")
    return "\n".join(lines) if len(lines) > 2 else ""


def _figure(name: str, about: str) -> list[str]:
    """A figure, where it was drawn (benchmarks/figures.py)."""
    path = IMAGES / f"results_{name}"
    return [f"![{about}](images/{path.name})", "", about, ""] if path.is_file() else []


def _missing(results: Mapping[str, Result]) -> str:
    lines = []
    for dataset in MEASURED:
        wanted = {method: len(SEEDS) if about.own else 1 for method, about in METHODS.items()}
        lacking = {m: n - len(_runs(dataset, m, results)) for m, n in wanted.items()}
        listed = [f"{METHODS[m].title} ({n})" for m, n in lacking.items() if n > 0]
        if listed:
            lines.append(f"- {BENCHES[dataset].title}: {', '.join(listed)}")
    if not lines:
        return ""
    opening = ["## What is still to be measured", "", "Runs that the tables lack, with their number:", ""]
    return "\n".join([*opening, *lines])


def _commands(results: Mapping[str, Result]) -> str:
    lines = ["## The command of each row", ""]
    lines += [
        "Each was run with the seed named last; `TUPLET_DATA` is the folder with the photographs and the weights.",
        "",
    ]
    for dataset in MEASURED:
        runs = [run for method in METHODS for run in _runs(dataset, method, results)[:1]]
        runs += _of_kind("best", dataset, results)[:1]
        if runs:
            lines += [f"<details><summary>{BENCHES[dataset].title}</summary>", "", "```sh"]
            lines += [f"# {METHODS[run['method']].title}\n{run['command']}" for run in runs]
            lines += ["```", "", "</details>", ""]
    return "\n".join(lines) if len(lines) > 4 else ""


def _lines(header: Iterable[str]) -> list[str]:
    names = list(header)
    return [_line(names), _line(["---"] * len(names))]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(render(read()))
