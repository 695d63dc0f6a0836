"""About sixty broken, hostile and unusual files to upload."""

import gzip
import io
import struct
import zipfile
import zlib

import numpy as np
from PIL import Image

from crafted import png, png_chunk, saved


def random_image(size=(96, 64), seed=0):
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), np.uint8))


def uploads() -> dict[str, bytes]:
    """Return files that must be refused, by name."""
    image = random_image()
    whole = {kind: saved(image, kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")}
    files = {f"{kind} cut at {cut:.2f}": data[: int(len(data) * cut)] for kind, data in whole.items()
             for cut in (0.02, 0.3, 0.6, 0.97)}  # fmt: skip
    files |= {
        "PNG of 60,000 × 60,000": png(60_000, 60_000),
        "PNG bomb of one bit a pixel": png(30_000, 30_000, 1, 0, bytes(30_000 * 3_751)),
        "PNG of 2³¹ − 1 pixels across": png(2**31 - 1, 1),
        "PNG of no size": png(0, 0),
        "PNG without pixels": png(64, 64),
        "PNG with a wrong checksum": whole["PNG"][:50] + b"\x00" + whole["PNG"][51:],
        "PNG with a text that unpacks to 64 MiB": png(8, 8, body=b"\x00" * 200,
            before=png_chunk(b"zTXt", b"Comment\x00\x00" + zlib.compress(bytes(2**26)))),
        "PNG with a profile that unpacks to 64 MiB": png(8, 8, body=b"\x00" * 200,
            before=png_chunk(b"iCCP", b"p\x00\x00" + zlib.compress(bytes(2**26)))),
        "JPEG that says 65,500 × 65,500": whole["JPEG"].replace(
            struct.pack(">HH", 64, 96), struct.pack(">HH", 65_500, 65_500)),
        "JPEG header alone": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00",
        "GIF of 65,535 × 65,535": b"GIF89a\xff\xff\xff\xff\x80\x00\x00" + bytes(6) + b";",
        "GIF without frames": b"GIF89a\x10\x00\x10\x00\x80\x00\x00" + bytes(6) + b";",
        "BMP of 2³¹ − 1 rows": whole["BMP"][:22] + struct.pack("<i", 2**31 - 1) + whole["BMP"][26:],
        "BMP of no rows": whole["BMP"][:22] + struct.pack("<i", 0) + whole["BMP"][26:],
        "TIFF whose tags point nowhere": b"II*\x00\xff\xff\xff\x7f",
        "TIFF whose tags point at themselves": b"II*\x00\x08\0\0\0" + b"\x01\x00" + bytes(12) + b"\x08\0\0\0",
        "TIFF of floats": saved(Image.new("F", (8, 8), 0.5), "TIFF"),
        "WebP that lies about its size": b"RIFF\xff\xff\xff\x7fWEBPVP8 " + whole["WEBP"][16:],
        "PPM of 10⁵ × 10⁵": b"P6 100000 100000 255\n",
        "PPM without a number": b"P6 x y 255\n",
        "nothing": b"",
        "one byte": b"\xff",
        "zeros": bytes(4096),
        "noise": np.random.default_rng(1).bytes(50_000),
        "text": b"this is not an image",
        "a path": b"/etc/passwd",
        "a URL": b"http://127.0.0.1:1/secret.jpg",
        "HTML": b"<html><script>alert(1)</script></html>",
        "JSON": b'{"vector": [1, 2]}',
        "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "SVG with an entity": b'<!DOCTYPE s [<!ENTITY x SYSTEM "file:///etc/passwd">]><svg>&x;</svg>',
        "PDF": b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n",
        "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(/etc/passwd) (r) file\n",
        "gzip": gzip.compress(whole["PNG"]),
        "ELF": b"\x7fELF" + bytes(200),
        "MP4": b"\x00\x00\x00\x18ftypmp42" + bytes(100),
        "HEIC header": b"\x00\x00\x00\x18ftypheic" + bytes(100),
        "ICO": b"\x00\x00\x01\x00\x01\x00" + bytes(40),
        "PSD": b"8BPS\x00\x01" + bytes(40),
        "11 MiB of zeros": bytes(11 * 2**20),
        "JPEG with 11 MiB behind it": whole["JPEG"] + bytes(11 * 2**20),
    }  # fmt: skip
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("photo.jpg", whole["JPEG"])
    files["zip"] = archive.getvalue()
    return files


def odd_but_right() -> dict[str, bytes]:
    """Return unusual but valid files, which must get an answer."""
    image = random_image()
    jpeg = saved(image, "JPEG")
    frames = [random_image(), Image.new("RGB", (96, 64), (9, 9, 9))]
    return {
        "CMYK JPEG": saved(image.convert("CMYK"), "JPEG"),
        "grey JPEG": saved(image.convert("L"), "JPEG"),
        "16-bit PNG": saved(Image.fromarray(np.arange(96 * 64, dtype=np.uint16).reshape(64, 96) * 10), "PNG"),
        "PNG with a palette": saved(image.convert("P"), "PNG"),
        "PNG with transparency": saved(image.convert("RGBA"), "PNG"),
        "animated GIF": saved(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "animated WebP": saved(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
        "animated PNG": saved(frames[0], "PNG", save_all=True, append_images=frames[1:]),
        "one pixel": saved(image.resize((1, 1)), "PNG"),
        "a thin line": saved(image.resize((3000, 1)), "PNG"),
        "JPEG on its side": saved(image, "JPEG", exif=_orientation(6)),
        "JPEG with 60 kB of EXIF": saved(image, "JPEG", exif=b"Exif\x00\x00" + bytes(60_000)),
        "JPEG with noise inside": jpeg[:700] + bytes(range(256)) + jpeg[1000:],
        "JPEG with a zip behind it": jpeg + b"PK\x03\x04" + bytes(100),
    }


def _orientation(value):
    exif = Image.Exif()
    exif[0x0112] = value
    return exif.tobytes()
