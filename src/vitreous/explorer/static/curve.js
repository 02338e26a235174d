// Deletion and insertion as a drawing: what the model says as patches go, or come, strongest first.

import { el, fill, number, percent, svg } from "./common.js";

const WIDE = 340, HIGH = 116, LEFT = 9, TOP = 6, BASE = TOP + 100;

const across = (share) => LEFT + share * (WIDE - 2 * LEFT);
const down = (chance) => BASE - 100 * Math.min(1, Math.max(0, chance));

function line(shares, chances, name) {
  const points = shares.map((share, i) => `${across(share).toFixed(1)},${down(chances[i]).toFixed(1)}`);
  return svg("polyline", { points: points.join(" "), class: name });
}

/** The height of a curve between two of its points. */
function between(shares, chances, share) {
  const next = shares.findIndex((each) => each >= share);
  if (next <= 0) return chances[next === 0 ? 0 : chances.length - 1];
  const part = (share - shares[next - 1]) / (shares[next] - shares[next - 1] || 1);
  return chances[next - 1] + part * (chances[next] - chances[next - 1]);
}

export class Curve {
  constructor(onmove) {
    this.lines = svg("g", {});
    this.marker = svg("line", { class: "marker", y1: TOP - 4, y2: BASE });
    this.dot = svg("circle", { class: "dot", r: 4 });
    const move = (event) => {
      const box = this.drawing.getBoundingClientRect();
      onmove(Math.min(1, Math.max(0, (((event.clientX - box.left) / box.width) * WIDE - LEFT) / (WIDE - 2 * LEFT))));
    };
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "curve", role: "img" },
      [0, 0.5, 1].map(
        (chance) => svg("line", { class: "rule", x1: LEFT, x2: WIDE - LEFT, y1: down(chance), y2: down(chance) }),
      ),
      [[1, "100 %"], [0.5, "50 %"]].map(
        ([chance, words]) => svg("text", { x: WIDE - LEFT, y: down(chance) + 11, "text-anchor": "end" }, words),
      ),
      this.lines, this.marker, this.dot);
    this.drawing.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.drawing.setPointerCapture(event.pointerId);
      move(event);
    });
    this.drawing.addEventListener("pointermove", (event) => event.buttons && move(event));
    this.words = el("p", { class: "note" });
    const key = (name, words) => el("span", { class: `key ${name}` }, words);
    const keys = [
      key("deletion", "strongest gone"),
      key("insertion", "strongest alone"),
      key("chance", "at random"),
    ];
    this.node = el("div", {}, el("p", { class: "keys" }, keys), this.drawing);
  }

  /** `found`: the answer of the task `curve`. */
  draw(found, label) {
    const { removed: shares, deletion, insertion, random, auc } = found;
    const chance = [random?.deletion, random?.insertion].filter(Boolean).map((each) => line(shares, each, "chance"));
    fill(this.lines, chance, line(shares, deletion, "deletion"), line(shares, insertion, "insertion"));
    this.found = found;
    const mean = (values) => values.reduce((sum, each) => sum + each, 0) / values.length;
    const than = (values) => (values ? ` (${number(mean(values))} at random)` : "");
    const gone = `${number(auc.deletion)} as the strongest go${than(random?.deletion)}`;
    const come = `${number(auc.insertion)} as they come${than(random?.insertion)}`;
    this.words.textContent = `Area under “${label}”: ${gone}, ${come}.`;
    const about = `Probability of ${label} as patches are removed or inserted.`;
    this.drawing.setAttribute("aria-label", `${about} ${this.words.textContent}`);
  }

  /** Where the slider is, and what the model says there; `own`: of patches drawn by hand, which lie off the curves. */
  mark(share, keep, chance, own) {
    this.marker.setAttribute("x1", across(share));
    this.marker.setAttribute("x2", across(share));
    this.dot.setAttribute("class", `dot ${keep ? "insertion" : "deletion"}${own ? " own" : ""}`);
    const height = chance ?? (this.found ? between(
      this.found.removed,
      keep ? this.found.insertion : this.found.deletion,
      share,
    ) : 0);
    this.dot.setAttribute("cx", across(share));
    this.dot.setAttribute("cy", down(height));
    this.drawing.setAttribute("data-chance", percent(height));
  }
}
