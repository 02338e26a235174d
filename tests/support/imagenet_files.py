"""ImageNet and its segmentations in small, in the layouts that are published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from data_files import SIZE, noise
from vitreous.datasets.class_tables import wnids


def as_table(images: Any, masks: Any, names: Any) -> dict[str, Any]:
    """The file as MATLAB writes it: cells are references, and every array is turned."""
    file: dict[str, Any] = {}
    for index, (image, mask, name) in enumerate(zip(images, masks, names, strict=True)):
        file[f"i{index}"] = image.transpose(2, 1, 0)
        file[f"m{index}"] = mask.T
        file[f"c{index}"] = np.array([[f"m{index}"]], object)
        file[f"n{index}"] = np.array([[ord(letter)] for letter in name], np.uint16)
    for name, letter in (("img", "i"), ("gt", "c"), ("id", "n")):
        file[f"value/{name}"] = np.array([[f"{letter}{index}"] for index in range(len(images))], object)
    return file


VAL = "ILSVRC2012_val_{:08d}.JPEG"


def imagenet_s(root: Path, kinds: list[int], several: bool = False) -> None:
    """Pictures whose left half is their class, with a border of ignored pixels and, perhaps, another class."""
    for number, wnid in enumerate(sorted(wnids()[kind] for kind in kinds), 1):
        noise(root / "validation" / wnid / VAL.format(number), number)
        numbers = np.zeros((SIZE[1], SIZE[0]), int)
        numbers[:, :20] = number
        numbers[:, 20:24] = 1000
        if several:
            numbers[:, 30:] = number % len(kinds) + 1
        mask = np.stack([numbers % 256, numbers // 256, np.zeros_like(numbers)], axis=2).astype(np.uint8)
        place = root / "validation-segmentation" / wnid / VAL.format(number).replace("JPEG", "png")
        place.parent.mkdir(parents=True)
        Image.fromarray(mask).save(place)


def segments(write: Any) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(0)
    output = [rng.integers(0, 255, (SIZE[1], SIZE[0], 3), dtype=np.uint8) for _ in range(2)]
    masks = [(rng.random((SIZE[1], SIZE[0])) > 0.5).astype(np.uint8) for _ in range(2)]
    write(output, masks, ["n01440764_12", "n00000001_3"])
    return output, masks


def write_segments(path: Path, *parts: Any) -> None:
    import h5py  # type: ignore[import-not-found]

    with h5py.File(path, "w") as file:
        message = as_table(*parts)
        for name in sorted(message, key=lambda name: ("/" in name, name[0] == "c")):
            value = message[name]
            if value.dtype == object:
                cells = np.array([[file[item].ref] for item in value[:, 0]], h5py.ref_dtype)
                file.create_dataset(name, data=cells, dtype=h5py.ref_dtype)
            else:
                file[name] = value
