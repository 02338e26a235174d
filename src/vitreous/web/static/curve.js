// Deletion and insertion as a drawing: what the model says as patches go, or come, strongest first.

import { el, fill, number, percent, svg } from "./common.js";

const WIDE = 340, HIGH = 116, LEFT = 9, TOP = 6, BASE = TOP + 100;
const ENDS = [1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001]; // where the axis may end

const across = (share) => LEFT + share * (WIDE - 2 * LEFT);

/** The height of a curve between two of its points. */
function between(shares, chances, share) {
  const next = shares.findIndex((each) => each >= share);
  if (next <= 0) return chances[next === 0 ? 0 : chances.length - 1];
  const part = (share - shares[next - 1]) / (shares[next] - shares[next - 1] || 1);
  return chances[next - 1] + part * (chances[next] - chances[next - 1]);
}

/** `onmove(share)`: someone points at a share of the patches. The slider below is the axis. */
export class Curve {
  #end = 1;
  #found = null;

  constructor(onmove) {
    this.lines = svg("g", {});
    this.marker = svg("line", { class: "marker", y1: TOP - 4, y2: BASE });
    this.dot = svg("circle", { class: "dot", r: 4 });
    const rule = (y) => svg("line", { class: "rule", x1: LEFT, x2: WIDE - LEFT, y1: y, y2: y });
    this.ends = [TOP, TOP + 50].map((y) => svg("text", { x: WIDE - LEFT, y: y + 11, "text-anchor": "end" }));
    const parts = [[TOP, TOP + 50, BASE].map(rule), this.lines, this.ends, this.marker, this.dot];
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "curve", role: "img" }, parts);
    this.drawing.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.drawing.setPointerCapture(event.pointerId);
      onmove(this.#share(event));
    });
    this.drawing.addEventListener("pointermove", (event) => event.buttons && onmove(this.#share(event)));
    this.words = el("p", { class: "note" });
    const key = ([name, words]) => el("span", { class: `key ${name}` }, words);
    const keys = [["deletion", "strongest gone"], ["insertion", "strongest alone"], ["chance", "at random"]];
    this.node = el("div", {}, el("p", { class: "keys" }, keys.map(key)), this.drawing);
  }

  #share(event) {
    const box = this.drawing.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * WIDE;
    return Math.min(1, Math.max(0, (place - LEFT) / (WIDE - 2 * LEFT)));
  }

  #down(chance) {
    return BASE - 100 * Math.min(1, Math.max(0, chance / this.#end));
  }

  #line(chances, name) {
    const point = (chance, i) => `${across(this.#found.removed[i]).toFixed(1)},${this.#down(chance).toFixed(1)}`;
    return svg("polyline", { points: chances.map(point).join(" "), class: name });
  }

  /** `found`: the answer of the task `curve`. The axis ends at 100 %, or earlier where nothing comes near. */
  draw(found, label) {
    const { deletion, insertion, random, auc } = found;
    this.#found = found;
    const most = Math.max(...deletion, ...insertion, ...random.deletion, ...random.insertion);
    this.#end = ENDS.findLast((end) => end >= most) ?? 1;
    this.ends.forEach((text, i) => (text.textContent = percent(this.#end / (i + 1)).replace(".0 %", " %")));
    const chance = [random.deletion, random.insertion].map((each) => this.#line(each, "chance"));
    fill(this.lines, chance, this.#line(deletion, "deletion"), this.#line(insertion, "insertion"));
    const mean = (values) => number(values.reduce((sum, each) => sum + each, 0) / values.length);
    const gone = `${number(auc.deletion)} as the strongest go (${mean(random.deletion)} at random)`;
    const come = `${number(auc.insertion)} as they come (${mean(random.insertion)} at random)`;
    this.words.textContent = `Area under “${label}”: ${gone}, ${come}.`;
    const about = `Probability of ${label} as patches are removed or inserted.`;
    this.drawing.setAttribute("aria-label", `${about} ${this.words.textContent}`);
  }

  /** Where the slider is, and what the model says there; `own`: of patches drawn by hand, which lie off the curves. */
  mark(share, keep, chance, own) {
    if (!this.#found) return;
    const { removed, insertion, deletion } = this.#found;
    this.marker.setAttribute("x1", across(share));
    this.marker.setAttribute("x2", across(share));
    this.dot.setAttribute("class", `dot ${keep ? "insertion" : "deletion"}${own ? " own" : ""}`);
    this.dot.setAttribute("cx", across(share));
    this.dot.setAttribute("cy", this.#down(chance ?? between(removed, keep ? insertion : deletion, share)));
  }
}
