"""Metrics of embeddings: retrieval, clustering, verification and identification.

Every function takes embeddings (tensors on any device, arrays, or memory-mapped files larger than RAM) and labels
(integers that fit into int64). None of them holds a table of all pairs.
"""

from tuplet.evaluation.cluster_metrics import ami, clustering, nmi, pairwise_f1
from tuplet.evaluation.combine import average_views, concatenate
from tuplet.evaluation.identify import closed_and_open_set, identification
from tuplet.evaluation.k_means import kmeans
from tuplet.evaluation.knn import recognition
from tuplet.evaluation.ndcg import ndcg_at_k, relevance
from tuplet.evaluation.neighbors import Nearest, nearest
from tuplet.evaluation.pairs import pair_scores, pair_verification, roc, tar_at_far
from tuplet.evaluation.report import evaluate
from tuplet.evaluation.reranking import rerank, reranked_metrics
from tuplet.evaluation.retrieval import (
    map_at_r,
    mean_average_precision,
    mean_reciprocal_rank,
    per_query,
    r_precision,
    recall_at_k,
)
from tuplet.evaluation.vectors import Vectors
from tuplet.evaluation.vrf import verification

__all__ = [
    "Nearest",
    "Vectors",
    "ami",
    "average_views",
    "closed_and_open_set",
    "clustering",
    "concatenate",
    "evaluate",
    "identification",
    "kmeans",
    "map_at_r",
    "mean_average_precision",
    "mean_reciprocal_rank",
    "ndcg_at_k",
    "nearest",
    "nmi",
    "pair_scores",
    "pair_verification",
    "pairwise_f1",
    "per_query",
    "r_precision",
    "recall_at_k",
    "recognition",
    "relevance",
    "rerank",
    "reranked_metrics",
    "roc",
    "tar_at_far",
    "verification",
]
