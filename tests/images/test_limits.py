"""Crafted files are refused in a moment; what is decoded takes no more memory than was reserved for it."""

import io
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image

import crafted
from crafted import saved
from tuplet.images import decode, limits
from tuplet.images.decode import UnreadableImageError, read_image

REASONS = {
    "JPEG of a million scans": r"it has over 100 scans \(tuplet\.images\.limits\.MAX_SCANS\)",
    "JPEG of hidden scans": "it has over 100 scans",
    "JPEG of two readings": "it has over 100 scans",
    "JPEG of a million Exif segments": r"it has over 1,000 segments .* \(tuplet\.images\.limits\.MAX_SEGMENTS\)",
    "JPEG of ten million fill bytes": "it has over 1,000 segments before its first scan",
    "GIF of a million comments": "it has over 100,000 blocks before its first frame",
    "PNG of a million chunks": r"it has over 100,000 chunks \(tuplet\.images\.limits\.MAX_PARTS\)",
    "PNG of one column": "it has 1×50000000 pixels, over 65,535 on a side",
    "TIFF of a million strips": "it has over 100,000 tiles or strips",
    "PPM of comments": "it is not JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF or HEIC",
    "PostScript": "it is not JPEG, ",
    "WebP of 16,384²": "it has 16384×16384 pixels, over 80,000,000",
}


def test_crafted_images_are_refused_in_a_moment(tmp_path):
    for name, content in crafted.images().items():
        path = tmp_path / "photo.jpg"
        path.write_bytes(content)
        begun = time.process_time()
        for source in (path, content):
            with pytest.raises(UnreadableImageError, match=f"cannot be read: {REASONS[name]}"):
                read_image(source)
        assert time.process_time() - begun < 0.5, name


def test_a_file_of_two_formats_is_read_as_the_one_that_is_allowed():
    both = crafted.tiff_and_im(9000, 9000)
    assert Image.open(io.BytesIO(both)).format == "IM"
    assert read_image(both).size == (4, 4)


@pytest.mark.parametrize("least", [None, 8])
def test_scans_are_counted_in_whole_files_only(least):
    """A file inside another, such as a thumbnail or a video behind the photograph, has scans of its own."""
    photo = Image.new("RGB", (64, 48), (200, 100, 50))
    inner = b"\xff\xe5" + (2 + 600).to_bytes(2) + b"\xff\xda" * 300
    for options in ({}, {"progressive": True}):
        content = saved(photo, "JPEG", **options)
        content = content[:2] + inner + content[2:] + b"\xff\xda" * 1000
        assert read_image(content, least=least).getpixel((3, 3)) == read_image(saved(photo, "JPEG")).getpixel((3, 3))
    read_image(crafted.jpeg_of_scans(94, side=16))  # and six of its own
    with pytest.raises(UnreadableImageError, match="over 100 scans"):
        read_image(crafted.jpeg_of_scans(95, side=16))


def test_separate_scans_of_components_are_counted():
    content = crafted.jpeg_of_scans(95, side=16).replace(b"\xff\xc2", b"\xff\xc0", 1)  # sequential, by its header
    content = content.replace(b"\xff\xda\x00\x08\x01", b"\xff\xda\x00\x08\x00", 1)  # of no component
    with pytest.raises(UnreadableImageError, match="over 100 scans"):
        read_image(content)


def test_bytes_between_segments_are_skipped():
    content = saved(Image.new("RGB", (64, 48), (200, 100, 50)), "JPEG", comment=b"x")
    padded = content.replace(b"\xff\xfe", b"\xff\xff\xff\xfe", 1)
    assert read_image(padded).tobytes() == read_image(content).tobytes()


def test_tiles_are_counted_in_every_kind_of_tiff(monkeypatch):
    image = Image.new("L", (64, 64))
    monkeypatch.setattr(limits, "MAX_PARTS", 63)
    for big in (False, True):
        content = saved(image, "TIFF", big_tiff=big, tiffinfo={278: 1})
        with pytest.raises(UnreadableImageError, match="over 63 tiles or strips"):
            read_image(content)
    monkeypatch.setattr(limits, "MAX_PARTS", 64)
    assert read_image(content).size == (64, 64)


