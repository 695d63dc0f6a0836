"""Parameter groups for an optimiser: new layers learn faster, vectors do not decay."""

from typing import Any

from tuplet.models.embedder import Embedder


def param_groups(
    embedder: Embedder, lr: float, head_multiplier: float = 10.0, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Groups for `torch.optim`: the backbone at `lr`, the heads at `lr` · `head_multiplier`.

    Biases and the scales of normalisations do not decay; frozen parameters and empty groups are left out. Each group
    has a `name`: "backbone" or "heads", with "/flat" for those that do not decay.

    >>> from tuplet import models
    >>> [(g["name"], g["lr"]) for g in param_groups(models.create("convnet", dim=2), lr=0.1)]
    [('backbone', 0.1), ('backbone/flat', 0.1), ('heads', 1.0), ('heads/flat', 1.0)]
    """
    groups = []
    for part, rate in ((embedder.backbone, lr), (embedder.heads, lr * head_multiplier)):
        name = "backbone" if part is embedder.backbone else "heads"
        learning = [p for p in part.parameters() if p.requires_grad]
        matrices, vectors = [p for p in learning if p.ndim > 1], [p for p in learning if p.ndim <= 1]
        groups.append({"name": name, "params": matrices, "lr": rate, "weight_decay": weight_decay})
        groups.append({"name": f"{name}/flat", "params": vectors, "lr": rate, "weight_decay": 0.0})
    return [group for group in groups if group["params"]]
