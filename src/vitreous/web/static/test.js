// Put it to the test: take the strongest patches away, or keep them alone, and hear what the model says.

import { el, encode, fill, percent, remake } from "./common.js";
import { Curve } from "./curve.js";
import { MaskLayer, packed, unpacked } from "./mask.js";
import { Bars, button, choice, filled, findings, icon, Place, problem, sentence } from "./parts.js";
import { onPatches, strongestFirst } from "./store.js";
import { changed } from "./tried.js";

const FILLS = [
  ["blur", "blurred"],
  ["mean", "flat", "It has the mean colour of the picture"],
  ["black", "black"],
];
const MODES = [
  [false, "remove"],
  [true, "keep", "Only the strongest patches stay (K)"],
];

export class TestPanel {
  #order = { array: null, patches: null, map: null };
  #asked = new Set(); // maps whose check was asked for
  #drawn = null;

  constructor(store, probe, tested) {
    this.store = store;
    this.probe = probe;
    this.tested = tested;
    const set = (changes) => store.set(changes, { replace: true });
    this.input = el("input", { type: "range", min: 0, step: 1, "aria-label": "Patches" });
    this.input.addEventListener("input", () => {
      filled(this.input);
      set({ k: Number(this.input.value), mask: null });
    });
    this.count = el("span", { class: "count" });
    this.mode = choice("What happens to the strongest patches", MODES, (keep) => set({ keep }));
    this.fills = choice("What stands where a patch was", FILLS, (fill) => set({ fill }));
    this.picture = el("img", { alt: "", width: 224, height: 224 });
    this.mask = new MaskLayer(store, {
      onpaint: (mask) => this.#show(mask),
      onend: (mask) => set({ mask: packed(mask) }),
    });
    this.now = el("b", {});
    this.before = el("span", {});
    this.says = el("p", { class: "verdict" });
    this.bars = new Bars(5);
    this.curve = new Curve((share) => set({ k: Math.round(share * store.count), mask: null }));
    this.curvePlace = new Place("the curves", store.ways(() => this.curveTask));
    this.strip = el("div", { class: "strip" });
    this.trust = el("div", { class: "trust" });
    this.checkPlace = new Place("the check", store.ways(() => this.checkTask));
    this.problem = el("div", {});
    this.name = el("p", { class: "note" });
    this.draw = button([icon("pen"), "draw your own"], () => this.toggle(), { class: "pill small" });
    this.versus = el("div", { class: "versus", hidden: true });
    this.node = el("aside", { class: "test", "aria-label": "Put it to the test" }, this.#tries(), this.#hears());
  }

  /** What is done to the picture. */
  #tries() {
    return el(
      "div",
      { class: "try" },
      el("div", { class: "head" }, el("h2", {}, "Put it to the test"), this.draw),
      this.name,
      el("div", { class: "frame" }, this.picture, this.mask.node),
      this.curvePlace.node,
      this.input, // right under the curves: its thumb is where their marker is
      el("div", { class: "row" }, this.count, this.mode.node),
      el("div", { class: "row" }, el("span", { class: "note" }, "what is gone is"), this.fills.node),
      this.problem,
      this.versus,
    );
  }

