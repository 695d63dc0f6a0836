"""Every kind of image becomes upright RGB; every kind of damage becomes one sentence."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tuplet.images import crop, decode, limits
from tuplet.images.crop import CentreCrop, resized_size, to_tensor
from tuplet.images.decode import UnreadableImageError, read_image


def encoded(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def image_of_waves(width=40, height=30):
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1)
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF"])
def test_lossless_files_come_back_exactly(form):
    image = image_of_waves()
    assert (np.asarray(read_image(encoded(image, form))) == np.asarray(image)).all()


def test_paths_bytes_files_and_images_are_all_sources(tmp_path):
    image = image_of_waves()
    path = tmp_path / "a.png"
    image.save(path)
    with path.open("rb") as file:
        sources = [path, str(path), path.read_bytes(), image, read_image(file)]
    for source in sources:
        assert (np.asarray(read_image(source)) == np.asarray(image)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_is_applied(orientation):
    """An image stored turned, with the tag that says so, comes back as it was."""
    upright = np.asarray(image_of_waves())
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: upright.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(Image.fromarray(np.ascontiguousarray(stored)), "PNG", exif=exif)
    assert (np.asarray(read_image(content)) == upright).all()
    assert (np.asarray(read_image(read_image(content))) == upright).all()


#: One entry of a TIFF, the orientation, which is the text "abc".
WORD = b"II*\0\x08\0\0\0" + struct.pack("<HHHI4sI", 1, 0x0112, 2, 4, b"abc\0", 0)


@pytest.mark.parametrize("exif", [b"garbage that is no TIFF header", WORD])
def test_an_unreadable_orientation_counts_as_upright(exif):
    image = image_of_waves()
    content = encoded(image, "JPEG", exif=b"Exif\0\0" + exif, quality=95)
    assert read_image(content).size == image.size


def test_greys_of_8_and_16_bits_keep_their_range():
    grey = np.array([[0, 128, 255]], np.uint8)
    assert np.asarray(read_image(Image.fromarray(grey)))[..., 0].tolist() == [[0, 128, 255]]
    deep = np.array([[0, 257 * 100, 65535, 300]], np.uint16)
    content = encoded(Image.fromarray(deep), "PNG")
    assert np.asarray(read_image(content)).tolist() == [[[0] * 3, [100] * 3, [255] * 3, [1] * 3]]


def test_one_bit_palette_and_cmyk_become_rgb():
    assert np.asarray(read_image(Image.new("1", (2, 2), 1))).min() == 255
    palette = image_of_waves().quantize(16)
    assert (np.asarray(read_image(encoded(palette, "PNG"))) == np.asarray(palette.convert("RGB"))).all()
    cmyk = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    red, green, blue = np.asarray(read_image(encoded(cmyk, "JPEG", quality=100)))[4, 4]
    assert red > 240
    assert green < 15
    assert blue < 15


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "RGB"])
def test_transparency_shows_the_background(mode):
    if mode in ("RGBA", "LA"):
        image = Image.new(mode, (2, 1), 0)
        image.putpixel((1, 0), (10, 20, 30, 255) if mode == "RGBA" else (10, 255))
        content = encoded(image, "PNG")
    else:
        image = Image.new(mode, (2, 1), 0 if mode != "RGB" else (0, 0, 0))
        image.putpixel((1, 0), 7 if mode != "RGB" else (7, 7, 7))
        content = encoded(image, "PNG", transparency=0 if mode != "RGB" else (0, 0, 0))
    seen = np.asarray(read_image(content))
    assert tuple(seen[0, 0]) == decode.BACKGROUND
    assert tuple(seen[0, 1]) != decode.BACKGROUND


def test_half_transparent_is_half_background():
    seen = np.asarray(read_image(Image.new("RGBA", (1, 1), (0, 0, 0, 51))))[0, 0]
    assert seen.tolist() == [204, 204, 204]


def test_an_animation_gives_its_first_frame():
    frames = [Image.new("L", (4, 4), shade) for shade in (10, 200)]
    content = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert np.asarray(read_image(content))[0, 0].tolist() == [10, 10, 10]


def png_chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width, height, depth=8, colour=2, data=b""):
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


JPEG = encoded(image_of_waves(200, 150), "JPEG", quality=90)
PNG = encoded(image_of_waves(200, 150), "PNG")
CORRUPT = {
    "empty": b"",
    "text": b"<html><body>404 Not Found</body></html>",
    "random bytes": np.random.default_rng(0).bytes(5000),
    "JPEG cut in half": JPEG[: len(JPEG) // 2],
    "JPEG header alone": JPEG[:20],
    "PNG cut in half": PNG[: len(PNG) // 2],
    "PNG with a flipped byte": flipped(PNG, len(PNG) // 2),
    "PNG without data": png(100, 100),
    "PNG bomb": png(50_000, 50_000, data=zlib.compress(bytes(10_000))),
    "PNG of no size": png(0, 10),
    "WebP cut in half": (lambda content: content[: len(content) // 2])(encoded(image_of_waves(200, 150), "WEBP")),
    "GIF cut short": (lambda content: content[: len(content) // 2])(encoded(image_of_waves(200, 150), "GIF")),
    "BMP cut short": encoded(image_of_waves(200, 150), "BMP")[:1000],
    "TIFF without its directory": encoded(image_of_waves(20, 15), "TIFF")[:300],
    "a zip": b"PK\x03\x04" + bytes(200),
}


@pytest.mark.parametrize("kind", CORRUPT)
def test_a_corrupt_file_is_one_sentence_with_its_path(tmp_path, kind):
    path = tmp_path / "bad image.jpg"
    path.write_bytes(CORRUPT[kind])
    with pytest.raises(
        ValueError, match=r"^image .*bad image\.jpg cannot be read: .+; replace it or leave it out$"
    ) as caught:
        read_image(path)
    assert "\n" not in str(caught.value)


def test_a_bomb_is_refused_by_its_size_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(limits, "MAX_PIXELS", 40 * 30 - 1)
    with pytest.raises(ValueError, match=r"it has 40×30 pixels, over 1,199 \(tuplet\.images\.limits\.MAX_PIXELS\)"):
        read_image(encoded(image_of_waves(), "PNG"))
    monkeypatch.setattr(limits, "MAX_PIXELS", 40 * 30)
    read_image(encoded(image_of_waves(), "PNG"))


def test_floating_point_pixels_are_refused():
    with pytest.raises(ValueError, match="floating-point numbers without a range"):
        read_image(Image.new("F", (3, 3)))
    with pytest.raises(ValueError, match="outside 16 bits"):
        read_image(Image.new("I", (3, 3), 70_000))


def test_an_image_without_pixels_is_refused():
    for size in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match=rf"cannot be read: it is {size[0]}×{size[1]} pixels"):
            read_image(Image.new("RGB", size))


@pytest.mark.parametrize("thing", [np.zeros((4, 4, 3), np.uint8), torch.zeros(3, 4, 4), None])
def test_what_cannot_be_an_image_is_named_by_its_type(thing):
    with pytest.raises(TypeError, match=rf"an image is a path, .* or a PIL image, not a {type(thing).__name__}"):
        read_image(thing)


def test_large_jpegs_may_be_decoded_smaller_but_not_too_small():
    y, x = np.mgrid[:1500, :2000]
    waves = np.stack([np.sin(x / 90), np.cos(y / 70), np.sin((x + y) / 110)], -1)
    content = encoded(Image.fromarray(((waves + 1) * 127).astype(np.uint8)), "JPEG", quality=95)
    assert read_image(content).size == (2000, 1500)
    assert read_image(content, least=1501).size == (2000, 1500)
    assert read_image(content, least=300).size == (500, 375)
    assert read_image(encoded(image_of_waves(), "PNG"), least=2).size == (40, 30)


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^image .*nothing\.jpg cannot be read: No such file or directory; "):
        read_image(tmp_path / "nothing.jpg")
    with pytest.raises(UnreadableImageError, match=r"^image .* cannot be read: Is a directory; replace it or "):
        read_image(tmp_path)


@pytest.mark.parametrize(
    ("how", "aspect", "size"),
    [
        ("square", 4 / 3, (32, 32)),
        ("shorter", 4 / 3, (43, 32)),
        ("longer", 4 / 3, (32, 24)),
        ("shorter", 0.5, (32, 64)),
        ("longer", 0.5, (16, 32)),
        ("square", 0.5, (32, 32)),
    ],
)
def test_the_resized_image_has_the_size_asked_for(how, aspect, size):
    assert resized_size(aspect, 32, how) == size


@pytest.mark.parametrize("factor", [4, 16, 40])
def test_resizing_is_antialiased(factor):
    """Stripes of one pixel, shrunk, are grey and not stripes."""
    stripes = np.zeros((16 * factor, 16 * factor, 3), np.uint8)
    stripes[:, ::2] = 255
    small = np.asarray(CentreCrop(16, 16).crop(Image.fromarray(stripes))).astype(int)[:, 1:-1]
    assert np.abs(small - 127.5).max() < 10


def test_the_true_proportions_are_restored():
    """A circle squashed into a square is a circle again in its true proportions."""
    y, x = np.mgrid[:256, :256]
    squashed = (((x - 128) / 64) ** 2 + ((y - 128) / 96) ** 2 < 1) * np.uint8(255)  # a circle in a 3:2 image
    seen = np.asarray(CentreCrop(128, 128).crop(Image.fromarray(squashed).convert("RGB"), aspect=1.5))[..., 0] > 127
    assert abs(seen.any(0).sum() - seen.any(1).sum()) <= 1


@given(
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    resize=st.integers(1, 60),
    size=st.integers(1, 60),
    how=st.sampled_from(["square", "shorter", "longer"]),
    aspect=st.one_of(st.none(), st.floats(0.2, 5)),
)
def test_the_centre_is_that_of_the_whole_fitted_image(width, height, resize, size, how, aspect):
    y, x = np.mgrid[:height, :width]  # smooth: where the filter overshoots, Pillow's order of rows and columns shows
    waves = np.stack([np.sin(x / 9), np.cos(y / 7), np.sin((x + y) / 11)], -1)
    image = Image.fromarray((128 + 100 * waves).astype(np.uint8))
    shrink = min(image.size) // (2 * resize)
    reduced = image.reduce(max(f for f in (1, 2, 4, 8) if f <= max(1, shrink)))
    whole = reduced.resize(resized_size(aspect or width / height, resize, how), Image.Resampling.BICUBIC)
    expected = Image.new("RGB", (size, size), crop.MEAN_COLOUR)
    expected.paste(whole, (-((whole.width - size) // 2), -((whole.height - size) // 2)))
    seen = CentreCrop(size, resize, how).crop(image, aspect)
    assert np.abs(np.asarray(seen).astype(int) - np.asarray(expected)).max() <= 2


@pytest.mark.parametrize("size", [(60_000, 1), (1, 60_000)])
def test_the_centre_of_a_strip_takes_no_more_than_its_own_pixels(size, monkeypatch):
    sizes, resized = [], Image.Image.resize

    def spied(image, size, *args):
        sizes.append(size)
        assert max(size) <= 224
        return resized(image, size, *args)

    monkeypatch.setattr(Image.Image, "resize", spied)
    assert CentreCrop(224, 256).crop(Image.new("RGB", size, (10, 20, 30))).getcolors() == [(224 * 224, (10, 20, 30))]
    assert sizes == [(224, 224)]


def test_the_centre_is_surrounded_by_the_mean_colour():
    seen = np.asarray(CentreCrop(6, 4).crop(Image.new("RGB", (10, 4))))
    assert (seen[0] == crop.MEAN_COLOUR).all()
    assert (seen[1:5] == 0).all()
    assert (seen[5] == crop.MEAN_COLOUR).all()


def test_to_tensor_has_channels_first():
    tensor = to_tensor(image_of_waves())
    assert tensor.shape == (3, 30, 40)
    assert tensor[0, 5, 20] == 20 * 255 // 40
    with pytest.raises(ValueError, match="got mode 'L'"):
        to_tensor(Image.new("L", (2, 2)))


def test_bad_requests_get_one_sentence():
    with pytest.raises(ValueError, match="resize_mode is 'wide'; it must be 'square', 'shorter' or 'longer'"):
        CentreCrop(10, 10, "wide")
    with pytest.raises(ValueError, match="size is 0 and resize 10; both must be positive integers"):
        CentreCrop(0, 10)


def test_what_is_no_image_is_named_without_python_objects(tmp_path):
    path = tmp_path / "notes.jpg"
    path.write_text("not an image")
    with pytest.raises(
        ValueError,
        match=r"notes\.jpg cannot be read: it is not JPEG, PNG, .* AVIF or HEIC; replace it or ",
    ):
        read_image(path)


def test_an_empty_file_is_called_empty(tmp_path):
    (tmp_path / "copied.jpg").touch()
    with pytest.raises(ValueError, match=r"copied\.jpg cannot be read: it is empty; replace it or "):
        read_image(tmp_path / "copied.jpg")
    with pytest.raises(ValueError, match="cannot be read: it is empty"):
        read_image(b"")