@pytest.mark.parametrize("options", [{"lossless": True}, {}, {"exif": b"Exif\0\0"}])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_the_size_of_a_webp_is_known_before_it_is_opened(mode, options):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (31, 47, 4), np.uint8)).convert(mode)
    content = saved(image, "WEBP", **options)
    assert limits._webp_header(content[:30]) == (47, 31, Image.open(io.BytesIO(content)).mode)


def test_a_large_file_is_not_read(tmp_path):
    path = tmp_path / "sparse.jpg"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(UnreadableImageError, match="it has 2,147,483,648 bytes, over 1,073,741,824"):
        read_image(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    crafted.make_pipe(tmp_path / "photo.jpg")
    with pytest.raises(UnreadableImageError, match="cannot be read: it is a pipe or a device and not a file"):
        read_image(tmp_path / "photo.jpg")


def test_heic_needs_an_extra(monkeypatch):
    pytest.importorskip("pillow_heif", reason="writes the file")
    decode.available_formats()
    image = Image.new("RGB", (64, 48), (200, 10, 10))
    content = saved(image, "HEIF", quality=100)
    assert np.abs(np.asarray(read_image(content)).astype(int) - np.asarray(image)).max() < 6
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_image(saved(image, "HEIF", exif=exif.tobytes())).size == (48, 64)
    monkeypatch.setattr(decode, "available_formats", lambda: ("JPEG",))
    with pytest.raises(UnreadableImageError, match=r"it is HEIC, which needs pip install 'tuplet\[heif\]'"):
        read_image(content)


def test_images_that_need_too_much_memory_together_wait(monkeypatch):
    content = saved(Image.new("RGB", (400, 300)), "PNG")
    needed = limits.check_memory(400 * 300, "RGB", "PNG")
    monkeypatch.setattr(limits, "MAX_MEMORY", 2 * needed)
    most = []

    def slow(image):
        most.append(limits.MEMORY.used)
        time.sleep(0.05)
        return image

    monkeypatch.setattr(decode, "_to_rgb", slow)
    threads = [threading.Thread(target=read_image, args=(content,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (6, 2 * needed)
    assert limits.MEMORY.used == 0
    monkeypatch.setattr(limits, "MAX_MEMORY", needed - 1)
    with pytest.raises(UnreadableImageError, match="it takes 1 MiB of memory to decode, over 1 "):
        read_image(content)


MEASURE = """
import sys
from tuplet.images import limits
from tuplet.images.decode import open_image, read_image

def peak():
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])

for path in sys.argv[1:]:
    read_image(f"{path}.small")  # makes the decoder ready
    with open(path, "rb") as file, open_image(file):
        reserved = limits.MEMORY.used
    open("/proc/self/clear_refs", "w").write("5")
    before = peak()
    read_image(path)
    taken = peak() - before
    assert 0.3 * reserved < taken < 1.05 * reserved + 2e6, (path, taken, reserved)
"""
KINDS = [
    ("JPEG", "RGB", {"exif": b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"}),
    ("JPEG", "RGB", {"progressive": True, "subsampling": 0}),
    ("PNG", "RGBA", {"compress_level": 1}),
    ("PNG", "I;16", {"compress_level": 1}),
    ("WEBP", "RGBA", {"method": 0}),
    ("WEBP", "RGB", {"method": 0}),
    ("AVIF", "RGB", {"speed": 10}),
    ("HEIF", "RGB", {"quality": 10}),
]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_decoding_takes_no_more_memory_than_is_reserved(tmp_path):
    decode.available_formats()
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 50, 3), np.uint8))
    kinds = [kind for kind in KINDS if kind[0] in Image.SAVE]
    paths = [str(tmp_path / f"{number} {kind} {mode}") for number, (kind, mode, _) in enumerate(kinds)]
    for path, (kind, mode, options) in zip(paths, kinds, strict=True):
        noise.convert(mode).save(f"{path}.small", kind, **options)
        noise.resize((1500, 1200)).convert(mode).save(path, kind, **options)
    done = subprocess.run([sys.executable, "-c", MEASURE, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
