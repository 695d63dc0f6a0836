"""Check what users give to an index, and convert it: items to add, queries, ids and filters."""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from PIL import Image
from torch import Tensor

from tuplet.embedding import embed_pixels, image_pixels
from tuplet.errors import OptionError, opt
from tuplet.evaluation import average_views
from tuplet.evaluation.inputs import one_of, positive_integer
from tuplet.evaluation.scores import METRICS
from tuplet.images.crop import thumbnail
from tuplet.images.decode import ImageSource, read_image
from tuplet.models import Embedder

#: Vectors, or images for the index's model.
Inputs: TypeAlias = Tensor | np.ndarray | ImageSource | Sequence[ImageSource]
#: One id or several; numbers are stored as text.
Ids: TypeAlias = str | int | Sequence[str | int] | np.ndarray | Tensor
T = TypeVar("T")
ID_TYPES = (str, int, np.integer, os.PathLike)


class Items(NamedTuple):
    """Items of an index: float32 vectors (n, dim), and for each an id, metadata, and a thumbnail or b""."""

    vectors: np.ndarray
    ids: list[str]
    metadata: Sequence[Mapping[str, Any]]
    thumbnails: Sequence[bytes]


def dim_and_metric(dim: int | None, metric: str | None, embedder: Embedder | None) -> tuple[int, str]:
    """Return the dimension and the metric of a new index.

    >>> dim_and_metric(3, None, None)
    (3, 'euclidean')
    """
    if (dim is None) == (embedder is None):
        raise TypeError("an index needs either dim=, for vectors, or embedder=, for images")
    if metric is None:
        metric = "dot" if embedder is not None and embedder.config.normalize else "euclidean"
    width = positive_integer(dim, "dim") if embedder is None else embedder.width  # type: ignore[arg-type]
    return width, one_of(metric, METRICS, "metric")


def check_items(
    inputs: Inputs,
    ids: Ids | None,
    metadata: Sequence[Mapping[str, Any]] | None,
    thumbnails: Sequence[bytes] | None,
    dim: int,
    embedder: Callable[[], Embedder],
) -> Items:
    """Embed images, and check that vectors, ids, metadata and thumbnails fit together."""
    if not isinstance(inputs, Tensor | np.ndarray):
        sources = as_list(inputs)
        if ids is None:
            if not all(isinstance(source, str | os.PathLike) for source in sources):
                raise TypeError("images that are not files have no names; give ids=, one for each")
            ids = [str(os.fspath(source)) for source in sources]
        decoded = [decode(source, embedder()) for source in sources]
        inputs = embed_pixels(embedder(), [pixels for pixels, _ in decoded])
        thumbnails = [small for _, small in decoded]
    if ids is None:
        raise TypeError("vectors need ids=, one for each")
    if isinstance(metadata, Mapping):
        raise TypeError("metadata is one mapping; give a list of them, one for each vector")
    vectors, ids = as_matrix(inputs, dim), as_ids(ids)
    metadata = [{}] * len(ids) if metadata is None else metadata
    thumbnails = [b""] * len(ids) if thumbnails is None else thumbnails
    for name, values in (("ids", ids), ("metadata", metadata), ("thumbnails", thumbnails)):
        if len(values) != len(vectors):
            raise ValueError(f"{name} has {len(values)} entries for {len(vectors)} vectors; give one for each")
    for id, small in zip(ids, thumbnails, strict=True):
        if not isinstance(small, bytes | bytearray):
            raise TypeError(f"the thumbnail of {id!r} is a {type(small).__name__}; give the bytes of a WebP file")
    refuse_known({id for id, count in Counter(ids).items() if count > 1})
    return Items(vectors, ids, metadata, thumbnails)


def decode(source: ImageSource, embedder: Embedder, aspect: float | None = None) -> tuple[Tensor, bytes]:
    """Decode an image once: return its pixels for the embedder and its thumbnail as WebP. See `Preprocessing.image`."""
    image = read_image(source)
    return image_pixels(embedder, image, aspect), thumbnail(image, aspect)


def refuse_known(ids: set[str]) -> None:
    """Raise ValueError if there are ids that exist already."""
    if ids:
        raise ValueError(f"the id {min(ids)!r} would exist twice; delete the other first or choose a new id")


class UnknownIdError(ValueError):
    """An id that the index does not have."""


def in_order(found: Mapping[str, T], ids: list[str]) -> list[T]:
    """Return the value of each id; UnknownIdError if one is missing."""
    for id in ids:
        if id not in found:
            raise UnknownIdError(f"the index has no id {id!r}; use ids that were added and not deleted")
    return [found[id] for id in ids]


def query_vectors(queries: Inputs, dim: int, metric: str, embedder: Callable[[], Embedder]) -> np.ndarray:
    """Return queries as float32 (n, dim): images are embedded; views (n, views, dim) are averaged.

    For the cosine each view is scaled to unit length first.
    """
    if not isinstance(queries, Tensor | np.ndarray):
        queries = embed_pixels(embedder(), [image_pixels(embedder(), source) for source in as_list(queries)])
    if queries.ndim == 3 and 0 not in queries.shape:
        views = [queries[:, view] for view in range(queries.shape[1])]
        queries = average_views(views, metric="cosine" if metric == "cosine" else "dot")
    return as_matrix(queries, dim)


