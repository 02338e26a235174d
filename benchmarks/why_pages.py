"""Does a page of ``vitreous why`` say only what it shows? Every sentence compared with the numbers on the same page.

Run ``PYTHONPATH=src python benchmarks/why_pages.py --data FOLDER --images 20 --out pages``, with a folder as
``verdicts.py`` has it; without ``--data`` scenes of the bundled models. A page is written for every image, model and
target (the prediction, and the class after it), and all that contradicts itself is printed. ``contradictions`` reads
the page as a person does: its text, its pictures and its colours. The rules are written out here once more, on purpose.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import re
import warnings
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import vitreous as vt
from vitreous import viz

NUMBER = r"(?:under 0\.01|[\d.]+) %"


def worth(words: str) -> float:
    """Return the number that a percentage says; what is under all that can be printed is none."""
    return 0.0 if words.startswith("under") else float(words.removesuffix(" %"))


def printed(probability: float) -> float:
    share = 100 * probability
    return 0.0 if share < 0.01 else float(f"{share:.{0 if share >= 10 else 1 if share >= 1 else 2}f}")


def text_of(html: str) -> str:
    """Return what a person reads."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)))


def contradictions(report: Any, model: vt.VisionModel | None = None) -> list[str]:
    """Return what on the page of a decision report contradicts its own numbers, pictures or colours; best nothing.

    With its model, the pictures of the page are shown to it once more.
    """
    html = report.html()
    headline = [*_headline(report, html), *_map(report, html), *_findings(report, html)]
    if report.without is not None:
        headline += [*_test(report, html), *_verdict(report, html)]
        headline += [] if model is None else _predictions(report, html, model)
    return headline


def _headline(report: Any, html: str) -> Iterator[str]:
    e, text = report.explanation, text_of(html)
    predicted = e.target == e.prediction.target
    title = text_of(html[html.index("<h1>") : html.index("</h1>")])
    lead = text_of(html[html.index('class="lead"') : html.index('<div class="grid two">')])
    if (title.strip() == f"Why “{e.label}”?") != predicted:
        yield f"the title is {title!r}, but the model says {e.prediction.label}"
    if "decision" in text:
        yield "there is a decision on the page"
    if not predicted and f"says “{e.prediction.label}”" not in lead:
        yield "the headline does not say what the model predicts"
    if predicted and f"gives this picture {_words(report.probability)} {e.label}" not in lead:
        yield "the headline does not say what the model gives"
    if report.without is None and ("strongest" in lead or "same everywhere" not in lead):
        yield "a flat map has no strongest patches"


def _words(probability: float) -> str:
    number = printed(probability)
    return "under 0.01 %" if number == 0 and probability > 0 else f"{number:g} %" if number >= 10 or number == 0 else (
        f"{number:.1f} %" if number >= 1 else f"{number:.2f} %"
    )  # fmt: skip


def _test(report: Any, html: str) -> Iterator[str]:
    e, text = report.explanation, text_of(html)
    now, without, alone = map(printed, (report.probability, report.without.explained, report.alone.explained))
    cards = re.findall(r'<p class="note">([^<]*)</p><div class="big ?(\w*)">([^<]*)</div>', html)
    visible = [worth(unescape(chance)) for _, _, chance in cards]
    if visible != [now, without, alone]:
        yield f"the numbers are {visible}, not {[now, without, alone]}"
    for (caption, colour, _), element, answer in zip(
        cards[1:], visible[1:], (report.without, report.alone), strict=True
    ):
        wanted = "less" if element < 0.8 * now else "more" if element > 1.25 * now else ""
        if colour != wanted:
            yield f"{element} after {now} is coloured {colour!r}"
        still = answer.target == e.prediction.target
        if (": still “" in unescape(caption)) != still or f"“{answer.label}”" not in unescape(caption):
            yield f"the caption {caption!r} for class {answer.target}"
    counts = re.findall(rf"shape: median ({NUMBER}); (lower|higher) than at (\d+) of (\d+)", text)
    lead = text_of(html[html.index('class="lead"') : html.index('<div class="grid two">')])
    if not counts:
        return
    (low, _, lower, places), (upper, _, higher, _) = counts
    if (2 * int(lower) > int(places) and without >= worth(low)) or (
        2 * int(lower) < int(places) and without < worth(low)
    ):
        yield f"{without} is lower than at {lower} of {places}, whose median is {low}"
    if (2 * int(higher) > int(places) and alone <= worth(upper)) or (
        2 * int(higher) < int(places) and alone > worth(upper)
    ):
        yield f"{alone} is higher than at {higher} of {places}, whose median is {upper}"
    yield from _sentence(report, lead, (now, without, alone), (int(lower), int(higher), int(places)))


