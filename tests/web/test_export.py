"""What is taken along from the explorer: files of what is on the screen, and lines that make it again."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from commands import run
from web_server import PAIR, SCENE, Answer, Client, decoded, refused, served, world

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


def saved(client: Client, form: str, *methods: str, **look: Any) -> Answer:
    questions = [{**PAIR, "method": method} for method in methods]
    answer = client.post("/api/download", {"format": form, "questions": questions, "look": look})
    assert answer.status == 200, answer
    assert re.fullmatch(r'attachment; filename="vitreous-[\w.-]+"', answer.headers["content-disposition"])
    return answer


# -- files -----------------------------------------------------------------------------------------------


def test_values(client: Client) -> None:
    message = client.tasks(*({**PAIR, "kind": "explain", "method": name} for name in ("ixg", "cat")))
    maps = [decoded(entry["map"]) for entry in message]
    assert np.array_equal(np.load(io.BytesIO(saved(client, "npy", "ixg").data)), maps[0])
    assert np.array_equal(np.load(io.BytesIO(saved(client, "npy", "ixg", "cat").data)), np.stack(maps))
    mixed = saved(client, "npy", "ixg", "saliency")
    assert mixed.headers["content-disposition"].endswith('.npz"')
    assert [entry.shape for entry in np.load(io.BytesIO(mixed.data)).values()] == [(16, 16), (128, 128)]


def test_a_picture_has_the_overlay_of_the_library(client: Client) -> None:
    """With the look that was asked for, as large as a tile."""
    from vitreous import viz as show

    (answer,) = client.tasks({**PAIR, "kind": "explain", "method": "ixg"})
    seen = Image.open(io.BytesIO(client.get(f"/api/pictures/{PAIR['picture']}?model=world").data))
    page = saved(client, "png", "ixg", opacity=0.8, clip=90, smooth=False, positive=True)
    picture = np.asarray(Image.open(io.BytesIO(page.data)).convert("RGB"))
    values = np.maximum(decoded(answer["map"]), 0)
    scale = show.Scale.of([values], 90.0, signed=False)
    expected = np.asarray(show.overlay(show.resized(seen, 360), values, scale, 0.8, None, "nearest"))
    places = np.lib.stride_tricks.sliding_window_view(picture[:, :, 0], (360,), axis=(1,))
    rows = [(y, x) for y in range(len(picture) - 360) for x in (30, 420) if (places[y, x] == expected[0, :, 0]).all()]
    assert any(np.array_equal(picture[y : y + 360, x : x + 360], expected) for y, x in rows)


def test_a_panel_has_text_as_text(client: Client) -> None:
    text = saved(client, "svg", "ixg", "rollout").data.decode()
    assert text.startswith("<?xml") or text.startswith("<svg")
    for words in ("ixg", "rollout", "slit-eyed corrick", "the same for every class"):
        assert words in text
    assert "<script" not in text


@pytest.mark.parametrize("shared", [True, False])
def test_a_page_fetches_nothing(client: Client, shared: bool) -> None:
    text = saved(client, "html", "ixg", "cat", shared=shared).data.decode()
    assert text.count("<img") == 3
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    assert "default-src 'none'" in text
    assert len(set(re.findall(r"clipped at[^<]*(?=</figcaption>)", text))) == (1 if shared else 2)


@pytest.mark.parametrize(
    "body",
    [
        {"format": "exe", "questions": [{**SCENE, "method": "ixg"}]},
        {"format": "png", "questions": []},
        {"format": "png", "questions": [{**SCENE, "method": "nonsense"}]},
        {"format": "png", "questions": [{**SCENE, "method": "ixg"}], "look": {"opacity": 7}},
        {"format": "png", "questions": [{**SCENE, "method": "ixg"}], "look": {"clip": "x"}},
        {"format": "png", "questions": [{**SCENE, "method": "ixg"}], "look": [1]},
        {"questions": [{**SCENE, "method": "ixg"}]},
    ],
)
def test_files_that_cannot_be(client: Client, body: Any) -> None:
    assert refused(client, "POST", "/api/download", body) == 422


# -- lines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["standard", "pairs", "shortcut", "moved", "difficult", "parts-removed"])
def test_the_lines_of_python_make_the_same_map(client: Client, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"model": "world-shortcut", "picture": f"scene-{kind}-4", "target": 5, "contrast": 9, "seed": 3}
    methods = ["ixg", "smooth(ixg, samples=2)"]
    lines = client.fine("/api/command", {"questions": [{**asked, "method": method} for method in methods]})["python"]
    monkeypatch.setattr(vt.Comparison, "show", lambda self: None)
    monkeypatch.setattr(vt, "load", lambda name: world(name), raising=False)
    names: dict[str, Any] = {}
    exec(lines, names)
    message = client.tasks(*({**asked, "kind": "explain", "method": method} for method in methods))
    for result, entry in zip(names["comparison"], message, strict=True):
        assert np.allclose(result.map, decoded(entry["map"]), atol=1e-6)


@pytest.mark.parametrize("kind", ["standard", "difficult"])
def test_the_commands_run_and_show_the_same_scene(
    client: Client, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    question = {"model": "world", "picture": f"scene-{kind}-6", "method": "ixg", "output": "prob", "target": 3}
    first, second = client.fine("/api/command", {"questions": [question]})["shell"].splitlines()
    for line in (first, second):
        program, *words = shlex.split(line)
        assert program == "vitreous"
        assert run(*words).code == 0
    rendered = next(entry for entry in map(Path, shlex.split(second)) if entry.suffix == ".png" and entry.parent.name)
    served_as = client.get(f"/api/pictures/{question['picture']}?model=world").data
    assert np.array_equal(Image.open(rendered), Image.open(io.BytesIO(served_as)))
    assert Path("maps.png").is_file()


def test_the_line_of_why(client: Client) -> None:
    render, why = map(shlex.split, client.task("why", method="ixg")["command"].splitlines())
    target = client.fine("/api/predict", SCENE)["top"][0]["index"]
    assert render[:3] == ["vitreous", "world", "render"]
    page = ["--model", "world", "--method", "ixg", "--target", str(target)]
    assert why == ["vitreous", "why", "scene-standard-3/scene-0000.png", *page]


def test_different_questions_have_lines_of_their_own(client: Client) -> None:
    picture = client.upload(Image.new("RGB", (50, 50), "blue"), "my%20photo;rm%20-rf.png")
    upload = {"model": "world", "picture": picture, "method": "generic"}
    answer = client.fine("/api/command", {"questions": [upload, {**SCENE, "method": "ixg"}, {**upload, "target": 1}]})
    assert answer["python"].count("vt.load") == 1
    assert answer["python"].count("vt.explain") == 3
    assert "'my photo;rm -rf.png'" in answer["python"]
    assert "'my photo;rm -rf.png'" in answer["shell"]
    assert answer["shell"].count("vitreous compare") == 3


def test_what_the_models_were_loaded_with_is_in_the_lines() -> None:
    options = {"checkpoint": "my weights.pt", "img_size": 128, "pretrained": False, "prompts": ["a", "b c"]}
    with served(load_options=options) as client:
        answer = client.fine("/api/command", {"questions": [{**SCENE, "method": "ixg"}]})
    assert (
        "vt.load('world', checkpoint='my weights.pt', img_size=128, pretrained=False, prompts=['a', 'b c'])"
        in answer["python"]
    )
    assert "--checkpoint 'my weights.pt' --img-size 128 --no-pretrained --prompt a --prompt 'b c'" in answer["shell"]