def query_views(
    embedder: Embedder, images: Sequence[ImageSource], *, mirror: bool = False, together: bool = False
) -> Tensor:
    """Embed images as queries (n, views, dim) for `search`, which averages the views of each.

    `mirror` adds the mirror image of each; `together` takes all images as views of one object.
    """
    pixels = [image_pixels(embedder, source) for source in images]
    if mirror:
        pixels = [view for each in pixels for view in (each, each.flip(-1))]
    return embed_pixels(embedder, pixels).view(1 if together else len(images), -1, embedder.width)


def as_matrix(vectors: Tensor | np.ndarray, dim: int) -> np.ndarray:
    """Return vectors (n, dim), or one (dim,), as finite float32 rows.

    >>> as_matrix(np.array([1.0, 2.0]), 2)
    array([[1., 2.]], dtype=float32)
    """
    if isinstance(vectors, Tensor):  # numpy has neither bfloat16 nor float8
        vectors = (vectors.float() if vectors.is_floating_point() else vectors).detach().cpu().numpy()
    array = vectors[None] if vectors.ndim == 1 else vectors
    if array.ndim != 2 or array.shape[1] != dim or array.dtype.kind != "f":
        raise ValueError(
            f"the index takes floating-point vectors (n, {dim}), got {array.dtype} {array.shape}; "
            "embed with the model that made it"
        )
    with np.errstate(over="ignore"):  # numbers that overflow are refused below
        matrix = np.ascontiguousarray(array, "<f4")
    finite = np.isfinite(matrix).all(1)
    if not finite.all():
        raise ValueError(f"vector {int(finite.argmin())} is not finite in float32; check whether the model diverged")
    return matrix


def as_list(inputs: Any) -> list[Any]:
    """Return one input or several as a list."""
    return [inputs] if isinstance(inputs, str | os.PathLike | bytes | Image.Image) else list(inputs)


def as_ids(ids: Ids) -> list[str]:
    """Return one id or several as a list of text.

    >>> as_ids(3), as_ids(np.array([3, 4])), as_ids("east")
    (['3'], ['3', '4'], ['east'])
    """
    several = [ids] if isinstance(ids, (*ID_TYPES, bytes)) else _plain_list(ids)
    plain = [id.item() if isinstance(id, Tensor) else id for id in several]
    for id in plain:
        if not isinstance(id, ID_TYPES):
            raise TypeError(f"the id {id!r} is a {type(id).__name__}; ids are text or integers")
    return [str(id) for id in plain]


def choices(wanted: Any) -> list[Any]:
    """Return the values that a filter accepts: one, or several in a list, a set or an array."""
    is_several = isinstance(wanted, list | tuple | set | frozenset | np.ndarray | Tensor)
    several = _plain_list(wanted) if is_several else [wanted]
    return [each.tolist() if isinstance(each, np.generic | Tensor) else each for each in several]


def is_plain(value: Any) -> bool:
    """Return True for text, booleans and finite numbers, which every index can filter by."""
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def is_json(value: Any) -> bool:
    """Return True for what JSON can hold: text, booleans, finite numbers, and lists and mappings of them."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_json(each) for key, each in value.items())
    return value is None or is_plain(value) or (isinstance(value, list) and all(map(is_json, value)))


def _plain_list(several: Any) -> list[Any]:
    """Return the members of a collection, an array or a tensor as a list."""
    return several.reshape(-1).tolist() if isinstance(several, np.ndarray | Tensor) else list(several)


def check_conditions(where: Any, distinct: Any) -> None:
    """Raise an error if `where` is not a mapping of text keys, or `distinct` not a number."""
    if not isinstance(where, Mapping | None):
        raise TypeError(f"where is {where!r}; it must be a mapping, such as {{'label': 'bee'}}")
    for key in where or ():
        if not isinstance(key, str):  # JSON turns the keys of metadata into text
            raise TypeError(f"where has the key {key!r}; keys are text: {str(key)!r}")
    if distinct is not None and (not isinstance(distinct, Real) or math.isnan(distinct)):
        raise OptionError(f"{opt('distinct')} is {distinct!r}; it must be a number, the score of near-duplicates")


def metadata_json(id: str, metadata: Mapping[str, Any]) -> str:
    """Return the metadata of an item as JSON text; an error if they are not a mapping that JSON can hold."""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"the metadata of {id!r} is {metadata!r}; it must be a mapping, such as {{'label': 'bee'}}")
    if "id" in metadata:
        raise ValueError(f"the metadata of {id!r} has the key 'id', which is reserved; rename it")
    try:
        text = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False, default=_as_python)
        (id + text).encode()  # file names may hold bytes that are not text
    except (TypeError, ValueError) as error:
        raise ValueError(f"the id or the metadata of {id!r} cannot be written as JSON: {error}") from error
    return text


def _as_python(value: Any) -> Any:
    """Convert numbers and arrays of numpy and torch to Python's types."""
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    raise TypeError(f"{value!r} is of type {type(value).__name__}; use text, numbers or lists")
