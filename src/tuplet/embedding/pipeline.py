"""Embed many images: decode them in threads, embed them in batches, skip those that cannot be read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

from tuplet.data import Store, views
from tuplet.data.batching import batches, chunks
from tuplet.data.store import Unreadable
from tuplet.errors import OptionError, opt
from tuplet.images.decode import ImageSource, UnreadableImageError
from tuplet.models import Embedder
from tuplet.models.backbone import evaluating
from tuplet.models.embedder import images_at_once
from tuplet.progress import silent, track
from tuplet.threads import map_in_threads

#: Images that are decoded together, and the most examples of a store that pass the network together.
CHUNK = 256
T = TypeVar("T")
E = TypeVar("E")


@dataclass(frozen=True)
class Embedded(Generic[T]):
    """Hold vectors (n, width), the n items that they belong to, and the problems of items that cannot be read."""

    vectors: Tensor
    items: list[T]
    problems: list[str]


def image_pixels(embedder: Embedder, source: ImageSource, aspect: float | None = None) -> Tensor:
    """Decode an image as the embedder takes it: uint8 (3, size, size). See `Preprocessing.image`."""
    if embedder.preprocessing is None:
        raise TypeError("this embedder takes no images, since it has no preprocessing; use vectors instead")
    return embedder.preprocessing.image(source, aspect)


def embed_pixels(embedder: Embedder, pixels: Sequence[Tensor]) -> Tensor:
    """Embed what `image_pixels` returned: vectors (n, width), without a progress bar."""
    with silent():
        return embedder.embed(torch.stack(list(pixels)) if pixels else [])


def embed_chunks(
    embedder: Embedder, items: Sequence[T], prepare: Callable[[T], tuple[Tensor, E]], unreadable: Unreadable, title: str
) -> Iterator[Embedded[tuple[T, E]]]:
    """Embed items in chunks of `CHUNK`; the next ones are decoded in threads while the network works.

    Args:
        embedder: the embedder.
        items: what to embed.
        prepare: returns the pixels of an item, and anything else that is to be kept with it.
        unreadable: stop with an error at an image that cannot be read, or skip it.
        title: the text beside the progress bar.
    """

    def attempt(item: T) -> tuple[Tensor, tuple[T, E]] | str:
        try:
            pixels, kept = prepare(item)
        except UnreadableImageError as error:
            if unreadable == "stop":
                raise
            return str(error)
        return pixels, (item, kept)

    decoded = track(map_in_threads(attempt, items, lead=2 * CHUNK), title, total=len(items))
    for chunk in chunks(decoded, CHUNK):
        good = [each for each in chunk if not isinstance(each, str)]
        vectors = embed_pixels(embedder, [pixels for pixels, _ in good])
        yield Embedded(vectors, [item for _, item in good], [each for each in chunk if isinstance(each, str)])


def embed_files(
    embedder: Embedder,
    paths: Sequence[str],
    unreadable: Unreadable = "stop",
    pixels: Callable[[str], Tensor] | None = None,
) -> Embedded[str]:
    """Embed image files, with a progress bar.

    Args:
        embedder: the embedder.
        paths: the names of the images.
        unreadable: stop with an error at an image that cannot be read, or skip it.
        pixels: returns the pixels of a name, where names are not paths of files.

    >>> from tuplet import models
    >>> embed_files(models.create("convnet", dim=2), ["missing.jpg"], unreadable="skip").problems
    ['image missing.jpg cannot be read: No such file or directory; replace it or leave it out']
    """
    read = pixels or partial(image_pixels, embedder)
    found = list(embed_chunks(embedder, paths, lambda path: (read(path), None), unreadable, "embedding"))
    vectors = torch.cat([torch.empty(0, embedder.width), *(each.vectors for each in found)])
    problems = [problem for each in found for problem in each.problems]
    return Embedded(vectors, [path for each in found for path, _ in each.items], problems)


def embed_store(embedder: Embedder, store: Store, indices: Sequence[int] | None = None, flip: bool = False) -> Tensor:
    """Embed examples of a store in evaluation mode, on the embedder's device.

    A store of final crops gives exactly the vectors of `Embedder.embed`. A store of squares, for training, gives those
    of `tuplet.data.views`, which are nearly the same.

    Args:
        embedder: the embedder.
        store: the examples.
        indices: the numbers of those to embed; all by default.
        flip: embed the mirror images.

    Returns:
        Vectors (n, width) on the embedder's device.

    >>> from tuplet import models
    >>> from tuplet.data import from_features, load
    >>> store = load(from_features(torch.eye(4), [0, 0, 1, 1]))
    >>> embed_store(models.create("mlp", features=4, dim=2), store).shape
    torch.Size([4, 2])
    """
    device, prepared = embedder.device, embedder.preprocessing
    chosen = torch.arange(len(store)) if indices is None else torch.as_tensor(indices, dtype=torch.int64)
    # Small tensors that outlive a batch would cut the heap of a CPU to pieces, so all vectors have one place.
    vectors, start = torch.empty(len(chosen), embedder.width, device=device), 0
    with evaluating(embedder), torch.inference_mode():
        chunked = chosen.split(CHUNK) if len(chosen) else ()
        for batch in track(batches(store, map(Tensor.tolist, chunked), device), "embedding", total=len(chunked)):
            values = batch.values
            if prepared is not None and store.crop != prepared.crop:
                aspects = batch.aspects
                values = views(values, prepared.size, prepared.resize, prepared.resize_mode, aspects)[:, 0]
            for part in (values.flip(-1) if flip else values).split(images_at_once(device, values.shape[1:], CHUNK)):
                vectors[start : start + len(part)] = embedder(part)
                start += len(part)
    return vectors


@contextmanager
def suggest_skipping() -> Iterator[None]:
    """Add the option `unreadable` to the error about an image that cannot be read."""
    try:
        yield
    except UnreadableImageError as error:
        raise OptionError(error.problem, f"replace it or leave it out with {opt('unreadable', 'skip')}") from error
