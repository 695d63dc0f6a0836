"""The examples of a run: what is trained on, what chooses the best, and what is tested on."""

from collections.abc import Iterator
from contextlib import contextmanager
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
from tuplet.training.split import Split

#: Examples that pass the network together where nothing is learned.
EMBEDDED_AT_ONCE = 256


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

    opened: Dataset
    train: Part
    validation: Part
    test: Part
    augment: Augment | None
    ks: tuple[int, ...]

    def path(self, place: int) -> str:
        """Where a training example comes from: its file, or its number in the arrays that were given."""
        return self.opened.path(int(self.train.indices[place]))

    def inputs(self, batch: Batch, step: int) -> Tensor:
        """What the network is trained on: pictures cropped and changed at random, vectors as they are."""
        if self.augment is None:
            return batch.values
        images = self.augment(batch.values, batch.index, step, batch.aspects)
        return images.to(memory_format=torch.channels_last)


def embed(embedder: Embedder, store: Store, which: range | list[int], mirror: bool = False) -> Tensor:
    """The embeddings of some examples as testing sees them: the centre crop, or its mirror image, in evaluation mode.

    >>> from tuplet import models
    >>> from tuplet.data import from_features
    >>> store = load(from_features(torch.eye(4), [0, 0, 1, 1]))
    >>> embed(models.create("mlp", features=4, dim=2), store, range(4)).shape
    torch.Size([4, 2])
    """
    parts, device = [], embedder.device
    with evaluating(embedder), torch.inference_mode():
        for numbers in track(torch.tensor(which, dtype=torch.int64).split(EMBEDDED_AT_ONCE), "embedding"):
            values = store.values[numbers.to(store.values.device)].to(device)
            if embedder.preprocessing is not None:
                p, aspects = embedder.preprocessing, store.aspects[numbers.to(store.aspects.device)].to(device)
                values = views(values, p.size, p.resize, p.how, aspects, mirror=mirror)[:, -1]
            parts.append(embedder(values))
    return torch.cat(parts) if parts else torch.empty(0, embedder.width, device=device)


def make_examples(
    data: Dataset, split: Split, settings: Settings, prepared: Preprocessing | None, device: torch.device
) -> Examples:
    """Decode each part of a dataset."""
    size = None if prepared is None else settings.stored_size or prepared.resize

    def part(places: Tensor) -> Part:
        with telling_how_to_skip():
            store = load(data.select(places), size, settings.cache_folder, on_error=settings.unreadable)
        readable = [i not in store.skipped for i in range(len(places))]
        return Part(_placed(store, settings.cache_on_device, device), places[readable])

    train, test = part(split.train), part(split.test)
    return Examples(
        opened=data,
        # One proxy a class: the labels that are trained on count from 0.
        train=replace(train, store=replace(train.store, data=train.data.dense())),
        validation=part(split.validation) if settings.validation and settings.test_on == "test" else test,
        test=test,
        augment=make_augment(settings, prepared),
        ks=recall_ks(data),
    )


@contextmanager
def telling_how_to_skip() -> Iterator[None]:
    """Name the option that leaves a picture out where one cannot be read."""
    try:
        yield
    except (ValueError, OSError) as error:
        if str(error).endswith("leave it out"):
            raise type(error)(f"{error} with unreadable='skip'") from error
        raise


def _placed(store: Store, on_device: bool | None, device: torch.device) -> Store:
    """The store on the device if asked, or unasked where it takes less than half of the free memory."""
    if device.type == "cpu" or on_device is False:
        return store
    size = store.values.numel() * store.values.element_size()
    return store.to(device) if on_device or size < torch.cuda.mem_get_info(device)[0] / 2 else store


def make_augment(settings: Settings, prepared: Preprocessing | None) -> Augment | None:
    """How pictures are changed at random; None for vectors."""
    if prepared is None:
        return None
    known = [each.name for each in fields(Augment)]
    for name in settings.augment:
        if name not in known:
            raise TypeError(f"augment has no option {name!r}; {nearest(name, known)}")
    # JSON and the command line know lists only.
    said: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.augment.items()}
    return replace(Augment(prepared.size, prepared.resize, prepared.how, seed=settings.seed), **said)
