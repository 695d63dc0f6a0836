"""The examples of a run: how they are decoded and augmented."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from tuplet.data import Augment, Batch, CentreCrop, Dataset, Store, Transform, load
from tuplet.data.stream import StreamedImages
from tuplet.data.transforms import named_transform
from tuplet.embedding.pipeline import suggest_skipping
from tuplet.errors import opt, refuse_unknown
from tuplet.models import Preprocessing
from tuplet.training.papers import recall_ks
from tuplet.training.settings import Settings
from tuplet.training.split import Split, as_trained, select_measured


@dataclass(frozen=True, eq=False)
class Part:
    """Decoded examples, with their positions in the dataset that was opened."""

    store: Store
    indices: Tensor

    @property
    def data(self) -> Dataset:
        """Labels, names and files."""
        return self.store.data


@dataclass(frozen=True, eq=False)
class Examples:
    """Training, validation and test examples, and the augmentation of images.

    Without validation and test examples all examples are trained on, and nothing is measured.
    """

    opened: Dataset
    train: Part
    validation: Part | None
    test: Part | None
    augment: Augment | Transform | None
    ks: tuple[int, ...]

    def path(self, index: int) -> str:
        """Return the file of a training example, or its number in the arrays that were given."""
        return self.opened.path(int(self.train.indices[index]))

    def inputs(self, batch: Batch, step: int) -> Tensor:
        """Return the inputs of the network: augmented images, or vectors as they are."""
        if self.augment is None:
            return batch.values
        images = self.augment(batch.values, batch.index, step, batch.aspects)
        return images.to(memory_format=torch.channels_last)


def make_examples(
    data: Dataset, split: Split, settings: Settings, prepared: Preprocessing | None, device: torch.device
) -> Examples:
    """Decode the training examples as squares for augmentation, the measured ones as the crops the embedder takes."""
    size = None if prepared is None else settings.stored_size or prepared.resize

    def part(indices: Tensor, crop: CentreCrop | None, gallery: Tensor | None = None) -> Part:
        with suggest_skipping():
            store = load(
                select_measured(data, indices, gallery),
                size,
                settings.cache_folder,
                unreadable=settings.unreadable,
                crop=crop,
                stream=settings.stream,
                memory=_bytes(settings.cache_memory),
                disk=_bytes(settings.cache_disk),
            )
        indices = indices if gallery is None else torch.cat([indices, gallery])
        readable = [i not in store.skipped for i in range(len(indices))]
        return Part(_placed(store, settings.cache_on_device, device), indices[readable])

    crop = None if prepared is None else prepared.crop
    train = part(split.train, None)
    test = part(split.test, crop, split.test_gallery) if len(split.test) else None
    validation = test
    if not torch.equal(split.validation, split.test):
        validation = part(split.validation, crop, split.validation_gallery)
    return Examples(
        opened=data,
        # Labels of training examples count from 0, for losses with one proxy per class.
        train=replace(train, store=replace(train.store, data=as_trained(train.data, settings).dense())),
        validation=validation,
        test=test,
        augment=make_augment(settings, prepared),
        ks=recall_ks(data),
    )


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else round(gib * 2**30)


def _placed(store: Store, on_device: bool | None, device: torch.device) -> Store:
    """Move the store to the device if asked to, or by default if it takes less than half of the free memory."""
    if device.type == "cpu" or on_device is False or isinstance(store.values, StreamedImages):
        return store
    size = store.values.numel() * store.values.element_size()
    return store.to(device) if on_device or size < torch.cuda.mem_get_info(device)[0] / 2 else store


def make_augment(settings: Settings, prepared: Preprocessing | None) -> Augment | Transform | None:
    """Return the augmentation of images; None for vectors."""
    if prepared is None:
        return None
    if settings.transform is not None:
        given = settings.transform
        function = named_transform(given) if isinstance(given, str) else given
        return Transform(function, prepared.size, prepared.resize, prepared.resize_mode, settings.seed)
    refuse_unknown(opt("augment"), settings.augment, [each.name for each in fields(Augment)])
    # JSON and the command line have lists only.
    options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.augment.items()}
    return replace(Augment(prepared.size, prepared.resize, prepared.resize_mode, seed=settings.seed), **options)
