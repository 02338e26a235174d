"""How a model pools is found from what it does, not from what its class usually does."""

from __future__ import annotations

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import vitreous as vt
from families import FAMILIES, images
from modified_models import MORE, expect_same_or_refused, model
from vitreous.errors import VitreousError


class Averaging(VisionTransformer):
    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(self.fc_norm(x[:, self.num_prefix_tokens :].mean(dim=1)))


class Weighing(VisionTransformer):
    """Reads a sum of patches whose weights fall off."""

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        weights = torch.linspace(1, 0.1, x.shape[1] - 1).to(x)
        return self.head(torch.einsum("bnd,n->bd", x[:, 1:], weights))


class Largest(VisionTransformer):
    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(x[:, 1:].amax(dim=1))


class Attending(VisionTransformer):
    """Weights that follow from the tokens: all equal as long as the tokens are."""

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        weights = (x[:, 1:] * x[:, :1]).sum(dim=-1, keepdim=True).softmax(dim=1)
        return self.head((weights * x[:, 1:]).sum(dim=1))


def pooled_by_average() -> nn.Module:
    """The same weights, in a model that says how it pools."""
    reference = model()
    reference.global_pool = "avg"
    return reference


def test_an_average_in_a_subclass() -> None:
    odd = model()
    odd.__class__ = Averaging
    assert not expect_same_or_refused(odd, pooled_by_average(), MORE, must=MORE)
    sentence = {c.name: c for c in vt.diagnose(odd).checks}["hooks, adapters and code of its own"].sentence
    assert sentence.endswith("Pooling as it is found: avg")


@pytest.mark.parametrize("kind", [Weighing, Largest, Attending])
def test_a_pooling_that_is_not_known(kind: type) -> None:
    odd = model()
    odd.__class__ = kind
    x = images(odd, 1)
    for spec in ("generic", "rollout", "attin", "raw_attention", "tam"):
        with pytest.raises(VitreousError, match=r"reads \d+ of 17 tokens in a way that is not known"):
            vt.get_method(spec).attribute(odd, x, target=1)
    for spec in ("ixg", "attcat", "gradcam"):
        assert torch.isfinite(vt.get_method(spec).attribute(odd, x, target=1)).all()
    diagnosis = vt.diagnose(odd)
    sentence = {check.name: check for check in diagnosis.checks}["hooks, adapters and code of its own"].sentence
    assert "in a way that is not known" in sentence
    assert {check.name: check.verdict for check in diagnosis.methods}["generic"] == "failed"


def test_a_view_follows_its_model() -> None:
    """A view made before the change, and after it was taken back."""
    odd = model()
    vision_model, x = vt.wrap(odd), images(odd, 1)
    first = vt.get_method("generic").attribute(vision_model, x, target=1)
    odd.__class__ = Averaging
    changed = vt.get_method("generic").attribute(vision_model, x, target=1)
    assert torch.equal(changed, vt.get_method("generic").attribute(pooled_by_average(), x, target=1))
    odd.__class__ = VisionTransformer
    assert torch.equal(vt.get_method("generic").attribute(vision_model, x, target=1), first)
    odd.global_pool = "avg"  # a setting that forward_head reads
    assert torch.equal(vt.get_method("generic").attribute(vision_model, x, target=1), changed)


@pytest.mark.parametrize("family", ["siglip", "deit_distilled", "gap", "registers"])
def test_a_subclass_that_pools_as_before(family: str) -> None:
    odd = FAMILIES[family]()
    usual = vt.wrap(odd).pooling.kind
    odd.__class__ = type("Mine", (type(odd),), {"__module__": __name__})
    model = vt.wrap(odd)
    model.verify(images(odd, 1))
    assert model.pooling.kind == usual
    assert torch.equal(
        vt.get_method("generic").attribute(model, images(odd, 1), 1),
        vt.get_method("generic").attribute(FAMILIES[family](), images(odd, 1), 1),
    )
