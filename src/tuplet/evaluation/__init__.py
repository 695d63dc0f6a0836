"""How well embeddings retrieve, cluster, verify and identify: functions of embeddings and labels.

Embeddings are tensors on any device, arrays, or memory-mapped files larger than RAM; labels are integers,
any that fit into int64. Nothing here holds a table of all pairs.
"""

from tuplet.evaluation.clustering import ami, clustering, nmi, pairwise_f1
from tuplet.evaluation.combine import average_views, concatenate
from tuplet.evaluation.identification import identification, recognition
from tuplet.evaluation.inputs import Vectors
from tuplet.evaluation.kmeans import kmeans
from tuplet.evaluation.lfw import Pairs, read_pairs
from tuplet.evaluation.report import evaluate
from tuplet.evaluation.retrieval import (
    map_at_r,
    mean_average_precision,
    mean_reciprocal_rank,
    per_query,
    r_precision,
    recall_at_k,
)
from tuplet.evaluation.topk import Nearest, nearest
from tuplet.evaluation.verification import pair_scores, pair_verification, roc, tar_at_far, verification

__all__ = [
    "Nearest",
    "Pairs",
    "Vectors",
    "ami",
    "average_views",
    "clustering",
    "concatenate",
    "evaluate",
    "identification",
    "kmeans",
    "map_at_r",
    "mean_average_precision",
    "mean_reciprocal_rank",
    "nearest",
    "nmi",
    "pair_scores",
    "pair_verification",
    "pairwise_f1",
    "per_query",
    "r_precision",
    "read_pairs",
    "recall_at_k",
    "recognition",
    "roc",
    "tar_at_far",
    "verification",
]