def _sentence(
    report: Any, lead: str, numbers: tuple[float, float, float], counts: tuple[int, int, int]
) -> Iterator[str]:
    """The four sentences, by what needed and enough mean on the page."""
    e, (now, without, alone), (lower, higher, places) = report.explanation, numbers, counts
    predicted, most = e.target == e.prediction.target, 0.95 * places
    needed = lower >= most and without < now / 2
    enough = higher >= most and alone >= now / 2 and (not predicted or report.alone.target == e.target)
    words = {
        (True, True): "needed and enough", (True, False): "needed, but not enough",
        (False, True): "enough, but not needed", (False, False): "neither needed nor enough",
    }  # fmt: skip
    text = [word for word in words.values() if f" is {word}:" in lead]
    tells = places >= 10 and any(cell in lead for cell in words.values())
    if tells and text != [words[needed, enough]]:
        yield f"the headline says {text}: lower {lower}, higher {higher} of {places}, {now} to {without}, alone {alone}"
    if ("rises to" in lead) and not without > now:
        yield f"{now} to {without} is no rise"
    reference = re.sub(r"(?<!still )has under", "has only under", lead)
    if ("has only" in reference.replace("alone it has only", "")) != (without < now / 2) and tells:
        yield f"only, or not, at {without} of {now}"
    if ("alone it has only" in reference) != (alone < now / 2 or "alone it has under" in lead) and tells:
        yield f"alone only, or not, at {alone} of {now}"
    for answer, link in ((report.without, "and"), (report.alone, "but")):
        if f"{link} the model says “" in lead and (answer.target == e.target or f"says “{answer.label}”" not in lead):
            yield f"the headline names another class than {answer.label}"
    if not predicted and re.search(r"(and|but) the model says “", lead):
        yield "what the model says then is compared with a class that it does not predict"


def _verdict(report: Any, html: str) -> Iterator[str]:
    test = report.check_result["faithfulness"]
    n = test.numbers
    now, without = printed(n["now"]), printed(n["without"])
    if test.verdict == "-":
        if "faithful" in text_of(html):
            yield "a verdict on what cannot be told"
        return
    least, most = sorted((n["lower"] / n["places"], n["higher"] / n["places"]))
    lead = text_of(html[html.index('class="lead"') : html.index('<div class="grid two">')])
    stands = "neither needed nor enough" not in lead
    wanted = "weak" if most >= 0.95 or (most >= 0.75 and least >= 0.5) else "bad"
    wanted = "good" if stands and least >= 0.75 and without < now else "bad" if without > now else wanted
    word = {"good": "faithful", "weak": "doubtful", "bad": "unfaithful"}[wanted]
    if f'<span class="tag {wanted}">{word}</span>' not in html:
        yield f"{test.verdict}, not {wanted}: {dict(n)}"
    for name, value in (("lower", n["lower"]), ("higher", n["higher"])):
        if set(re.findall(rf"{name} than at (\d+) of", text_of(html))) != {f"{value:.0f}"}:
            yield f"{name} has several counts"


def _findings(report: Any, html: str) -> Iterator[str]:
    """Compare words of the other tests with the numbers in their sentences."""
    worst = max(
        (test.verdict for test in report.check_result.tests if test.verdict != "-"), key=("good", "weak", "bad").index
    )
    calm = "Nothing speaks against this map" in text_of(html)
    if calm != (worst == "good"):
        yield f"a {worst} map is called otherwise"
    rows = re.findall(r'<li><span class="tag (\w+)">([^<]*)</span><span>([^<]*)</span>', html)
    for verdict, word, sentence in rows:
        limit = re.search(
            r"(-?[\d.]+)(?: with the map .*?|)(?: \([^;]*\))?; ([\d.]+) or (less|more) is good", unescape(sentence)
        )
        if limit is None:
            continue
        value, bound, side = float(limit[1]), float(limit[2]), limit[3]
        if (value <= bound if side == "less" else value >= bound) != (verdict == "good"):
            yield f"{word} ({verdict}): {sentence}"


