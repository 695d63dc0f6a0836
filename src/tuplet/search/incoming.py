"""What users give to an index, checked and brought into one form: things to add, and things to look for."""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from PIL import Image
from torch import Tensor

from tuplet.evaluation import average_views
from tuplet.evaluation.inputs import one_of, positive_integer
from tuplet.evaluation.scores import METRICS
from tuplet.models import Embedder
from tuplet.models.embedder import Picture
from tuplet.search.pictures import embed, prepare

#: Vectors, or photographs for the index's model.
Things: TypeAlias = Tensor | np.ndarray | Picture | Sequence[Picture]
#: One id or several; numbers are kept as text.
Ids: TypeAlias = str | int | Sequence[str | int] | np.ndarray | Tensor
T = TypeVar("T")
NAMES = (str, int, np.integer, os.PathLike)


@dataclass(frozen=True)
class Additions:
    """Things to add: float32 vectors (n, dim), and for each an id, its metadata as JSON, and a picture or b""."""

    vectors: np.ndarray
    names: list[str]
    metadata: list[str]
    pictures: Sequence[bytes]


class Part(NamedTuple):
    """Things that are in an index, as `add` takes them: float32 vectors (n, dim), and for each what belongs to it."""

    vectors: np.ndarray
    ids: list[str]
    metadata: list[dict[str, Any]]
    pictures: list[bytes]


def width_and_metric(dim: int | None, metric: str | None, embedder: Embedder | None) -> tuple[int, str]:
    """What an index that is to be created takes, and by what it compares.

    >>> width_and_metric(3, None, None)
    (3, 'euclidean')
    """
    if (dim is None) == (embedder is None):
        raise TypeError("an index needs either dim=, for vectors, or embedder=, for photographs")
    if metric is None:
        metric = "dot" if embedder is not None and embedder.config.normalize else "euclidean"
    width = positive_integer(dim, "dim") if embedder is None else embedder.width  # type: ignore[arg-type]
    return width, one_of(metric, METRICS, "metric")


def additions(
    things: Things,
    ids: Ids | None,
    metadata: Sequence[Mapping[str, Any]] | None,
    pictures: Sequence[bytes] | None,
    dim: int,
    embedder: Callable[[], Embedder],
) -> Additions:
    """Embed photographs, and check that everything fits together."""
    if not isinstance(things, Tensor | np.ndarray):
        sources = as_list(things)
        if ids is None:
            if not all(isinstance(source, str | os.PathLike) for source in sources):
                raise TypeError("a photograph that is no file has no name; give ids=, one for each")
            ids = [str(os.fspath(source)) for source in sources]
        ready = [prepare(source, embedder()) for source in sources]
        things, pictures = embed([r.pixels for r in ready], embedder()), [r.picture for r in ready]
    if ids is None:
        raise TypeError("vectors need ids=, one string for each")
    vectors = as_matrix(things, dim)
    names = as_names(ids)
    about = [{}] * len(names) if metadata is None else metadata
    pictures = [b""] * len(names) if pictures is None else pictures
    for what, given in (("ids", names), ("metadata", about), ("pictures", pictures)):
        if len(given) != len(vectors):
            raise ValueError(f"{what} has {len(given)} entries for {len(vectors)} vectors; give one for each")
    for name, picture in zip(names, pictures, strict=True):
        if not isinstance(picture, bytes | bytearray):
            raise TypeError(
                f"the picture of {name!r} is a {type(picture).__name__}; give bytes, as a WebP file holds them"
            )
    refuse_known({name for name, times in Counter(names).items() if times > 1})
    return Additions(vectors, names, [_as_json(*pair) for pair in zip(names, about, strict=True)], pictures)


def refuse_known(names: set[str]) -> None:
    """Say which id would be there twice, if one would."""
    if names:
        raise ValueError(f"the id {min(names)!r} would be there twice; delete the other first or choose a new id")


def in_order(found: Mapping[str, T], names: list[str]) -> list[T]:
    """What was found of each id; one that is missing is an error."""
    for name in names:
        if name not in found:
            raise ValueError(f"the index holds no {name!r}; ids are those that were added and not deleted")
    return [found[name] for name in names]


def refuse_another_model(place: object, model: str | None, embedder: Embedder) -> None:
    """Refuse an embedder that did not make the index at a place, which knows the fingerprint of its own."""
    other = embedder.fingerprint()
    if model != other:
        by = "no model, from plain vectors" if model is None else f"the model {model[:12]}"
        raise ValueError(f"{place} was made by {by}, not by {other[:12]}; index again with the new model")


