"""Every method against its definition, written slowly over a hand-made forward, on every family of models."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import reference_vit
import vitreous as vt
from families import FAMILIES, images
from reference_forward import TARGET, Reference, reference_of


@pytest.fixture(params=FAMILIES)
def reference(request: pytest.FixtureRequest) -> Reference:
    return reference_of(request.param)


def chain(reference: Reference, matrices: list[Tensor], first: Tensor | None) -> Tensor:
    """The row of the full matrix product that the head reads; ``first`` is the row of attention pooling."""
    product = torch.eye(matrices[0].shape[-1], dtype=torch.float64).expand(2, -1, -1)
    for matrix in matrices:
        product = matrix @ product
    if first is not None:
        return (first.unsqueeze(1) @ product)[:, 0]
    return torch.stack([product[:, row] for row in reference.rows()]).mean(dim=0)


def test_raw_attention(reference):
    run = reference.run
    if run.pool is not None:
        expected = run.pool.mean(dim=1)[:, 0]
    else:
        expected = torch.stack([run.attention[-1][:, :, row] for row in reference.rows()]).mean(dim=(0, 2))
    reference.check("raw_attention", expected)


@pytest.mark.parametrize("start", [0, 1])
def test_rollout(reference, start):
    matrices = []
    for attention in reference.run.attention[start:]:
        mixed = attention.mean(dim=1) + torch.eye(attention.shape[-1], dtype=torch.float64)
        matrices.append(mixed / mixed.sum(dim=-1, keepdim=True))
    pool = reference.run.pool
    first = None if pool is None else pool.mean(dim=1)[:, 0]
    reference.check(f"rollout(start={start})", chain(reference, matrices, first))


@pytest.mark.parametrize("start", [0, 1])
def test_generic(reference, start):
    def relevance(attention: Tensor) -> Tensor:
        return torch.relu(attention * reference.gradient(attention)).mean(dim=1)

    matrices = [relevance(attention) for attention in reference.run.attention[start:]]
    steps = [matrix + torch.eye(matrix.shape[-1], dtype=torch.float64) for matrix in matrices]
    pool = reference.run.pool
    first = None if pool is None else relevance(pool)[:, 0]
    reference.check(f"generic(start={start})", chain(reference, steps, first))


def test_attcam(reference):
    run, prefix = reference.run, reference.prefix
    attention = run.attention[-1] if run.pool is None else run.pool
    gradient = reference.gradient(attention)
    rows = reference.rows() if run.pool is None else [0]
    maps = []
    for row in rows:
        weight = gradient[:, :, row, prefix:].mean(dim=-1)
        maps.append((weight.unsqueeze(-1) * attention[:, :, row]).mean(dim=1))
    reference.check("attcam", torch.stack(maps).mean(dim=0))


def test_attgrad(reference):
    run = reference.run
    attention = run.attention[-1] if run.pool is None else run.pool
    gradient = reference.gradient(attention).mean(dim=1)
    rows = reference.rows() if run.pool is None else [0]
    reference.check("attgrad", gradient[:, rows].mean(dim=1))


def discarded(matrix: Tensor, share: float, spare_first: bool) -> Tensor:
    """Drop the weakest entries one by one."""
    visible = matrix.clone()
    for image in visible:
        flat = image.view(-1)
        order = sorted(range(len(flat)), key=lambda i: flat[i].item())
        for index in order[: int(len(flat) * share)]:
            if index or not spare_first:
                flat[index] = 0
    return visible


@pytest.mark.parametrize("heads", ["mean", "max", "min"])
@pytest.mark.parametrize("normalise", ["row", "released"])
def test_rollout_with_fusion_and_discarding(reference, heads, normalise):
    fuse = {"mean": lambda a: a.mean(dim=1), "max": lambda a: a.amax(dim=1), "min": lambda a: a.amin(dim=1)}[heads]
    matrices = []
    for attention in reference.run.attention:
        mixed = discarded(fuse(attention.detach()), 0.4, True) + torch.eye(attention.shape[-1], dtype=torch.float64)
        sums = mixed.sum(dim=-1)
        matrices.append(mixed / (sums[:, :, None] if normalise == "row" else sums[:, None, :]))
    pool = reference.run.pool
    first = None if pool is None else pool.mean(dim=1)[:, 0]
    spec = f"rollout(heads={heads}, discard=0.4, normalise={normalise})"
    reference.check(spec, chain(reference, matrices, first))


def test_gradient_rollout(reference):
    def product(attention: Tensor) -> Tensor:
        return torch.relu((attention * reference.gradient(attention)).mean(dim=1))

    matrices = []
    for attention in reference.run.attention:
        mixed = product(attention) + torch.eye(attention.shape[-1], dtype=torch.float64)
        matrices.append(mixed / mixed.sum(dim=-1, keepdim=True))
    pool = reference.run.pool
    reference.check("grad_rollout", chain(reference, matrices, None if pool is None else product(pool)[:, 0]))


def test_gradsam(reference):
    products = [a * torch.relu(reference.gradient(a)) for a in reference.run.attention]
    complete = torch.stack(products).mean(dim=(0, 2))  # blocks and heads
    reference.check("gradsam", complete.mean(dim=1))
    reference.check("gradsam(reduce=keys)", complete.mean(dim=2))
    reference.check("gradsam(reduce=row)", complete[:, reference.rows()].mean(dim=1))


def outputs(reference: Reference) -> list[Tensor]:
    return [*reference.run.inputs[1:], reference.run.last]


def test_class_activation_tokens(reference):
    run = reference.run
    received = [attention.mean(dim=(1, 2)) for attention in run.attention]
    at_input = [(x * reference.gradient(x)).sum(dim=-1) for x in run.inputs]
    at_output = [(x * reference.gradient(x)).sum(dim=-1) for x in outputs(reference)]
    reference.check("cat", sum(at_input))
    reference.check("attcat@released", sum(a * t for a, t in zip(received, at_input, strict=True)))
    reference.check("attcat", sum(a * t for a, t in zip(received, at_output, strict=True)))
    reference.check("attixg(layer=1)", received[1] * at_output[1] if reference.depth > 2 else received[1] * 0)
    pairs = list(zip(received, at_output, strict=True))[:-1]
    reference.check("plus(attixg)", sum(a * t for a, t in pairs))


def test_legrad(reference):
    """Each block alone, its mean output token through the final norm and the head."""
    model, terms = reference.model, []
    for x, module in zip(reference.run.inputs, model.blocks, strict=True):
        run = reference_vit.Run(torch.empty(0))
        mean = reference_vit.block(module, x.detach(), run).mean(dim=1, keepdim=True)
        logits = reference_vit.finish(model, mean.expand(-1, model.num_prefix_tokens + 1, -1), run)
        gradient = torch.autograd.grad(logits[:, TARGET].sum(), run.attention[0])[0]
        terms.append(torch.relu(gradient).mean(dim=(1, 2)))
    reference.check("legrad", sum(terms))
    reference.check("legrad(last=1)", terms[-1])


def best_flow(capacity: dict[tuple[int, int], float], source: int, sink: int) -> float:
    """Edmonds and Karp: breadth-first paths, as long as there are any."""
    residual = dict(capacity)
    total = 0.0
    while True:
        before, queue = {source: source}, [source]
        for node in queue:
            for (tail, head), left in residual.items():
                if tail == node and head not in before and left > 1e-12:
                    before[head] = node
                    queue.append(head)
        if sink not in before:
            return total
        path, node = [], sink
        while node != source:
            path.append((before[node], node))
            node = before[node]
        most = min(residual[edge] for edge in path)
        for tail, head in path:
            residual[tail, head] -= most
            residual[head, tail] = residual.get((head, tail), 0.0) + most
        total += most


@pytest.mark.parametrize("family", ["vit", "gap"])
def test_attention_flow(family):
    pytest.importorskip("scipy")
    model = FAMILIES[family]().double()
    model.blocks = model.blocks[:2]
    x = images(model, 1)
    run, prefix = reference_vit.forward(model, x), model.num_prefix_tokens
    tokens = run.inputs[0].shape[1]
    capacity = {}
    for layer, attention in enumerate(run.attention):
        mixed = (attention.mean(dim=1)[0] + torch.eye(tokens, dtype=torch.float64)) / 2
        for i in range(tokens):
            for j in range(tokens):
                capacity[(layer + 1) * tokens + i, layer * tokens + j] = mixed[i, j].item()
    read = [0] if family == "vit" else range(tokens)
    capacity |= {(3 * tokens, 2 * tokens + i): 1 / len(read) for i in read}
    actual = vt.get_method("attention_flow").attribute(model, x).flatten()
    for patch in (0, 5, 15):
        expected = best_flow(capacity, 3 * tokens, prefix + patch)
        assert actual[patch].item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("layer", [0, 1, -1])
def test_token_gradients(reference, layer):
    x = reference.run.inputs[layer]
    gradient = reference.gradient(x)
    reference.check(f"ixg(layer={layer})", (x * gradient).sum(dim=-1))
    reference.check(f"gradient(layer={layer})", gradient.square().sum(dim=-1).sqrt())


@pytest.mark.parametrize("layer", [0, -1])
def test_cams(reference, layer):
    features = reference.run.norm1[layer]
    gradient = reference.gradient(features)
    weight = gradient[:, reference.prefix :].mean(dim=1, keepdim=True)
    reference.check(f"gradcam(layer={layer})", (features * weight).sum(dim=-1))
    reference.check(f"hirescam(layer={layer})", (features * gradient).sum(dim=-1))


def test_pixel_gradients(reference):
    gradient = reference.gradient(reference.watched)
    reference.check("saliency", gradient.abs().sum(dim=1))
    reference.check("input_x_gradient", (reference.images * gradient).sum(dim=1))


def test_integrated_gradients(reference):
    """Gauss-Legendre with three nodes, written out."""
    nodes = [(0.5 - math.sqrt(15) / 10, 5 / 18), (0.5, 4 / 9), (0.5 + math.sqrt(15) / 10, 5 / 18)]
    x, baseline = reference.images, 0.25
    total = torch.zeros_like(x)
    for time, weight in nodes:
        point = (baseline + time * (x - baseline)).requires_grad_()
        score = reference_vit.forward(reference.model, point).logits[:, TARGET].sum()
        total += weight * torch.autograd.grad(score, point)[0]
    reference.check("integrated_gradients(steps=3, baseline=0.25)", ((x - baseline) * total).sum(dim=1))


def layer_terms(reference: Reference, base: str) -> list[Tensor]:
    """The table of layer terms in the sheet, block by block."""
    terms = []
    for x, attention in zip(reference.run.inputs, reference.run.attention, strict=True):
        if base in ("ixg", "hirescam"):
            terms.append((x * reference.gradient(x)).sum(dim=-1))
        elif base == "gradcam":  # channel weights over all tokens, prefix included
            terms.append((x * reference.gradient(x).mean(dim=1, keepdim=True)).sum(dim=-1))
        elif base == "generic":
            relevance = torch.relu(attention * reference.gradient(attention)).mean(dim=1)
            terms.append(relevance[:, reference.rows()].mean(dim=1))
        elif base in ("raw_attention", "rollout"):
            terms.append(attention.mean(dim=1)[:, reference.rows()].mean(dim=1))
    return terms


@pytest.mark.parametrize("base", ["ixg", "hirescam", "gradcam", "generic", "raw_attention", "rollout"])
def test_plus_and_skipplus_sum_layer_terms(reference, base):
    terms = layer_terms(reference, base)
    middle = math.ceil(reference.depth / 2)
    reference.check(f"plus({base})", sum(terms))
    reference.check(f"plus({base}, start=1)", sum(terms[1:]))
    reference.check(f"skipplus({base})", sum(terms[middle:]))


@torch.no_grad()
def test_skipplus_of_decompx(reference):
    classes = range(len(reference.images))
    shares = [
        torch.stack(
            [reference_vit.decompx(reference.model, reference.images[i : i + 1], layer)[:-1, TARGET] for i in classes]
        )
        for layer in range(math.ceil(reference.depth / 2), reference.depth)
    ]
    reference.check("skipplus(decompx)", sum(shares))


@pytest.mark.parametrize("base", ["ixg", "gradient", "decompx", "generic", "saliency", "ig(steps=2)"])
def test_plus_via_subnetworks_is_the_sum_of_separate_runs(reference, base):
    """Equation 3 to the letter: the base on each sub-network, fed with the detached input of that block."""
    model = vt.wrap(reference.model)
    method = vt.get_method(base)
    expected = sum(
        method.attribute(model.suffix(layer), x.detach(), target=TARGET) for layer, x in enumerate(reference.run.inputs)
    )
    reference.check(f"plus({base}, via=subnetwork)", expected)


@pytest.mark.parametrize("base", ["ixg", "gradient", "decompx"])
def test_layer_terms_of_token_methods_are_the_subnetworks(reference, base):
    free = vt.get_method(f"plus({base})").attribute(reference.model, reference.images, target=TARGET)
    reference.check(f"plus({base}, via=subnetwork)", free)


def test_plus_returns_its_layers(reference):
    actual, extras = vt.get_method("plus(ixg)").attribute(reference.model, reference.images, TARGET, extras=True)
    assert extras["layers"].shape == (2, reference.depth, *actual.shape[1:])
    assert torch.equal(extras["layers"].sum(dim=1), actual)


def test_smooth_is_the_mean_over_the_noisy_copies(reference):
    """The copies are the only hidden thing: take them from what enters the model."""
    seen: list[Tensor] = []
    handle = reference.model.patch_embed.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    x = reference.images
    try:
        actual, extras = vt.get_method("smooth(ixg, samples=3, sigma=0.1)").attribute(
            reference.model, x, TARGET, extras=True
        )
    finally:
        handle.remove()
    copies = [c for c in seen if not any(torch.equal(item, image) for item in c for image in x)]
    copies = torch.cat(copies).reshape(2, 3, *x.shape[1:])
    maps = torch.stack([vt.get_method("ixg").attribute(reference.model, c, TARGET) for c in copies.unbind(dim=1)])
    assert torch.allclose(actual, maps.mean(dim=0), atol=1e-10)
    assert torch.allclose(extras["deviation"], maps.std(dim=0, correction=0), atol=1e-10)
    noise = copies - x.unsqueeze(1)
    span = x.flatten(1).amax(dim=1) - x.flatten(1).amin(dim=1)
    assert noise.flatten(1).std(dim=1) == pytest.approx(0.1 * span, rel=0.05)
    assert noise.flatten(1).mean(dim=1).abs().max() < 0.02


def test_controls(reference):
    actual = vt.get_method("centre").attribute(reference.model, reference.images)
    height, width = actual.shape[1:]
    for i in range(height):
        for j in range(width):
            down, columns = 2 * i / (height - 1) - 1, 2 * j / (width - 1) - 1
            assert actual[0, i, j].item() == pytest.approx(1 - math.hypot(down, columns) / math.sqrt(2), abs=1e-6)
    assert (vt.get_method("constant").attribute(reference.model, reference.images) == 1).all()
    noise = vt.get_method("random").attribute(reference.model, reference.images)
    assert (noise >= 0).all()
    assert (noise < 1).all()
    assert not torch.equal(noise[0], noise[1])


def test_edges_are_where_brightness_changes():
    model = FAMILIES["vit"]()
    image = torch.zeros(1, 3, 32, 32)
    image[:, :, :, 16:] = 2.0
    actual = vt.get_method("edges").attribute(model, image)[0]
    assert actual.shape == (32, 32)
    assert (actual[:, 15:17] == 1.0).all()  # Sobel / 8: half the step per pixel on both sides of it
    assert (actual[:, :15] == 0).all()
    assert (actual[:, 17:] == 0).all()


def test_the_sum_of_token_gradients_is_refused_because_it_is_zero():
    """A pre-norm model does not see a constant added to a token; the reference shows it, the method says it."""
    reference = reference_of("vit")
    gradient = reference.gradient(reference.run.inputs[0])
    assert gradient.sum(dim=-1).abs().max() < 1e-12 < gradient.abs().max()
    with pytest.raises(vt.VitreousError, match="LayerNorms remove the mean"):
        vt.get_method("gradient(reduction=sum)").attribute(reference.model, reference.images)