def _map(report: Any, html: str) -> Iterator[str]:
    """The legend has the colours of the map's own scale at both ends, and in the middle."""
    e, ramps = report.explanation, re.findall(r"linear-gradient\(90deg,([^)]*)\)", html)
    explanations = [report.explanation, *([report.contrast] if report.contrast is not None else [])]
    for item, ramp in zip(explanations, ramps, strict=True):
        scale, stops = item.scale, ramp.split(",")
        values = np.linspace(-scale.limit if scale.signed else scale.low, scale.limit, len(stops))[None]
        colours = viz.colormap.colourise(values, scale)[0]
        numbers = np.array([[int(stop[at : at + 2], 16) for at in (1, 3, 5)] for stop in stops])
        if np.abs(numbers - colours.astype(int)).max() > 4:
            yield "the legend has other colours than the map"
    if ("Red patches speak for" in text_of(html)) != e.scale.signed:
        yield "red and blue are named where there are none, or not where there are"


def _predictions(report: Any, html: str, model: vt.VisionModel) -> Iterator[str]:
    """Show the pictures on the page to the model."""
    tolerance = 1e-4 if model.device.type == "cpu" else 0.01  # a GPU rounds convolutions to TF32
    part = html[html.index("Put to the test") :]
    uris = re.findall(r'<img src="data:image/png;base64,([^"]*)"', part)[:3]
    values = [float(c) for c in (report.probability, report.without.explained, report.alone.explained)]
    for uri, chance in zip(uris, values, strict=True):
        picture = Image.open(io.BytesIO(base64.b64decode(uri)))
        logits = model.logits(model.preprocess.to_tensor(picture)[None])[0].double().cpu()
        if len(logits) == 1:
            logits = logits.new_tensor([0.0, float(logits)])
        now = float(logits.softmax(dim=0)[report.explanation.target])
        if abs(now - chance) > tolerance:
            yield f"the model gives a picture {now:.5f}, the page {chance:.5f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with photographs and weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--models", type=lambda text: text.split(","))
    parser.add_argument("--method", help="a spec; quick without it")
    parser.add_argument("--out", type=Path, default=Path("why-pages"))
    options = parser.parse_args()
    from known_answers import FOLDER
    from verdicts import PHOTOGRAPHS, SCENES

    from vitreous.world import World

    warnings.simplefilter("ignore", vt.VitreousWarning)
    options.out.mkdir(parents=True, exist_ok=True)
    wrong = count = 0
    for name in options.models or [*(PHOTOGRAPHS if options.data else ()), *SCENES]:
        if name in SCENES:
            model = vt.load(name, device=options.device)
            images: list[Any] = list(World(n=options.images).images())
        else:
            spec, method, weights = PHOTOGRAPHS[name]
            checkpoint = options.data / weights
            names = options.data / "imagenet-classes.json"
            model = vt.load(spec, checkpoint=checkpoint, class_names=names, device=options.device, **method)
            rows = json.loads((options.data / f"{FOLDER}.json").read_text())[:: 1000 // options.images]
            images = [options.data / FOLDER / row["file"] for row in rows[: options.images]]
        for index, image in enumerate(images):
            first = vt.why(model, image, method=options.method)
            second = vt.why(model, image, target=first.runner_up[0], method=options.method) if first.contrast else None
            for kind, result in (("", first), ("-second", second)):
                if result is None:
                    continue
                result.save(options.out / f"{name}-{index:03d}{kind}.html", overwrite=True)
                message = contradictions(result, model)
                count, wrong = count + 1, wrong + bool(message)
                print(
                    f"{name} {index}{kind}: {result.page().lead}", *message, sep="\n  ! " if message else "", flush=True
                )
    print(f"{wrong} of {count} pages contradict themselves")


if __name__ == "__main__":
    main()
