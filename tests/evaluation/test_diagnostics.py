"""The diagnosis finds healthy models healthy and describes what is wrong with the others."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import vitreous as vt
from commands import run
from families import FAMILIES
from zoo import ALL, CNNS

NAMES = [
    "the model can be wrapped",
    "the wrapped forward equals the model's own",
    "attention in every block, rows sum to one",
    "declared rule counts are met",
    "hooks, adapters and code of its own",
    "contributions add up to what attention adds",
    "gradients reach every block",
    "keeping all tokens changes nothing",
    "sub-networks agree",
    "preprocessing",
    "class names",
]


@pytest.mark.parametrize("family", ALL)
def test_every_family_is_healthy(family):
    model = vt.wrap(ALL[family]())
    result = vt.diagnose(model)
    assert [check.name for check in result.checks] == NAMES
    failed = [check for check in result.checks if check.verdict == "failed"]
    assert not failed, failed
    assert result.healthy
    verdicts = {check.name: check.verdict for check in result.checks}
    assert (verdicts["attention in every block, rows sum to one"] == "-") == (model.attention != "global")
    assert (verdicts["keeping all tokens changes nothing"] == "ok") == model.can_drop_tokens
    applies = {check.name: check for check in result.methods}
    assert set(applies) == {info.name for info in vt.list_methods()}
    assert applies["ixg"].verdict == applies["gradcam"].verdict == "ok"
    assert applies["integrated_gradients"].verdict == "-"
    assert applies["decompx"].verdict == applies["generic"].verdict == ("failed" if family in CNNS else "ok")
    assert (applies["globenc"].verdict == "failed") == (model.attention != "global")
    if model.attention == "windowed":
        assert "windows" in applies["globenc"].sentence


def verdict(result, name):
    (check,) = [check for check in result.checks if check.name == name]
    return check


def test_an_unknown_module_gets_advice():
    result = vt.diagnose(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)))
    assert not result.healthy
    assert "Write an adapter" in result.checks[0].sentence
    assert "Sequential" in result.model


def test_a_forward_that_the_view_does_not_follow():
    class Odd(type(FAMILIES["vit"]())):
        def forward(self, x, **options):
            return 2 * super().forward(x, **options)

    model = FAMILIES["vit"]()
    model.__class__ = Odd
    result = vt.diagnose(model)
    assert "logits differ" in verdict(result, "the wrapped forward equals the model's own").sentence
    assert "something else than its parts" in verdict(result, "sub-networks agree").sentence


def test_an_activation_that_no_rule_knows():
    model = FAMILIES["vit"]()
    model.blocks[0].mlp.act = nn.Mish()
    result = vt.diagnose(model)
    assert "saw 0 activation calls in block 0" in verdict(result, "declared rule counts are met").sentence
    assert {check.name: check.verdict for check in result.methods}["decompx"] == "failed"
    assert {check.name: check.verdict for check in result.methods}["ixg"] == "ok"


def test_a_cut_gradient():
    model = FAMILIES["vit"]()
    model.blocks[1].register_forward_hook(lambda module, args, out: out.detach())
    result = vt.diagnose(model)
    assert verdict(result, "gradients reach every block").verdict == "failed"


def test_a_head_of_zeros():
    model = FAMILIES["vit"]()
    nn.init.zeros_(model.head.weight)
    assert "is the head untrained" in verdict(vt.diagnose(model), "gradients reach every block").sentence


def test_weights_that_are_not_finite():
    model = FAMILIES["vit"]()
    with torch.no_grad():
        model.head.weight[0, 0] = float("nan")
    result = vt.diagnose(model)
    assert not result.healthy


def test_a_model_that_raises_gets_no_traceback():
    model = FAMILIES["vit"]()
    model.blocks[0].attn.qkv.register_forward_hook(lambda *a: 1 / 0)
    result = vt.diagnose(model)
    assert "ZeroDivisionError" in verdict(result, "the wrapped forward equals the model's own").sentence


def test_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("diagnose", "timm/test_vit", "--no-pretrained", "--img-size", "32")
    assert (done.code, done.err) == (0, "")
    assert all(name in done.out for name in NAMES)
    assert "healthy" in done.out
    report = json.loads(run("diagnose", "timm/test_vit", "--no-pretrained", "--img-size", "32", "--json").out)
    assert report["schema"] == "vitreous.diagnose/1"
    assert report["healthy"] is True
    assert [check["name"] for check in report["checks"]] == NAMES
    assert run("diagnose", "timm/regnetx_002", "--no-pretrained").code == 2
