"""Where the new layers start: at random, or as the principal components of what they are given."""

import torch
from torch import Tensor, nn

from tuplet.data import Store
from tuplet.models import Embedder
from tuplet.models.backbone import evaluating
from tuplet.training.examples import crops

#: Examples that are looked at, spread over all: enough for the directions of a few thousand features.
LOOKED_AT = 10_000


def start_at_principal_components(embedder: Embedder, store: Store) -> None:
    """y = Λ^(−¼) Vᵀ(x − x̄) / √tr Λ^½, with V the leading eigenvectors and Λ the eigenvalues of the covariance of x.

    The features x of the training examples are turned to their main directions, and these are brought half way to equal
    deviation: as they are, the first few, which all classes share, would outweigh the others; at equal deviation, noise
    would. The vectors have mean 0, so unlike examples start at right angles and not, as positive features do, close
    together; and mean squared length 1, so the products and distances that a loss first sees are of its own order.

    >>> from tuplet import models
    >>> from tuplet.data import from_features, load
    >>> store = load(from_features(torch.tensor([[3.0, 1.0], [7.0, 1.0], [5.0, 2.0], [5.0, 0.0]]), [0, 0, 1, 1]))
    >>> embedder = models.create("mlp", features=2, hidden=[], dim=1, normalize=False)
    >>> start_at_principal_components(embedder, store)
    >>> embedder(torch.tensor([[5.0, 9.0], [7.0, 1.0]])).abs()
    tensor([[0.0000], [1.4142]], grad_fn=<AbsBackward0>)
    """
    which = torch.linspace(0, len(store) - 1, min(len(store), LOOKED_AT)).long().tolist()
    with evaluating(embedder), torch.no_grad():
        batches = [embedder.features(inputs) for inputs in crops(embedder, store, which)]
        for head, features in zip(embedder.heads.values(), zip(*batches, strict=True), strict=True):
            _fill(head, torch.cat(features).double())


def _fill(head: nn.Module, features: Tensor) -> None:
    if not isinstance(head, nn.Linear):
        raise ValueError("head_start is 'pca' and dim is None, so there is no new layer; give dim, or leave it out")
    count, width = features.shape
    if head.out_features > min(count - 1, width):
        raise ValueError(
            f"head_start is 'pca' and dim is {head.out_features}, but {count:,} training examples with {width:,} "
            f"features have {min(count - 1, width):,} components at most; choose a smaller dim, or head_start='random'"
        )
    mean = features.mean(0)
    centred = features - mean
    variances, directions = (x[..., -head.out_features :] for x in torch.linalg.eigh(centred.T @ centred / count))
    # Directions without any variance are not to become infinitely long.
    deviations = variances.clamp(min=1e-8 * variances[-1]).sqrt()
    weight = (directions / deviations.sqrt()).T / deviations.sum().sqrt()
    head.weight.copy_(weight)
    head.bias.copy_(-weight @ mean)
