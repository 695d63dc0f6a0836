"""Small files that take hours or gigabytes, or pass for something else; each is written in a moment."""

import io
import os
import struct
import zipfile
import zlib

from PIL import Image


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def jpeg_of_scans(scans, side=7000, hidden=False):
    """Return a progressive JPEG with this many empty scans; `hidden` behind marks that are invalid."""
    content = saved(Image.new("L", (side, side)), "JPEG", progressive=True)
    start, end = content.rindex(b"\xff\xda"), content.rindex(b"\xff\xd9")
    scan = content[start : start + 2 + int.from_bytes(content[start + 2 : start + 4])]
    return content[:end] + (b"\xff\x02\xff\xff" if hidden else b"") + scan * scans + content[end:]


def jpeg_of_two_readings(scans, side=2000):
    """Return a JPEG of many scans that has one to a reader who takes the byte FF before its frame for a segment."""
    content = jpeg_of_scans(scans, side)
    frame = content.index(b"\xff\xc2")
    one_scan = b"\xff\xc0\0\x0b\x08\0\x08\0\x08\x01\x01\x11\0\xff\xda\0\x08\x01\x01\0\0?\0"
    end = frame + 1 + 2 + int.from_bytes(content[frame + 2 : frame + 4])
    gap = frame + 2 + 0xC200 - end - 4
    comment = b"\xff\xfe" + (2 + gap + len(one_scan)).to_bytes(2) + bytes(gap) + one_scan
    return content[:frame] + b"\xff" + content[frame : end - 1] + comment + content[end - 1 :]


def jpeg_after(start):
    """Return a JPEG with these bytes before its first segment."""
    content = saved(Image.new("L", (8, 8)), "JPEG")
    return content[:2] + start + content[2:]


def gif_of_comments(count):
    content = saved(Image.new("L", (8, 8)), "GIF")
    return content[:-1].replace(b",", b"!\xfe\x01x\0" * count + b",", 1) + content[-1:]


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth=8, colour=2, body=b"", before=b"", packed=None):
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    data = png_chunk(b"IDAT", zlib.compress(body) if packed is None else packed)
    return b"\x89PNG\r\n\x1a\n" + header + before + data + png_chunk(b"IEND", b"")


def tall_png(height=50_000_000):
    """Return a 16-bit grey PNG of one column, whose rows take a thousand times the bytes of the file."""
    return png(1, height, 16, 0, packed=deflated_zeros(3 * height))


def deflated_zeros(count):
    """Return what unpacks to zeros, up to the next multiple of a million."""
    packer, count = zlib.compressobj(9, wbits=-15), -(-count // 10**6)
    million = packer.compress(bytes(10**6)) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = (count * 10**6 % 65521) << 16 | 1  # Adler-32
    return b"\x78\x9c" + million * count + b"\x03\0" + struct.pack(">I", checksum)


def webp_of(width, height):
    """Return a WebP of one colour: 34 bytes for any size."""
    bits = 0x2F | (width - 1) << 8 | (height - 1) << 22
    for place in range(5):  # five codes of one symbol, after no transform, no cache and no meta codes
        bits |= 1 << 40 + 3 + 4 * place
    body = bits.to_bytes(14, "little")
    return b"RIFF" + struct.pack("<I", 12 + len(body)) + b"WEBPVP8L" + struct.pack("<I", len(body)) + body


def tiff(tags, data=b""):
    """Return a little-endian TIFF of one directory of (tag, type, count, value); None is the place of `data`."""
    place = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", *tag[:3], place if tag[3] is None else tag[3]) for tag in tags)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4) + data


def tiff_of_strips(count):
    """Return a TIFF of 16 × 16 pixels that lists many strips."""
    tags = [(256, 3, 1, 16), (257, 3, 1, 16), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 3, count, None)]
    return tiff([*tags, (277, 3, 1, 1), (278, 3, 1, 1), (279, 3, count, None)], b"\x10\0" * count)


