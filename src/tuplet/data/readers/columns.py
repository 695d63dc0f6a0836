"""The columns of a table, and the dataset that they describe."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from tuplet.data.dataset import Dataset, Groups
from tuplet.data.files import Location
from tuplet.errors import OptionError, did_you_mean, opt

CORNERS = ("x1", "y1", "x2", "y2")
SIDES = ("x", "y", "width", "height")
#: Columns with one of these names are the group, where no other column is named as such.
GROUPS = ("camera", "session", "sequence")
#: The columns that a dataset is made of. All others are metadata.
ROLES = (
    *("path", "image", "label", "labels", "class", "parent", "split", "group", "width", "height", "x", "y"),
    *CORNERS,
)
#: Between the labels of an example, and between its ancestors, in one field of a CSV file.
SEPARATOR = "|"


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length: what a file, a tar or the names of files say about images.

    Attributes:
        source: the file or folder, for messages.
        columns: the values by the name of the column; None is a missing value.
        row: the words that name a row in messages, by its number from 0.
        roles: the name of the column that is the path, the label and so on.
        is_text: all values are text, so that metadata that are written as numbers become numbers.
    """

    source: str
    columns: Mapping[str, Sequence[Any]]
    row: Callable[[int], str]
    roles: Mapping[str, str] = field(default_factory=dict)
    is_text: bool = False

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __contains__(self, role: str) -> bool:
        return role in self.roles

    def __getitem__(self, role: str) -> Sequence[Any]:
        """Return the column of a role; raise an error where a value is missing."""
        values = self.columns[self.roles[role]]
        if None in values:
            raise ValueError(f"{self.row(values.index(None))} has no {role}; fill it in or remove the row")
        return values

    def with_roles(self, given: Mapping[str, str] | None, known: Sequence[str] = ROLES) -> "Table":
        """Find the column of each role: the one with its name, or the one that is given, {"label": "species"}.

        An empty name, {"width": ""}, leaves a role out; the column of that name is then metadata. Without a column of
        labels, the column `class` is the label.
        """
        given = given or {}
        for role, name in given.items():
            if role not in known:
                raise OptionError(f"{opt('columns')} has {role!r}; {did_you_mean(role, known)}")
            if name and name not in self.columns:
                raise ValueError(f"{self.source} has no column {name!r}; {did_you_mean(name, self.columns)}")
        roles = {role: name for role in known if (name := given.get(role, role)) in self.columns}
        if "class" in roles and not {"label", "labels"} & roles.keys():
            roles["label"] = roles["class"]
        if "group" in known and "group" not in roles and "group" not in given:
            found = [name for name in GROUPS if name in self.columns]
            if len(found) > 1:
                raise OptionError(
                    f"{self.source} has the columns {' and '.join(found)}, and either may be the group that a query "
                    f"does not search in; say which with {opt('columns', {'group': found[0]})}, or give the group no "
                    f"column with {opt('columns', {'group': ''})}"
                )
            if found:
                roles["group"] = found[0]
        return replace(self, roles=roles)

    def with_empty_labels(self) -> "Table":
        """Give each row that has no label the empty one, so that images without labels can be embedded.

        >>> table = Table("birds.csv", {"path": ["a.png", "b.png"], "label": ["owl", None]}, str)
        >>> list(table.with_roles(None).with_empty_labels()["label"])
        ['owl', '']
        """
        if "labels" in self:
            return self
        name = self.roles.get("label", "label")
        labels = ["" if label is None else label for label in self.columns.get(name, [None] * len(self))]
        return replace(self, columns={**self.columns, name: labels}, roles={**self.roles, "label": name})


def dataset_of(table: Table, images: Sequence[Location]) -> Dataset:
    """Make a dataset of images and of the columns that describe them.

    Raises:
        ValueError: a value is missing, contradicts another, or is not what its column needs; the message names the row.
    """
    labels, names, sets, levels = _labels(table)
    boxes, groups = _boxes(table), None
    if "group" in table:
        groups = Groups(table.roles["group"], _codes(list(map(str, table["group"]))))
    kept = {"group", "parent", *(("width", "height") if boxes is not None and "x" not in table else ())}
    # Where the images are bytes, their path is one more thing that is known of them.
    kept |= {"path"} if "image" in table else set()
    read = {column for role, column in table.roles.items() if role not in kept}
    metadata = {
        name: tuple(_typed(values) if table.is_text else values)
        for name, values in table.columns.items()
        if name and name not in read
    }
    if "label" in metadata:
        raise ValueError(f"{table.source} has a column 'label' beside the one that is read as label; rename it")
    return Dataset(
        labels=labels,
        class_names=names,
        images=images,
        splits=tuple(str(split).lower() for split in table["split"]) if "split" in table else None,
        aspects=_aspects(table) if boxes is None and "width" in table and "height" in table else None,
        boxes=boxes,
        groups=groups,
        label_sets=sets,
        levels=levels,
        metadata=metadata,
    )