  /** What the model says then. */
  #hears() {
    return el(
      "div",
      { class: "hear" },
      el("h3", {}, "The model now says"),
      el("div", { class: "now" }, this.now, this.before),
      this.says,
      this.bars.node,
      el("h3", {}, "As patches go"),
      this.strip,
      this.curve.words,
      el("h3", {}, "Can it be trusted?"),
      this.trust,
    );
  }

  // -- what is gone --------------------------------------------------------------------------------------

  /** The patches of the map that is tested, strongest first; nothing while there is no map. */
  patches() {
    const map = this.tested()?.array;
    if (!map) return null;
    if (map !== this.#order.array) {
      const onGrid = onPatches(map, this.store.model.grid);
      this.#order = { array: map, map: onGrid, patches: strongestFirst(onGrid) };
    }
    return this.#order.patches;
  }

  /** One byte for each patch: the strongest `k` of the map are gone, or all the others. */
  gone(k, keep) {
    const removed = new Uint8Array(this.store.count).fill(keep ? 1 : 0);
    for (const patch of this.patches().slice(0, k)) removed[patch] = keep ? 0 : 1;
    return removed;
  }

  /** What the model says without these patches. */
  look(lane, removed, fill = this.store.state.fill) {
    const { model, state, target } = this.store;
    return this.probe.look(lane, { model: model.name, picture: state.picture, removed, fill, target });
  }

  toggle() {
    const { store } = this;
    const patches = this.patches();
    if (store.state.mask === null && patches) {
      store.set({ mask: packed(new Uint8Array(store.count)) }, { replace: true });
      this.mask.node.focus();
    } else store.set({ mask: null }, { replace: true });
  }

  // -- questions that take longer ------------------------------------------------------------------------

  get curveTask() {
    const tested = this.tested();
    const question = { ...tested.question, fill: this.store.state.fill };
    return {
      key: JSON.stringify(["curve", tested.key, this.store.state.fill]),
      alone: true,
      kind: "curve",
      ...question,
      map: encode(this.#order.map),
    };
  }

  get checkTask() {
    return this.store.task("check", this.tested().question);
  }

  tasks() {
    if (!this.patches()) return [];
    const wanted = [this.curveTask];
    const { checkable, key } = this.tested();
    if (checkable && (this.#asked.has(key) || this.store.answer(this.checkTask))) wanted.push(this.checkTask);
    return wanted;
  }

  // -- what is seen --------------------------------------------------------------------------------------

  update() {
    const { store } = this;
    const there = Boolean(store.prediction);
    this.node.classList.toggle("ghost", !there);
    if (!there) return;
    const { keep, mask, fill: filling } = store.state;
    this.picture.parentNode.style.aspectRatio = `${store.image.naturalWidth} / ${store.image.naturalHeight}`;
    const patches = this.patches();
    const drawn = this.mask.painting ? this.mask.mask : unpacked(mask ?? "", store.count);
    const own = mask !== null && patches ? drawn : null;
    this.mode.update(keep);
    this.node.classList.toggle("keeping", keep);
    this.fills.update(filling);
    this.mask.node.hidden = !own;
    this.draw.setAttribute("aria-pressed", String(Boolean(own)));
    this.draw.disabled = this.input.disabled = !patches;
    const name = this.tested()?.name;
    this.name.textContent = own ? "your own mask" : name ? `the strongest patches of ${name}` : "no map yet";
    this.input.max = store.count;
    if (!own) this.#slide(store.k);
    if (own) this.mask.update(own);
    this.#draw(patches);
    if (patches) this.#show(own);
    else this.#wait();
    this.#trust(patches);
  }

  /** No map yet: the picture as it is. */
  #wait() {
    const { store } = this;
    if (this.picture.src !== store.image.src) this.picture.src = store.image.src;
    this.picture.classList.add("stale");
    this.count.textContent = `${store.k} of ${store.count} patches`;
    this.#tell(store.prediction.top, null, true);
  }

  #slide(k) {
    if (Number(this.input.value) !== k) this.input.value = k;
    this.input.setAttribute("aria-valuetext", this.#words(k));
    filled(this.input);
  }

  #words(k) {
    return `${k} of ${this.store.count} patches ${this.store.state.keep ? "kept" : "removed"}`;
  }

  /** Show the picture as it is now; `own`: patches drawn by hand. */
  #show(own) {
    const { store } = this;
    const { keep } = store.state;
    const k = own ? own.reduce((sum, each) => sum + each, 0) : store.k;
    const removed = own ? own.map((each) => (keep ? 1 - each : each)) : this.gone(k, keep);
    this.count.textContent = `${k} of ${store.count} patches`;
    if (own) this.#slide(k);
    const { answer, fresh, problem: wrong } = this.look("slider", removed);
    remake(this.problem, wrong, () => [wrong && problem(wrong, () => this.probe.again())]);
    this.picture.classList.toggle("stale", !fresh);
    if (answer) {
      if (this.picture.src !== answer.picture) this.picture.src = answer.picture;
      this.picture.alt = `The picture with ${this.#words(k)}`;
    }
    this.#tell(answer?.top ?? store.prediction.top, answer?.probability ?? null, fresh);
    this.curve.mark(k / store.count, keep, fresh ? answer.probability : null, Boolean(own));
    this.#compare(own, k, fresh ? answer : null);
  }

  #tell(top, chance, fresh) {
    const { store } = this;
    const label = store.label(store.target);
    const first = store.probability(store.target);
    this.now.textContent = chance === null ? (first === null ? "–" : percent(first)) : percent(chance);
    const change = changed(chance, first);
    this.now.className = `big ${change}`;
    this.now.parentNode.classList.toggle("stale", !fresh);
    this.before.textContent = `${label}${first === null || chance === null ? "" : `, was ${percent(first)}`}`;
    const says = top[0].index === store.predicted.index
      ? `It still says “${top[0].label}”.`
      : `It says “${top[0].label}” now.`;
    this.says.textContent = chance === null ? "\u00a0" : says;
    const roles = (index) => (index === store.target ? "on" : index === store.contrast ? "off" : "");
    this.bars.update(top, roles, (index) => store.probability(index));
  }

  /** Patches by hand beside as many of the map's own. */
  #compare(own, k, answer) {
    this.versus.hidden = !own;
    if (!own) return;
    const { keep } = this.store.state;
    const found = k > 0 ? this.look("beside", this.gone(k, keep)) : null;
    const theirs = found?.fresh ? found.answer : null;
    const shared = this.patches().slice(0, k).filter((patch) => own[patch]).length;
    const key = JSON.stringify([k, keep, shared, answer?.probability, theirs?.probability]);
    remake(this.versus, key, () => (k === 0 ? this.#invited() : this.#sides(k, keep, shared, answer, theirs)));
  }

  #invited() {
    const words = "Paint the patches that you think matter. The map is then given as many.";
    return [
      el("p", { class: "note" }, words),
      this.#from("start from the map's", () => this.gone(this.store.k, false)),
    ];
  }

  #sides(k, keep, shared, mine, theirs) {
    const side = (words, said) =>
      el(
        "div",
        { class: "card" },
        el("img", { alt: "", src: said?.picture ?? this.store.image.src, width: 96, height: 96 }),
        el("p", { class: "note" }, words),
        el("b", {}, said ? percent(said.probability) : "…"),
      );
    return [
      el("div", { class: "two" }, side("your patches", mine), side(`the map's strongest ${k}`, theirs)),
      el("p", { class: "verdict" }, mine && theirs ? this.#winner(mine.probability, theirs.probability, keep) : "…"),
      el("p", { class: "note" }, `${shared} of ${k} patches are the same.`),
      this.#from("clear", () => new Uint8Array(this.store.count)),
    ];
  }

  #from(words, mask) {
    return button(words, () => this.store.set({ mask: packed(mask()) }, { replace: true }), { class: "link" });
  }

  #winner(mine, theirs, keep) {
    if (Math.abs(mine - theirs) < 0.01) return "Yours and the map's do the same.";
    return mine < theirs === !keep ? "Yours finds more of what matters." : "The map finds more of what matters.";
  }

  #draw(patches) {
    const { store } = this;
    if (!patches) {
      this.curvePlace.update(null);
      fill(this.strip);
      this.curve.words.textContent = "";
      this.#drawn = null;
      return;
    }
    const entry = store.answer(this.curveTask);
    this.curvePlace.update(entry, (found) => {
      this.curve.draw(found, store.label(store.target));
      return this.curve.node;
    });
    const strip = entry?.status === "done" ? entry.result.strip : null;
    if (strip !== this.#drawn) fill(this.strip, (strip ?? []).map((each) => this.#state(each)));
    this.#drawn = strip;
    for (const each of this.strip.children) each.setAttribute(
      "aria-current",
      String(!store.state.keep && store.state.mask === null && Number(each.dataset.k) === store.k),
    );
  }

  #state({ fraction, picture, probability }) {
    const k = Math.round(fraction * this.store.count);
    const share = `${Math.round(100 * fraction)} %`;
    const chance = probability < 0.01 ? "< 1 %" : `${Math.round(100 * probability)} %`;
    return button(
      [el("img", { src: picture, alt: "", width: 64, height: 64 }), el("span", {}, chance)],
      () => this.store.set({ k, keep: false, mask: null }, { replace: true }),
      {
        class: "state",
        dataset: { k },
        title: `${share} removed`,
        "aria-label": `${share} of the patches removed: ${percent(probability)}`,
      },
    );
  }

  #trust(patches) {
    const tested = this.tested();
    const words = !patches ? "There is no map yet." : tested.checkable ? null : "Only whole methods can be checked.";
    if (words) return void remake(this.trust, words, () => el("p", { class: "note" }, words));
    const entry = this.store.answer(this.checkTask);
    if (!entry && !this.#asked.has(tested.key)) {
      const ask = () => {
        this.#asked.add(tested.key);
        this.store.tell();
      };
      return void remake(this.trust, tested.key, () => button("Check this map", ask, { class: "pill" }));
    }
    remake(this.trust, "place", () => this.checkPlace.node);
    this.checkPlace.update(entry, (found) => [
      el("p", { class: "verdict" }, sentence(found.sentence)),
      findings(found.tests),
    ]);
  }
}