def query_vectors(queries: Things, dim: int, metric: str, embedder: Callable[[], Embedder]) -> np.ndarray:
    """Queries as float32 (n, dim): photographs embedded; views (n, views, dim) averaged, unit ones for the cosine."""
    if not isinstance(queries, Tensor | np.ndarray):
        ready = [prepare(source, embedder()) for source in as_list(queries)]
        queries = embed([r.pixels for r in ready], embedder())
    if queries.ndim == 3 and 0 not in queries.shape:
        views = [queries[:, view] for view in range(queries.shape[1])]
        queries = average_views(views, metric="cosine" if metric == "cosine" else "dot")
    return as_matrix(queries, dim)


def as_matrix(vectors: Tensor | np.ndarray, dim: int) -> np.ndarray:
    """Vectors (n, dim), or one (dim,), as finite float32 rows.

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
    with np.errstate(over="ignore"):  # what becomes infinite is refused below
        matrix = np.ascontiguousarray(array, "<f4")
    finite = np.isfinite(matrix).all(1)
    if not finite.all():
        raise ValueError(f"vector {int(finite.argmin())} is not finite in float32; look for a diverged model")
    return matrix


def as_list(things: Any) -> list[Any]:
    """One thing or several, as a list."""
    return [things] if isinstance(things, str | os.PathLike | bytes | Image.Image) else list(things)


def as_names(ids: Ids) -> list[str]:
    """One id or several, as the texts under which they are kept.

    >>> as_names(3), as_names(np.array([3, 4])), as_names("east")
    (['3'], ['3', '4'], ['east'])
    """
    several = [ids] if isinstance(ids, (*NAMES, bytes)) else _plain_list(ids)
    names = [each.item() if isinstance(each, Tensor) else each for each in several]
    for name in names:
        if not isinstance(name, NAMES):
            raise TypeError(f"the id {name!r} is a {type(name).__name__}; ids are text or whole numbers")
    return [str(name) for name in names]


def choices(wanted: Any) -> list[Any]:
    """The values of which a filter takes any: one, or several in a list, a set or an array."""
    is_several = isinstance(wanted, list | tuple | set | frozenset | np.ndarray | Tensor)
    several = _plain_list(wanted) if is_several else [wanted]
    return [each.tolist() if isinstance(each, np.generic | Tensor) else each for each in several]


def is_plain(value: Any) -> bool:
    """Whether a filter for this value says the same everywhere: text, a boolean or a finite number."""
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _plain_list(several: Any) -> list[Any]:
    """The members of a collection; those of an array or a tensor as Python's own, a single one as well."""
    return several.reshape(-1).tolist() if isinstance(several, np.ndarray | Tensor) else list(several)


def check_conditions(where: Any, distinct: Any) -> None:
    """Refuse a filter that is none, and a score that is no number."""
    if not isinstance(where, Mapping | None):
        raise TypeError(f"where is {where!r}; it must be a mapping, such as {{'label': 'bee'}}")
    for key in where or ():
        if not isinstance(key, str):  # JSON makes text of the keys of metadata
            raise TypeError(f"where has the key {key!r}; keys are text: {str(key)!r}")
    if distinct is not None and (not isinstance(distinct, Real) or math.isnan(distinct)):
        raise ValueError(f"distinct is {distinct!r}; it must be a number, the score of near-duplicates")


def _as_json(name: str, about: Mapping[str, Any]) -> str:
    if not isinstance(about, Mapping):
        raise TypeError(f"the metadata of {name!r} is {about!r}; it must be a mapping, such as {{'label': 'bee'}}")
    if "id" in about:
        raise ValueError(f"the metadata of {name!r} has a key 'id', which is the item's own; rename it")
    try:
        text = json.dumps(dict(about), ensure_ascii=False, allow_nan=False, default=_plain)
        (name + text).encode()  # file names may hold what is no text
    except (TypeError, ValueError) as error:
        raise ValueError(f"the id or the metadata of {name!r} cannot be written as JSON: {error}") from error
    return text


def _plain(value: Any) -> Any:
    """A number or an array of numpy or torch in the types that JSON knows."""
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    raise TypeError(f"{value!r} is a {type(value).__name__}; use text, numbers or lists")
