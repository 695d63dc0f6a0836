"""Small real images, tars and tables, written for readers to open."""

import csv
import tarfile

from PIL import Image


def write_image(path, shade=0, size=(6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, 0, 0)).save(path)


def pack(folder, path, mode="w"):
    with tarfile.open(path, mode) as tar:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                tar.add(file, file.relative_to(folder).as_posix())
    return path


def write_table(path, rows):
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path
