"""Memory bank: past batches as a gallery."""

import torch
from torch import Tensor, nn

from tuplet.errors import at_least
from tuplet.rows.checks import check_device, check_labels, check_vectors


class MemoryBank(nn.Module):
    """The last `size` embeddings and their labels, as a gallery that reaches beyond the batch.

    New rows replace the oldest (a ring buffer). All state is in buffers, so a reloaded bank continues exactly where the
    saved one stopped. Rows that were never filled are neither positives nor negatives. The bank is constant: it gets no
    gradient, and a loss may be differentiated after the next `add`. (Cross-batch memory: Wang et al., CVPR 2020.)

    Args:
        size: number of embeddings to keep.
        dim: their dimension.
        dtype: their type.

    >>> bank = MemoryBank(size=4, dim=2)
    >>> bank.add(torch.ones(3, 2), torch.tensor([5, 5, 7]))
    >>> bank.add(torch.zeros(2, 2), torch.tensor([8, 9]))
    >>> bank.labels.tolist(), bank.filled.item(), bank.position.item()
    ([9, 5, 7, 8], 4, 1)
    """

    vectors: Tensor
    labels: Tensor
    position: Tensor
    filled: Tensor

    def __init__(self, size: int, dim: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        at_least(1, size=size, dim=dim)
        self.register_buffer("vectors", torch.zeros(size, dim, dtype=dtype))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def add(self, embeddings: Tensor, labels: Tensor) -> None:
        """Replace the oldest rows by a batch; of a batch larger than the bank, keep the last rows."""
        check_vectors(embeddings, "embeddings", empty=True)
        check_labels(labels, embeddings, "labels", custom=False)
        size, dim = self.vectors.shape
        if embeddings.shape[1] != dim:
            raise ValueError(
                f"MemoryBank was made for dim={dim}, got embeddings of dimension {embeddings.shape[1]}; "
                "make it with the model's dimension"
            )
        check_device("MemoryBank is", self.vectors.device, "embeddings", embeddings.device)
        n, keep = embeddings.shape[0], min(embeddings.shape[0], size)
        slots = (self.position + torch.arange(n - keep, n, device=self.vectors.device)) % size
        self.vectors[slots] = embeddings[n - keep :].detach().to(self.vectors.dtype)
        self.labels[slots] = labels[n - keep :].to(self.labels.dtype)
        self.position.copy_((self.position + n) % size)
        self.filled.copy_((self.filled + n).clamp_max(size))

    def valid(self) -> Tensor:
        """Return the mask of the rows that have been filled."""
        return torch.arange(self.vectors.shape[0], device=self.vectors.device) < self.filled