def _labels(table: Table) -> tuple[Tensor, tuple[str, ...], Tensor | None, dict[str, tuple[str, ...]] | None]:
    """Return the labels, the names of the classes and, where there are several, all labels of each example.

    With a column `parent` all labels are the class and its ancestors, and the last value has the names of each level.
    """
    if "labels" in table or isinstance(table["label"][0], list):
        role = "labels" if "labels" in table else "label"
        several = [_split(value) for value in table[role]]
        for row, each in enumerate(several):
            if not each or "" in each:
                raise ValueError(f"{table.row(row)} has an empty label among its {role}; name one or more, a|b")
        order = sorted({value for each in several for value in each})
        number = {value: label for label, value in enumerate(order)}
        sets = _padded([[number[value] for value in dict.fromkeys(each)] for each in several])
        return sets[:, 0].clone(), tuple(order), sets, None
    raw = list(map(str, table["label"]))
    labels, names = _numbered(table, raw, list(map(str, table["class"])) if "class" in table else raw)
    if "parent" not in table:
        return labels, names, None, None
    above = [_split(value) for value in table["parent"]]
    first: dict[int, int] = {}
    for row, label in enumerate(labels.tolist()):
        other = first.setdefault(label, row)
        if above[other] != above[row]:
            raise ValueError(
                f"{table.row(row)} puts {names[label]!r} below {SEPARATOR.join(above[row])!r}, and {table.row(other)} "
                f"below {SEPARATOR.join(above[other])!r}; give a class one parent"
            )
        if len(above[row]) != len(above[0]):
            raise ValueError(
                f"{table.row(row)} has {len(above[row])} ancestors, and {table.row(0)} {len(above[0])}; "
                "give every class as many, nearest first, a|b"
            )
    columns, levels = [labels], {"class": names}
    for depth in range(len(above[0])):
        # Two parents of one name below different grandparents are two.
        paths = ["/".join(reversed(each[depth:])) for each in above]
        columns.append(_codes(paths))
        levels["parent" if depth == 0 else f"parent_{depth + 1}"] = tuple(sorted(set(paths)))
    return labels, names, torch.stack(columns, 1), levels


def _split(value: Any) -> list[str]:
    """Return the labels in a field: a list, or text with | between them."""
    parts = value if isinstance(value, list) else str(value).split(SEPARATOR)
    return [str(part).strip() for part in parts]


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return lists of numbers as one tensor, padded with −1.

    >>> _padded([[3, 1], [2]])
    tensor([[ 3,  1],
            [ 2, -1]])
    """
    width = max(map(len, rows))
    return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows])


def _numbered(table: Table, raw: Sequence[str], classes: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Number the labels from 0, in the order of the table's integers or names, and name each of them."""
    try:
        order: list[str] = sorted(sorted(set(raw)), key=int)
    except ValueError:
        order = sorted(set(raw))
    else:
        for one, other in pairwise(order):
            if int(one) == int(other):
                raise ValueError(
                    f"{table.source} writes the label {int(one)} as {one!r} and as {other!r}; write it one way"
                )
    number = {value: label for label, value in enumerate(order)}
    name: dict[str, str] = {}
    for row, (value, given) in enumerate(zip(raw, classes, strict=True)):
        if name.setdefault(value, given) != given:
            raise ValueError(
                f"{table.row(row)} names the label {value} {given!r}, and {table.row(raw.index(value))} "
                f"{name[value]!r}; give a label one name"
            )
    return torch.tensor([number[value] for value in raw]), tuple(name[value] for value in order)


def _numbers(table: Table, roles: Sequence[str]) -> Tensor:
    """Return columns as numbers (N, number of columns) in float64; NaN is no number."""

    def number(value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError):
            return nan

    return torch.tensor([[number(value) for value in table[role]] for role in roles], dtype=torch.float64).T


def _aspects(table: Table) -> Tensor:
    """Return width / height."""
    sizes = _numbers(table, ("width", "height"))
    for row in (~((sizes > 0) & (sizes < inf)).all(1)).nonzero()[:, 0].tolist():
        size = f"{table['width'][row]} × {table['height'][row]}"
        raise ValueError(f"{table.row(row)} has the size {size}; both must be numbers above 0")
    return (sizes[:, 0] / sizes[:, 1]).float()


def _boxes(table: Table) -> Tensor | None:
    """Return boxes (N, 4), left, top, right and bottom, from x1, y1, x2, y2 or from x, y, width, height."""
    for roles in (CORNERS, SIDES):
        some = [role for role in roles if role in table and role not in ("width", "height")]
        if not some:
            continue
        if missing := [role for role in roles if role not in table]:
            raise OptionError(
                f"{table.source} has the column {some[0]!r} of a box and no column {missing[0]!r}; a box is x1, y1, "
                f"x2, y2 or x, y, width, height: add it, or take {some[0]!r} as metadata with "
                f"{opt('columns', {some[0]: ''})}"
            )
        boxes = _numbers(table, roles)
        if roles == SIDES:
            boxes[:, 2:] += boxes[:, :2]
        for row in (~((boxes[:, 2:] - boxes[:, :2] >= 1) & (boxes.abs().amax(1) < inf)[:, None]).all(1)).nonzero():
            given = ", ".join(f"{role} {table[role][int(row)]}" for role in roles)
            raise ValueError(f"{table.row(int(row))} has the box {given}; give numbers of pixels, at least one wide")
        return boxes
    return None


def _typed(texts: Sequence[str | None]) -> list[Any]:
    """Return a column of text as integers or numbers where all of it is written so.

    One with leading zeros, such as 007, stays text.

    >>> _typed(["1", None, "30"]), _typed(["1.5", "2"]), _typed(["007", "8"])
    ([1, None, 30], [1.5, 2.0], ['007', '8'])
    """
    filled = [text for text in texts if text]
    for kind, pattern in ((int, r"-?(0|[1-9]\d*)"), (float, r"-?(0|[1-9]\d*)(\.\d+)?")):
        written = re.compile(pattern, re.ASCII).fullmatch
        if filled and max(map(len, filled)) < 16 and all(map(written, filled)):
            return [kind(text) if text else None for text in texts]
    return list(texts)


def _codes(values: Sequence[Any]) -> Tensor:
    """Number equal values alike, in their order."""
    number = {value: code for code, value in enumerate(sorted(set(values)))}
    return torch.tensor([number[value] for value in values])
