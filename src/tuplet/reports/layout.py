"""The frame of a page, and the parts that pages share: sections, grids, bars and tables."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tuplet.atomic import write_atomic
from tuplet.reports.svg import percent


def write_page(path: Path, title: str, body: str) -> Path:
    """Write a page that loads nothing from the network: styles and scripts are inside."""
    here = Path(__file__)
    style, script = (here.with_name(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{escape(title)} · tuplet</title><style>{style}</style></head>"
        f"<body><main>{body}</main><script>{script}</script></body></html>\n"
    )
    write_atomic(path, lambda part: part.write_text(text, "utf-8", "backslashreplace"))
    return path


def header(brand: str, title: str, lead: str, content: str = "") -> str:
    """Return the head of a page; `title` and `content` are HTML."""
    return (
        f'<header id="headline"><p class="brand">{escape(brand)}</p><h1>{title}</h1>'
        f'<p class="lead">{escape(lead)}</p>{content}</header>'
    )


def section(name: str, title: str, about: str, content: str) -> str:
    """Return a section with its title and a paragraph; `content` is HTML."""
    paragraph = f"<p>{escape(about)}</p>" if about else ""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{paragraph}{content}</section>'


def grid(kind: str, items: Sequence[str]) -> str:
    """Return items side by side."""
    return f'<div class="{kind}">{"".join(items)}</div>'


def details(title: str, content: str, state: str = "") -> str:
    """Return content under a title that opens and closes it."""
    return f"<details {state}><summary>{title}</summary>{content}</details>"


def table(rows: Mapping[str, Any]) -> str:
    """Return a table of names and values."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in rows.items()}
    cells = (f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in texts.items())
    return f'<div class="scroll"><table>{"".join(cells)}</table></div>'


def wide_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with a title for each column, which scrolls sideways where it does not fit; all is HTML."""
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def bars(label: str, rows: Sequence[tuple[str, float, str]], largest: float = 1.0) -> str:
    """Return a bar for each name, share and kind (a class of the style sheet); `largest` has the full width."""
    lines = (
        f'<dt>{escape(name)}</dt><dd><span class="bar {kind}" style="width:{100 * share / largest:.1f}%"></span>'
        f"<b>{percent(share)}</b></dd>"
        for name, share, kind in rows
    )
    return f'<dl class="bars" aria-label="{escape(label)}">{"".join(lines)}</dl>'
