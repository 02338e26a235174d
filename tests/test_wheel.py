"""The wheel holds what it should, and works in an environment where the source tree cannot be seen."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution
from importlib.util import find_spec
from pathlib import Path

import pytest

SNIPPET = """
import timm, torch
import vitreous as vt

model = timm.create_model(
    "vit_tiny_patch16_224", pretrained=False, depth=2, embed_dim=24, num_heads=3, img_size=32, num_classes=5
)
print(vt.get_method("generic").attribute(model, torch.rand(1, 3, 32, 32)).shape)
"""

MODELS = ("world", "world-shortcut", "world-cnn", "world-cnn-shortcut")
BUNDLED = (*(f"{name}.safetensors" for name in MODELS), "training.json", "README.md")

SCENE = """
import vitreous as vt
from vitreous.world import Scene, render

scene = Scene.of(2)
images = render(scene).images * 2 - 1
said = {name: vt.load(name).class_names[int(vt.load(name).logits(images).argmax())] for name in ("world", "world-cnn")}
print(set(said.values()) == {scene.name})
"""


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints, run without any of the variables that could show it the source tree."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, root, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel in it, which borrows the dependencies of this one.

    They are borrowed by a `.pth` line. Python does not look for further `.pth` files in a directory added
    that way, so an editable installation of Vitreous out here stays invisible in there.
    """
    home = tmp_path_factory.mktemp("environment") / "venv"
    run(sys.executable, "-m", "venv", home, cwd=home.parent)
    python = scripts(home) / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=home.parent)

    borrowed = set()
    for name in ("torch", "timm", "numpy", "typer"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        borrowed.add(Path(spec.origin).parents[1])
    point = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home.parent).strip()
    Path(point, "borrowed.pth").write_text("".join(f"{path}\n" for path in sorted(borrowed)), encoding="utf-8")
    return home


def scripts(home: Path) -> Path:
    return home / ("Scripts" if os.name == "nt" else "bin")


def test_contents(wheel: Path, root: Path) -> None:
    source = root / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "vitreous").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    inside = {name for name in names if ".dist-info/" not in name}
    assert "vitreous/py.typed" in inside
    bundled = {f"vitreous/world/weights/{name}" for name in BUNDLED}
    assert bundled <= inside
    assert inside == expected
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_installed(environment: Path, tmp_path: Path) -> None:
    python = scripts(environment) / "python"
    actual = run(python, "-c", "import vitreous; print(vitreous.__file__)", cwd=tmp_path).strip()
    assert Path(actual).resolve().is_relative_to(environment.resolve())

    (info,) = Path(actual).parents[1].glob("vitreous-*.dist-info")
    version = PathDistribution(info).version
    assert version in run(scripts(environment) / "vitreous", "--version", cwd=tmp_path)
    assert "explain" in run(python, "-m", "vitreous", "--help", cwd=tmp_path)
    assert run(python, "-c", SNIPPET, cwd=tmp_path).splitlines()[-1] == "torch.Size([1, 2, 2])"
    assert run(python, "-c", SCENE, cwd=tmp_path).splitlines()[-1] == "True"
