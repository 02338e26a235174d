"""COCO in small: photographs, boxes and masks in the layout of its files."""

from __future__ import annotations

import json
from pathlib import Path

from data_files import SIZE, noise


def coco(root: Path, view_sized: tuple[int, int] = SIZE) -> None:
    width, height = view_sized
    for number in (3, 8):
        noise(root / "val2017" / f"{number:012d}.jpg", number)
    runs = [width * height // 2, width * height - width * height // 2]
    things = [
        (3, 1, {"segmentation": [[0, 0, 20, 0, 20, 32, 0, 32]], "area": 640, "bbox": [0, 0, 20, 32]}),
        (
            3,
            1,
            {
                "segmentation": {"counts": runs, "size": [height, width]},
                "area": 640,
                "bbox": [20, 0, 20, 32],
                "iscrowd": 1,
            },
        ),
        (3, 2, {"segmentation": [[20, 0, 40, 0, 40, 32, 20, 32]], "area": 640, "bbox": [20, 0, 20, 32]}),
        (3, 9, {"segmentation": [[0, 0, 2, 0, 2, 2, 0, 2]], "area": 4, "bbox": [0, 0, 2, 2]}),
        (8, 7, {"segmentation": [[0, 0, 20, 0, 20, 20, 0, 20]], "area": 400, "bbox": [0, 0, 20, 20]}),
        (8, 9, {"segmentation": [[0, 0, 20, 0, 20, 20, 0, 20]], "area": 400, "bbox": [0, 0, 20, 20]}),
    ]
    message = {
        "images": [{"id": n, "file_name": f"{n:012d}.jpg", "width": width, "height": height} for n in (8, 3)],
        "annotations": [
            {"image_id": image, "category_id": kind, "iscrowd": 0, **others} for image, kind, others in things
        ],
        "categories": [
            {"id": n, "name": name} for n, name in ((1, "cat"), (2, "zebra"), (7, "giraffe"), (9, "banana"))
        ],
    }
    (root / "annotations").mkdir()
    (root / "annotations" / "instances_val2017.json").write_text(json.dumps(message))
