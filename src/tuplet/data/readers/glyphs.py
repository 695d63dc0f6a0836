"""A dataset that needs no download: characters drawn in the fonts that matplotlib ships."""

import unicodedata
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional

from tuplet import extras
from tuplet.data.dataset import Dataset
from tuplet.rng import uniform

_CANVAS, _FONT_SIZE = 64, 42
_KINDS = ("Lu", "Ll", "Lo", "Nd", "Sc", "Sm", "So", "Po")
#: Two characters that this many fonts draw exactly alike are one class: A, Alpha and Cyrillic A.
_ALIKE = 4


def glyphs(per_font: int = 2, size: int = 32, seed: int = 0) -> Dataset:
    """Draw Latin, Greek and Cyrillic letters, digits and symbols in sixteen fonts, distorted, in colour.

    A class is a character. Half of the classes, chosen by the seed, are for training, the others for testing. Drawings
    are rotated by up to 12°, sheared, scaled, shifted, bent and noisy, dark on light or light on dark. The same
    arguments give the same pixels, in a few seconds. Needs matplotlib, for its fonts: `pip install 'tuplet[glyphs]'`.

    Args:
        per_font: how often each character is drawn in each font.
        size: the side of a drawing in pixels.
        seed: the seed of all random choices.
    """
    drawings, names = draw_characters()
    fonts, classes = drawings.shape[:2]
    count = classes * fonts * per_font
    labels = torch.arange(count) // (fonts * per_font)
    font = torch.arange(count) % fonts
    noise = torch.Generator().manual_seed(seed)
    blocks = []
    for numbers in torch.arange(count).split(1024):
        chance = uniform(seed, numbers[:, None], torch.arange(48))
        shapes = _distort(drawings[font[numbers], labels[numbers]], chance[:, :38], size)
        coloured = _colour(shapes, chance[:, 38:])
        strength = 0.1 * chance[:, 47, None, None, None]
        coloured += strength * torch.randn(coloured.shape, generator=noise)
        blocks.append((coloured.clamp(0, 1) * 255).round().to(torch.uint8))
    training = torch.randperm(classes, generator=torch.Generator().manual_seed(seed))[: classes // 2]
    splits = ["train" if trains else "test" for trains in torch.isin(labels, training).tolist()]
    return Dataset(labels, names, images=torch.cat(blocks), splits=tuple(splits))


def draw_characters() -> tuple[Tensor, tuple[str, ...]]:
    """Draw every class in every font, undistorted: uint8 (fonts, classes, 64, 64), and the characters."""
    paths = font_paths()
    characters = _characters_of_all(paths)
    fonts = [ImageFont.truetype(path, _FONT_SIZE) for path in paths]
    drawings = np.stack([[_draw(font, character) for character in characters] for font in fonts])
    inked = drawings > 64
    cut = inked[:, :, [0, -1]].any((0, 2, 3)) | inked[:, :, :, [0, -1]].any((0, 2, 3))
    # Bars, dots and dashes differ in little but their length, which the distortions change.
    thin = np.minimum(inked.any(2).sum(2), inked.any(3).sum(2)).min(0) < 10
    unfit = set(np.flatnonzero(cut | thin).tolist())
    chosen = [i for i in _first_of_alike(drawings) if i not in unfit]
    return torch.from_numpy(drawings[:, chosen]), tuple(characters[i] for i in chosen)


def font_paths() -> list[Path]:
    """Return sixteen fonts: DejaVu Sans, Sans Mono, Serif and STIX General; upright and slanted, plain and bold."""
    matplotlib = extras.need("matplotlib", extra="glyphs", purpose="drawing glyphs")
    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    paths = [path for family in ("DejaVuSans", "DejaVuSerif", "STIXGeneral") for path in folder.glob(f"{family}*.ttf")]
    return sorted(path for path in paths if "Display" not in path.name)


def _characters_of_all(paths: list[Path]) -> list[str]:
    """Return the characters that all fonts have, without accented and compound ones."""
    ft2font = extras.need("matplotlib.ft2font", extra="glyphs", purpose="drawing glyphs")
    shared = set.intersection(*(set(ft2font.FT2Font(str(path)).get_charmap()) for path in paths))
    return [
        character
        for character in map(chr, sorted(shared))
        if unicodedata.category(character) in _KINDS
        and len(unicodedata.normalize("NFKD", character)) == 1
        and not unicodedata.name(character).startswith("BOX")
    ]


def _draw(font: ImageFont.FreeTypeFont, character: str) -> np.ndarray:
    image = Image.new("L", (_CANVAS, _CANVAS))
    ImageDraw.Draw(image).text((_CANVAS / 2, 0.7 * _CANVAS), character, fill=255, font=font, anchor="ms")
    return np.asarray(image)


def _first_of_alike(drawings: np.ndarray) -> list[int]:
    """Return the first of each group of characters that `_ALIKE` fonts draw exactly alike."""
    count = drawings.shape[1]
    same = np.zeros((count, count), dtype=int)
    for font in drawings:
        earlier: dict[bytes, int] = {}
        number = np.array([earlier.setdefault(drawing.tobytes(), i) for i, drawing in enumerate(font)])
        same += number[:, None] == number
    first = np.arange(count)
    for i, j in np.argwhere(np.triu(same >= _ALIKE, 1)):
        first[first == first[j]] = first[i]
    return np.unique(first).tolist()


def _distort(drawings: Tensor, chance: Tensor, size: int) -> Tensor:
    """Return grey images (n, size, size) of ink from 0 to 1: rotated, sheared, scaled, shifted and bent."""
    spread = 2 * chance - 1
    angle, shear, scale, stretch = spread[:, 0] * 0.21, spread[:, 1] * 0.15, spread[:, 2] * 0.1, spread[:, 3] * 0.1
    wide, high = (scale + stretch).exp(), (scale - stretch).exp()
    cos, sin = angle.cos(), angle.sin()
    rows = [torch.stack([cos * wide, shear - sin * high], 1), torch.stack([sin * wide, cos * high], 1)]
    turn = torch.cat([torch.stack(rows, 1), 0.12 * spread[:, 4:6, None]], 2)
    # Twice the resolution, averaged afterwards, gives smooth edges.
    fine = [len(drawings), 1, 2 * size, 2 * size]
    bend = functional.interpolate(
        0.08 * spread[:, 6:38].reshape(-1, 2, 4, 4), fine[2:], mode="bilinear", align_corners=True
    )
    grid = functional.affine_grid(turn, fine, align_corners=False) + bend.permute(0, 2, 3, 1)
    return functional.avg_pool2d(functional.grid_sample(drawings[:, None] / 255, grid, align_corners=False), 2)[:, 0]


def _colour(ink: Tensor, chance: Tensor) -> Tensor:
    """Colour ink and paper, one of them dark and one light: (n, 3, size, size)."""
    dark, light = 0.3 * chance[:, 0:1], 0.65 + 0.35 * chance[:, 1:2]
    inverted = chance[:, 2:3] < 0.5
    tint = 0.35 * (chance[:, 3:9] - 0.5)
    paper = (torch.where(inverted, dark, light) + tint[:, :3]).clamp(0, 1)[:, :, None, None]
    written = (torch.where(inverted, light, dark) + tint[:, 3:]).clamp(0, 1)[:, :, None, None]
    return paper + (written - paper) * ink[:, None]