def tiff_and_im(width, height):
    """Return a TIFF of 4 × 4 pixels that is an IM file of another size too."""
    tags = [(256, 3, 1, 4), (257, 3, 1, 4), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 600)]
    content = tiff([*tags, (277, 3, 1, 1), (278, 3, 1, 4), (279, 4, 1, 16)])
    text = b"II*\0" + struct.pack("<I", 300) + b": x\r\nImage type: Greyscale image\r\n"
    text += b"Image size (x*y): %d*%d\r\nFile size (no of images): 1\r\n\x1a" % (width, height)
    return (text.ljust(300, b"\0") + content[8:]).ljust(2000, b"\0")


def ppm_of_comments(count):
    return b"P6\n" + b"#\n" * count + b"1 1 255\n\0\0\0"


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n0 0 10 10 rectfill\nshowpage\n%%EOF\n"


def images():
    """Return images that must be refused, by name."""
    return {
        "JPEG of a million scans": jpeg_of_scans(1_000_000),
        "JPEG of hidden scans": jpeg_of_scans(6000, side=2000, hidden=True),
        "JPEG of two readings": jpeg_of_two_readings(6000),
        "JPEG of a million Exif segments": jpeg_after(b"\xff\xe1\0\x09Exif\0\0x" * 1_000_000),
        "JPEG of ten million fill bytes": jpeg_after(b"\xff" * 10_000_000),
        "GIF of a million comments": gif_of_comments(1_000_000),
        "PNG of a million chunks": png(1, 1, 8, 0, bytes(2), before=png_chunk(b"abCd", b"") * 1_000_000),
        "PNG of one column": tall_png(),
        "TIFF of a million strips": tiff_of_strips(1_000_000),
        "PPM of comments": ppm_of_comments(1_000_000),
        "PostScript": POSTSCRIPT,
        "WebP of 16,384²": webp_of(16_384, 16_384),
    }


def npy(shape, descr="<f4", body=b""):
    """Return an array file that claims a shape."""
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    header = header.ljust(-(-(len(header) + 11) // 64) * 64 + 53) + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + body


def npz(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def mat_element(kind, body):
    return struct.pack("<II", kind, len(body)) + body + bytes(-len(body) % 8)


def mat(*elements):
    """Return a MAT-file of these elements."""
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM" + b"".join(elements)


def mat_cell(*inside, name=b""):
    flags, shape = struct.pack("<II", 1, 0), struct.pack("<ii", 1, len(inside))
    return mat_element(14, mat_element(6, flags) + mat_element(5, shape) + mat_element(1, name) + b"".join(inside))


def nested_mat(depth=4000):
    """Return a MAT-file of cells inside each other."""
    cell = b""
    for _ in range(depth):
        cell = mat_cell(cell) if cell else mat_cell()
    return mat(cell)


def packed_mat(size=2 * 10**9, parts=1):
    """Return a MAT-file whose elements unpack to this many bytes together."""
    body = deflated_zeros(size // parts)
    return mat(*[struct.pack("<II", 15, len(body)) + body] * parts)


def wide_csv(columns=40_000):
    header = ",".join(f"column {number}" for number in range(columns))
    return f"{header}\n{',' * (columns - 1)}\n"


def data_files():
    """Return data files that must be refused, by their names."""
    labels = npy((2,), "<i8", bytes(16))
    return {
        "none.npz": npz(features=npy((0, 16)), labels=npy((0,), "<i8")),
        "overflow.npz": npz(features=npy((2**40, 2**40)), labels=labels),
        "large.npz": npz(features=npy((2**34, 16)), labels=labels),
        "negative.npz": npz(features=npy((-1, 16)), labels=labels),
        "columns.csv": wide_csv().encode(),
        "cars_annos_nested/cars_annos.mat": nested_mat(),
        "cars_annos_packed/cars_annos.mat": packed_mat(),
        "cars_annos_parts/cars_annos.mat": packed_mat(parts=100),
    }


def make_pipe(path):
    """Make a named pipe, and a link to it at `path`."""
    pipe = path.with_name(f"{path.name}.pipe")
    os.mkfifo(pipe)
    path.symlink_to(pipe)
