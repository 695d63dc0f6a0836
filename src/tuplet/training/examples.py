"""The examples of a run: what is trained on, what chooses the best, and what is tested on."""

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from tuplet.data import Augment, Batch, Dataset, Store, load, views
from tuplet.models import Embedder, Preprocessing
from tuplet.models.backbone import evaluating
from tuplet.progress import track
from tuplet.training.published import recall_ks
from tuplet.training.settings import Settings, nearest


@dataclass(frozen=True, eq=False)
class Part:
    """Some examples, decoded, with their places in the dataset that was opened."""

    store: Store
    indices: Tensor

    @property
    def data(self) -> Dataset:
        """Labels, names and files."""
        return self.store.data


@dataclass(frozen=True, eq=False)
class Examples:
    """Training, validation and test examples, and how pictures become inputs of the network."""

    train: Part
    validation: Part
    test: Part
    augment: Augment | None
    ks: tuple[int, ...]

    def inputs(self, batch: Batch, step: int) -> Tensor:
        """What the network is trained on: pictures cropped and changed at random, vectors as they are."""
        if self.augment is None:
            return batch.values
        images = self.augment(batch.values, batch.index, step, batch.aspects)
        return images.to(memory_format=torch.channels_last)


def embed(embedder: Embedder, store: Store, which: range | list[int], batch_size: int = 256) -> Tensor:
    """The embeddings of some examples as testing sees them: the centre crop, in evaluation mode.

    >>> from tuplet import models
    >>> from tuplet.data import from_features
    >>> store = load(from_features(torch.eye(4), [0, 0, 1, 1]))
    >>> embed(models.create("mlp", features=4, dim=2), store, range(4)).shape
    torch.Size([4, 2])
    """
    parts, device = [], embedder.device
    with evaluating(embedder), torch.inference_mode():
        for numbers in track(torch.tensor(which, dtype=torch.int64).split(batch_size), "embedding"):
            values = store.values[numbers.to(store.values.device)].to(device)
            if embedder.preprocessing is not None:
                p, aspects = embedder.preprocessing, store.aspects[numbers.to(store.aspects.device)].to(device)
                values = views(values, p.size, p.resize, p.how, aspects)[:, 0]
            parts.append(embedder(values))
    return torch.cat(parts) if parts else torch.empty(0, embedder.width, device=device)


def make_examples(data: Dataset, settings: Settings, prepared: Preprocessing | None, device: torch.device) -> Examples:
    """Split a dataset by its classes, or as it comes, and decode each part."""
    numbered = Dataset(data.labels, data.class_names, features=torch.arange(len(data))[:, None], splits=data.splits)
    train, test = numbered.split()
    if settings.validation:
        train, validation = train.split(1 - settings.validation, settings.seed)
    else:
        validation = test

    def part(chosen: Dataset, dense: bool = False) -> Part:
        assert chosen.features is not None
        indices = chosen.features[:, 0]
        size = None if prepared is None else settings.stored_size or prepared.resize
        store = load(data.select(indices), size, settings.cache_folder, on_error=settings.unreadable)
        indices = indices[[i not in store.skipped for i in range(len(indices))]]
        # One proxy a class: the labels that are trained on count from 0.
        store = replace(store, data=store.data.dense()) if dense else store
        return Part(_placed(store, settings.cache_on_device, device), indices)

    tested = part(test)
    return Examples(
        train=part(train, dense=True),
        validation=part(validation) if settings.validation else tested,
        test=tested,
        augment=None if prepared is None else _augment(prepared, settings),
        ks=recall_ks(data),
    )


def _placed(store: Store, on_device: bool | None, device: torch.device) -> Store:
    """The store on the device if asked, or unasked where it takes less than half of the free memory."""
    if device.type == "cpu" or on_device is False:
        return store
    size = store.values.numel() * store.values.element_size()
    return store.to(device) if on_device or size < torch.cuda.mem_get_info(device)[0] / 2 else store


def _augment(prepared: Preprocessing, settings: Settings) -> Augment:
    known = [each.name for each in fields(Augment)]
    for name in settings.augment:
        if name not in known:
            raise TypeError(f"augment has no option {name!r}; {nearest(name, known)}")
    # JSON and the command line know lists only.
    said: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.augment.items()}
    return replace(Augment(prepared.size, prepared.resize, prepared.how, seed=settings.seed), **said)


def facts(data: Dataset) -> dict[str, Any]:
    """What tells one dataset from another: its sizes, and hashes of its labels and of some of what is in memory."""
    labels = hashlib.sha256(data.labels.numpy().tobytes())
    labels.update(repr((data.class_names, data.splits)).encode())
    held = data.images if data.features is None else data.features
    some = held[:: max(1, len(held) // 256)].contiguous().numpy().tobytes() if isinstance(held, Tensor) else b""
    return {
        "examples": len(data),
        "classes": len(data.classes),
        "labels": labels.hexdigest()[:12],
        "contents": hashlib.sha256(some).hexdigest()[:12],
    }
