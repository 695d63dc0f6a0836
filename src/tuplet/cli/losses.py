"""`tuplet losses`."""

import inspect
from typing import Annotated, NamedTuple

import typer

from tuplet.losses import RowLoss
from tuplet.training import LOSSES
from tuplet.training.settings import nearest


class Summary(NamedTuple):
    """What a loss is, what it takes and where it is from, in a sentence each."""

    equation: str
    inputs: str
    paper: str


def losses(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Explain this one.")] = None,
) -> None:
    """List every loss with its equation, its paper and what it takes; or explain one.

    Examples:
      tuplet losses
      tuplet losses ranked_list
      tuplet train photos/ --loss ranked_list --loss-options temperature=20
    """
    if name is None:
        for each, loss in LOSSES.items():
            about = summary(loss)
            print(f"{each}\n  {about.equation}\n  Inputs: {about.inputs}\n  Paper: {about.paper}\n")
        return
    if name not in LOSSES:
        raise ValueError(f"there is no loss {name!r}; {nearest(name, LOSSES)}")
    print(f"{name}: {LOSSES[name].__name__}{_options(LOSSES[name])}\n\n{inspect.getdoc(LOSSES[name])}")


def summary(loss: type[RowLoss]) -> Summary:
    """What the docstring of a loss says, or for what it leaves out, that of the loss it is built on.

    >>> from tuplet.losses import NCALoss
    >>> summary(NCALoss).paper
    'Goldberger, Roweis, Hinton, Salakhutdinov: Neighbourhood Components Analysis. NIPS 2004.'
    """
    paragraphs = [" ".join(part.split()) for part in (inspect.getdoc(loss) or "").split("\n\n")]
    inputs = next((part.removeprefix("Inputs: ") for part in paragraphs if part.startswith("Inputs: ")), "")
    after_example = next((i for i, part in enumerate(paragraphs) if part.startswith(">>>")), 0) + 1
    paper = " ".join(paragraphs[after_example:]) if after_example > 1 else ""
    if loss.__base__ not in (RowLoss, None):
        base = summary(loss.__base__)
        inputs, paper = inputs or base.inputs, paper or base.paper
    return Summary(paragraphs[0], inputs, paper)


def _options(loss: type[RowLoss]) -> str:
    own = [p for p in inspect.signature(loss).parameters.values() if p.name not in ("num_classes", "dim")]
    return f"({', '.join(str(p.replace(annotation=p.empty)) for p in own)})".replace("Ellipsis", "…")
