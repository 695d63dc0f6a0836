"""Tables of pairs (a, b, same) and of triplets (anchor, positive, negative)."""

from collections.abc import Callable, Mapping, Sequence

import torch

from tuplet.data.dataset import Dataset, ListedPairs
from tuplet.data.files import Location
from tuplet.data.readers.columns import Table
from tuplet.errors import warn

PAIR_ROLES = ("a", "b", "same", "split")
TRIPLET_ROLES = ("anchor", "positive", "negative", "split")
_SAME = {"1": True, "0": False, "true": True, "false": False, "yes": True, "no": False}


def is_pairs(table: Table, columns: Mapping[str, str] | None) -> bool:
    """Return whether a table has the columns of pairs or of triplets."""
    given = {role for role, name in (columns or {}).items() if name}
    return any(set(roles[:3]) <= {*table.columns, *given} for roles in (PAIR_ROLES, TRIPLET_ROLES))


def read_pairs_table(
    table: Table, columns: Mapping[str, str] | None, locate: Callable[[Sequence[str]], Sequence[Location]]
) -> Dataset:
    """Read pairs or triplets of paths.

    Images that pairs call the same, directly or through others, are one class; its name is the path of its first
    image. Images that no such chain connects are taken as different. The split of an image is that of its rows.

    Raises:
        ValueError: a row contradicts others, or an image has two splits; the message names the row.
    """
    given = {*table.columns, *(columns or {})}
    table = table.with_roles(columns, TRIPLET_ROLES if set(TRIPLET_ROLES[:3]) <= given else PAIR_ROLES)
    if unread := [name for name in table.columns if name not in table.roles.values()]:
        warn(f"{table.source} lists {'triplets' if 'anchor' in table else 'pairs'}, so {', '.join(unread)} is not read")
    sides = ("anchor", "positive", "negative") if "anchor" in table else ("a", "b")
    paths = [list(map(str, table[side])) for side in sides]
    names = list(dict.fromkeys(name for row in zip(*paths, strict=True) for name in row))
    number = {name: i for i, name in enumerate(names)}
    rows = torch.tensor([[number[name] for name in side] for side in paths])
    if "anchor" in table:
        count = rows.shape[1]
        first, second = rows[0].repeat(2), rows[1:].reshape(-1)
        same, triplets = torch.arange(2 * count) < count, rows.T.contiguous()
    else:
        (first, second), count = rows, rows.shape[1]
        same, triplets = torch.tensor(_truths(table)), torch.empty(0, 3, dtype=torch.int64)
    labels = _classes(first[same].tolist(), second[same].tolist(), len(names))
    for at in (labels[first] == labels[second])[~same].nonzero()[:, 0].tolist():
        pair = int((~same).nonzero()[at])
        one, other = names[int(first[pair])], names[int(second[pair])]
        raise ValueError(
            f"{table.row(pair % count)} says that {one} and {other} differ, and other rows that they are the same; "
            "correct one of them"
        )
    shown = dict(zip(reversed(labels.tolist()), reversed(names), strict=True))  # the first image of each class
    return Dataset(
        labels=labels,
        class_names=tuple(shown[label] for label in range(len(shown))),
        images=locate(names),
        splits=_splits(table, paths, names) if "split" in table else None,
        pairs=ListedPairs(first, second, same, triplets),
    )


def _truths(table: Table) -> list[bool]:
    found = [_SAME.get(str(value).lower()) for value in table["same"]]
    for row, truth in enumerate(found):
        if truth is None:
            raise ValueError(f"{table.row(row)} has {table['same'][row]!r} as same; write 1 or 0, true or false")
    return [truth is True for truth in found]


def _classes(first: Sequence[int], second: Sequence[int], count: int) -> torch.Tensor:
    """Number the connected components of a graph in the order of their first members.

    >>> _classes([0, 3], [2, 1], 4).tolist()
    [0, 1, 0, 1]
    """
    root = list(range(count))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for one, other in zip(first, second, strict=True):
        a, b = find(one), find(other)
        root[max(a, b)] = min(a, b)
    return torch.unique(torch.tensor([find(i) for i in range(count)]), return_inverse=True)[1]


def _splits(table: Table, paths: Sequence[Sequence[str]], names: Sequence[str]) -> tuple[str, ...]:
    split: dict[str, str] = {}
    for row, (value, *own) in enumerate(zip(table["split"], *paths, strict=True)):
        for name in own:
            if split.setdefault(name, str(value).lower()) != str(value).lower():
                raise ValueError(
                    f"{table.row(row)} puts {name} into {value!r}, and an earlier row into {split[name]!r}; "
                    "an image belongs to one split"
                )
    return tuple(split[name] for name in names)
