"""What the papers print for their benchmarks, to stand beside one's own results."""

from typing import NamedTuple

from tuplet.data import Dataset

#: The K of Recall@K that the papers print; 1, 2, 4, 8 for all others.
_KS = {"sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30, 40, 50)}

#: Classes and examples of each benchmark, by which it is recognised.
_SIZES = {
    "cub200": (200, 11_788),
    "cars196": (196, 16_185),
    "sop": (22_634, 120_053),
    "inshop": (7_982, 52_712),
}


class Published(NamedTuple):
    """A row of a paper's table: who printed it, with which network, and Recall@K (and NMI, F1) as fractions of 1."""

    paper: str
    method: str
    network: str
    dim: int
    metrics: dict[str, float]


def benchmark(data: Dataset) -> str | None:
    """The papers' name of a dataset, recognised by its size: as many classes, and examples to within one in a hundred.

    >>> import torch
    >>> from tuplet.data import from_features
    >>> benchmark(from_features(torch.zeros(11_788, 1), torch.arange(11_788) % 200))
    'cub200'
    """
    for name, (classes, examples) in _SIZES.items():
        if len(data.classes) == classes and abs(len(data) - examples) <= examples / 100:
            return name
    return None


def recall_ks(data: Dataset) -> tuple[int, ...]:
    """The K of Recall@K to measure on a dataset: those of the papers' tables."""
    return _KS.get(benchmark(data) or "", (1, 2, 4, 8))


def published(name: str | None, loss: str) -> list[Published]:
    """What the papers print for a loss on a benchmark, by the name of the loss, of its recipe or of its row of results.

    >>> [row.metrics["recall_at_1"] for row in published("cub200", "ranked_list")]
    [0.613, 0.574]
    """
    return [_row(line) for benchmark, names, *line in _LINES if benchmark == name and loss in names.split()]


def _row(line: list[str]) -> Published:
    paper, method, network, dim, ks, values, *clusters = line
    metrics = {f"recall_at_{k}": _fraction(v) for k, v in zip(ks.split(), values.split(), strict=True)}
    metrics |= {k: _fraction(v) for k, v in zip(("nmi", "f1"), " ".join(clusters).split(), strict=False)}
    return Published(paper, method, network, int(dim), metrics)


def _fraction(percent: str) -> float:
    # A decimal shift, not a division: 57.4 % is 0.574 and not its neighbour.
    return round(float(percent) / 100, 6)


_ANGULAR, _NPAIR, _UNIFIED = "Angular 2017", "N-pair 2016", "Unified view 2019"
_NRA, _RANKED = "NRA 2019", "Ranked list 2019"
_G, _BN = "googlenet", "bn_inception"
_FOUR, _TENS, _THREE = "1 2 4 8", "1 10 100 1000", "1 10 100"

#: Benchmark, names of the loss here, paper, its name there, network, dim, the K of its recalls, recalls, NMI and F1.
_LINES: tuple[tuple[str, ...], ...] = (
    ("cub200", "triplet triplet_2", _ANGULAR, "T-II", _G, "512", _FOUR, "42.8 54.9 66.2 77.6", "54.1 20.0"),
    ("cub200", "lifted_structure", _ANGULAR, "LS", _G, "512", _FOUR, "46.5 58.1 69.8 80.2", "56.2 22.7"),
    ("cub200", "npair_all", _ANGULAR, "NL", _G, "512", _FOUR, "51.9 64.3 74.9 83.2", "60.2 28.2"),
    ("cub200", "angular", _ANGULAR, "AL", _G, "512", _FOUR, "53.6 65.0 75.3 83.7", "61.0 30.2"),
    ("cub200", "npair_angular", _ANGULAR, "NL&AL", _G, "512", _FOUR, "54.7 66.3 76.0 83.9", "61.1 29.4"),
    ("cub200", "npair", _NPAIR, "60-pair-mc", _G, "64", _FOUR, "50.96 63.34 74.29 83.22", "60.39 27.24"),
    ("cub200", "binomial_deviance binomial", _UNIFIED, "Binomial", _BN, "512", "1", "64.45"),
    ("cub200", "raw", _UNIFIED, "RAW", _BN, "512", "1", "65.06"),
    ("cub200", "multi_similarity raw_vthm", _UNIFIED, "RAW+VTHM", _BN, "512", _FOUR, "66.85 77.84 85.8 91.29"),
    ("cub200", "margin", _UNIFIED, "Margin", "resnet50", "128", _FOUR, "63.6 74.4 83.1 90.0"),
    ("cub200", "triplet triplet_semi_hard", _NRA, "Triplet", _G, "512", _FOUR, "51.6 63.5 74.2 83.9"),
    ("cub200", "lifted_structure", _NRA, "Lifted", _G, "512", _FOUR, "55.7 67.4 77.7 85.5"),
    ("cub200", "npair", _NRA, "N-Pair", _G, "512", _FOUR, "56.4 69.1 79.1 86.6"),
    ("cub200", "nra", _NRA, "NRA", _G, "512", _FOUR, "64.3 74.8 83.4 89.9"),
    ("cub200", "triplet triplet_semi_hard", _RANKED, "Semihard", _BN, "512", _FOUR, "42.6 55.0 66.4 77.2", "55.4"),
    ("cub200", "lifted_structure", _RANKED, "Lifted Struct", _BN, "512", _FOUR, "43.6 56.6 68.6 79.6", "56.5"),
    ("cub200", "npair", _RANKED, "N-pair-mc", _BN, "512", _FOUR, "45.4 58.4 69.5 79.5", "57.2"),
    ("cub200", "proxy_nca", _RANKED, "Proxy NCA", _BN, "512", _FOUR, "49.2 61.9 67.9 72.4", "59.5"),
    ("cub200", "ranked_list rll_lmh", _RANKED, "RLL-(L,M,H)", _BN, "1536", _FOUR, "61.3 72.7 82.7 89.4", "66.1"),
    ("cub200", "ranked_list rll_h", _RANKED, "RLL-H", _BN, "512", _FOUR, "57.4 69.7 79.2 86.9", "63.6"),
    ("cub200", "triplet_1", _ANGULAR, "T-I", _G, "512", _FOUR, "42.2 54.4 66.2 76.7", "53.7 19.7"),
    ("cub200", "npair_ovo", _NPAIR, "60-pair-ovo", _G, "64", _FOUR, "48.73 60.48 72.08 81.62", "58.55 25.21"),
    ("cub200", "vthm", _UNIFIED, "VTHM", _BN, "512", "1", "61.55"),
    ("cub200", "binomial_vthm", _UNIFIED, "Binomial+VTHM", _BN, "512", "1", "65.34"),
    ("cub200", "raw_dw", _UNIFIED, "RAW+DW", _BN, "512", "1", "65.67"),
    ("cub200", "raw_semi_hard", _UNIFIED, "RAW+SemiHard", _BN, "512", "1", "64.97"),
    ("cub200", "contrastive", _NRA, "Contrastive", _G, "128", "1", "26.4"),
    ("cars196", "triplet triplet_2", _ANGULAR, "T-II", _G, "512", _FOUR, "46.3 59.9 71.4 81.3", "54.3 19.6"),
    ("cars196", "lifted_structure", _ANGULAR, "LS", _G, "512", _FOUR, "48.3 61.1 71.8 81.1", "55.1 21.5"),
    ("cars196", "npair_all", _ANGULAR, "NL", _G, "512", _FOUR, "68.9 78.9 85.8 90.9", "62.7 31.8"),
    ("cars196", "angular", _ANGULAR, "AL", _G, "512", _FOUR, "71.3 80.7 87.0 91.8", "62.4 31.8"),
    ("cars196", "npair_angular", _ANGULAR, "NL&AL", _G, "512", _FOUR, "71.4 81.4 87.5 92.1", "63.2 32.2"),
    ("cars196", "npair", _NPAIR, "60-pair-mc", _G, "64", _FOUR, "71.12 79.74 86.48 91.60", "63.95 33.55"),
    ("cars196", "binomial_deviance binomial", _UNIFIED, "Binomial", _BN, "512", "1", "80.78"),
    ("cars196", "raw", _UNIFIED, "RAW", _BN, "512", "1", "81.27"),
    ("cars196", "multi_similarity raw_vthm", _UNIFIED, "RAW+VTHM", _BN, "512", _FOUR, "83.69 90.27 94.53 97.16"),
    ("cars196", "margin", _UNIFIED, "Margin", "resnet50", "128", _FOUR, "79.6 86.5 91.9 95.1"),
    ("cars196", "triplet triplet_semi_hard", _NRA, "Triplet", _G, "512", _FOUR, "58.4 71.4 80.2 88.0"),
    ("cars196", "lifted_structure", _NRA, "Lifted", _G, "512", _FOUR, "50.7 63.9 73.7 83.5"),
    ("cars196", "npair", _NRA, "N-Pair", _G, "512", _FOUR, "68.3 78.8 86.1 91.1"),
    ("cars196", "nra", _NRA, "NRA", _G, "512", _FOUR, "81.9 88.8 92.8 95.4"),
    ("cars196", "triplet triplet_semi_hard", _RANKED, "Semihard", _BN, "512", _FOUR, "51.5 63.8 73.5 82.4", "53.4"),
    ("cars196", "lifted_structure", _RANKED, "Lifted Struct", _BN, "512", _FOUR, "53.0 65.7 76.0 84.3", "56.9"),
    ("cars196", "npair", _RANKED, "N-pair-mc", _BN, "512", _FOUR, "53.9 66.8 77.8 86.4", "57.8"),
    ("cars196", "proxy_nca", _RANKED, "Proxy NCA", _BN, "512", _FOUR, "73.2 82.4 86.4 88.7", "64.9"),
    ("cars196", "ranked_list rll_lmh", _RANKED, "RLL-(L,M,H)", _BN, "1536", _FOUR, "82.1 89.3 93.7 96.7", "71.8"),
    ("cars196", "ranked_list rll_h", _RANKED, "RLL-H", _BN, "512", _FOUR, "74.0 83.6 90.1 94.1", "65.4"),
    ("cars196", "triplet_1", _ANGULAR, "T-I", _G, "512", _FOUR, "45.5 59.0 71.0 80.8", "53.8 18.7"),
    ("cars196", "npair_ovo", _NPAIR, "60-pair-ovo", _G, "64", _FOUR, "69.52 78.76 85.80 90.94", "63.87 33.52"),
    ("cars196", "vthm", _UNIFIED, "VTHM", _BN, "512", "1", "76.61"),
    ("cars196", "binomial_vthm", _UNIFIED, "Binomial+VTHM", _BN, "512", "1", "81.48"),
    ("cars196", "raw_dw", _UNIFIED, "RAW+DW", _BN, "512", "1", "80.70"),
    ("cars196", "raw_semi_hard", _UNIFIED, "RAW+SemiHard", _BN, "512", "1", "80.48"),
    ("cars196", "contrastive", _NRA, "Contrastive", _G, "128", "1", "21.7"),
    ("sop", "triplet triplet_2", _ANGULAR, "T-II", _G, "512", _TENS, "58.1 76.0 89.1 96.4", "86.4 21.0"),
    ("sop", "lifted_structure", _ANGULAR, "LS", _G, "512", _TENS, "63.0 80.5 91.7 97.5", "87.4 24.7"),
    ("sop", "npair_all", _ANGULAR, "NL", _G, "512", _TENS, "66.9 83.0 92.3 97.7", "87.7 26.3"),
    ("sop", "angular", _ANGULAR, "AL", _G, "512", _TENS, "67.9 83.2 92.2 97.7", "87.8 26.5"),
    ("sop", "npair_angular", _ANGULAR, "NL&AL", _G, "512", _TENS, "70.9 85.0 93.5 98.0", "88.6 29.9"),
    ("sop", "npair", _NPAIR, "60-pair-mc", _G, "512", _TENS, "65.25 82.15 92.60 97.92", "87.77 26.53"),
    ("sop", "binomial_deviance binomial", _UNIFIED, "Binomial", _BN, "512", "1", "73.4"),
    ("sop", "raw", _UNIFIED, "RAW", _BN, "512", "1", "77.0"),
    ("sop", "multi_similarity raw_vthm", _UNIFIED, "RAW+VTHM", _BN, "512", _TENS, "78.18 90.47 96.0 98.74"),
    ("sop", "margin", _UNIFIED, "Margin", "resnet50", "128", _TENS, "72.7 86.2 93.8 98.0"),
    ("sop", "triplet triplet_semi_hard", _NRA, "Triplet", _G, "512", _THREE, "59.8 78.4 91.0"),
    ("sop", "lifted_structure", _NRA, "Lifted", _G, "512", _THREE, "63.8 81.4 92.7"),
    ("sop", "npair", _NRA, "N-Pair", _G, "512", _THREE, "65.4 83.8 94.0"),
    ("sop", "nra", _NRA, "NRA", _G, "512", _THREE, "75.6 88.8 95.7"),
    ("sop", "triplet triplet_semi_hard", _RANKED, "Semihard", _BN, "512", _THREE, "66.7 82.4 91.9", "89.5"),
    ("sop", "lifted_structure", _RANKED, "Lifted Struct", _BN, "512", _THREE, "62.5 80.8 91.9", "88.7"),
    ("sop", "npair", _RANKED, "N-pair-mc", _BN, "512", _THREE, "66.4 83.2 93.0", "89.4"),
    ("sop", "proxy_nca", _RANKED, "Proxy NCA", _BN, "512", "1", "73.7", "90.6"),
    ("sop", "ranked_list rll_lmh", _RANKED, "RLL-(L,M,H)", _BN, "1536", _THREE, "79.8 91.3 96.3", "90.4"),
    ("sop", "ranked_list rll_h", _RANKED, "RLL-H", _BN, "512", _THREE, "76.1 89.1 95.4", "89.7"),
    ("inshop", "binomial_deviance binomial", _UNIFIED, "Binomial", _BN, "512", "1", "84.78"),
    ("inshop", "raw", _UNIFIED, "RAW", _BN, "512", "1", "88.38"),
    ("inshop", "multi_similarity raw_vthm", _UNIFIED, "RAW+VTHM", _BN, "512", "1 10 20", "89.64 97.87 98.47"),
)  # fmt: skip
