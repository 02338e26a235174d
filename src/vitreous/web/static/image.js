// The page of one image: what is asked at the left, the answer in the middle, its test at the right.

import { VIEWS } from "./address.js";
import { ClassPanel } from "./classes.js";
import { announce, el, eachFrame, fill, remake } from "./common.js";
import { Downloads } from "./downloads.js";
import { HeadsView, LayersView } from "./inside.js";
import { LookBar } from "./look.js";
import { MapsView } from "./mapsview.js";
import { MethodPanel } from "./methods.js";
import { OwnersView } from "./ownersview.js";
import { button, icon, problem } from "./parts.js";
import { PicturePanel } from "./picture.js";
import { Probe } from "./probe.js";
import { asked } from "./store.js";
import { TestPanel } from "./test.js";
import { WhyView } from "./whyview.js";

const NAMES = { why: "why", maps: "maps", layers: "layers", heads: "heads", owners: "who owns what" };

/** What belongs to one model only. */
const OF_A_MODEL = ["target", "contrast", "methods", "chosen", "k", "mask", "base", "start", "layer", "head", "compareClasses"];

export class ImagePage {
  #view = null;

  constructor(store, keys) {
    this.store = store;
    this.picture = new PicturePanel(store);
    this.classes = new ClassPanel(store);
    this.methods = new MethodPanel(store);
    this.look = new LookBar(store);
    this.redraw = eachFrame(() => this.update());
    this.test = new TestPanel(store, new Probe(this.redraw), () => this.#tested());
    this.views = {
      why: new WhyView(store, this.test),
      maps: new MapsView(store, () => this.methods.browse()),
      layers: new LayersView(store),
      heads: new HeadsView(store),
      owners: new OwnersView(store),
    };
    const visible = () => ({ questions: this.#current.questions(), sheet: this.#current.sheet?.() });
    this.downloads = new Downloads(store, visible);
    this.stage = el("div", { class: "stage", id: "stage", tabindex: "-1" });
    this.top = this.#head();
    this.node = el("div", { class: "image" }, this.#aside(), this.stage, this.test.node, this.downloads.dialog);
    store.addEventListener("change", this.redraw);
    this.#bind(keys);
  }

  /** What is asked: the picture, the model, the class, the methods. */
  #aside() {
    const names = this.store.start.models.map(({ name }) => el("option", { value: name }, name));
    this.model = el("select", { class: "field code", "aria-label": "Model", onchange: () => this.#change() }, names);
    const narrow = matchMedia("(max-width: 760px)");
    const fold = el("details", { class: "fold", open: !narrow.matches });
    fold.append(el("summary", {}, "Effort and methods"), this.methods.node);
    narrow.addEventListener("change", () => (fold.open = !narrow.matches));
    const model = el("section", { class: "model" }, el("h2", {}, "Model"), this.model);
    const parts = [this.picture.node, model, this.classes.node, fold];
    return el("aside", { class: "ask", "aria-label": "What is asked" }, parts);
  }

  /** The views, the question, the answer in a sentence, how maps are drawn. */
  #head() {
    this.tabs = VIEWS.map((view) =>
      button(NAMES[view], () => this.#open(view), {
        class: "tab",
        id: `tab-${view}`,
        role: "tab",
        "aria-controls": "view",
        dataset: { view },
      }),
    );
    const list = { class: "tabs", role: "tablist", "aria-label": "Views", onkeydown: (event) => this.#tab(event) };
    this.list = el("div", list, this.tabs);
    const save = { class: "pill small", "aria-haspopup": "dialog" };
    this.busy = el("div", { class: "busy", hidden: true });
    this.title = el("h1", { tabindex: "-1" });
    this.notice = el("p", { class: "differs", hidden: true });
    this.lead = el("div", {});
    this.body = el("div", { id: "view", role: "tabpanel" });
    return [
      el(
        "div",
        { class: "top" },
        this.list,
        this.busy,
        button([icon("save"), "save"], () => this.downloads.open(), save),
      ),
      el("div", { class: "question" }, this.title, this.notice, this.lead),
      this.look.node,
      this.body,
    ];
  }

  #change() {
    const blank = Object.fromEntries(OF_A_MODEL.map((name) => [name, null]));
    this.store.set({ ...blank, model: this.model.value });
  }

  get #current() {
    return this.views[this.store.view];
  }

  /** The map that is put to the test: the one that a view singles out, or else the chosen method's. */
  #tested() {
    const { store } = this;
    if (!store.prediction) return null;
    if (this.#current.tested) return this.#current.tested();
    const task = store.explain(store.chosen);
    const array = store.result(task)?.map ?? null;
    return { name: store.chosen, key: task.key, question: asked(task), array, checkable: true };
  }

  #open(view) {
    if (!this.store.views.includes(view)) return;
    this.store.set({ view });
    announce(NAMES[view]);
  }

  #tab(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const { view: now, views } = this.store;
    const view = views[(views.indexOf(now) + by + views.length) % views.length];
    this.#open(view);
    this.tabs[VIEWS.indexOf(view)].focus();
  }

  update() {
    const { store } = this;
    const { state } = store;
    this.picture.update();
    this.classes.update();
    this.methods.update();
    this.model.value = store.model.name;
    this.node.classList.toggle("without", !state.picture);
    document.title = state.picture && store.prediction ? `${this.#question()} · Vitreous` : "Vitreous";
    if (!state.picture) {
      if (this.stage.firstChild !== this.picture.empty) fill(this.stage, this.picture.empty);
      store.answers.want([]);
      return;
    }
    if (this.stage.firstChild !== this.top[0]) fill(this.stage, this.top);
    const waiting = store.problem ? "This did not work" : "One moment …";
    this.title.textContent = store.prediction ? this.#question() : waiting;
    this.#differs();
    for (const tab of this.tabs) {
      const on = tab.dataset.view === store.view;
      tab.hidden = !store.views.includes(tab.dataset.view);
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      if (on) this.list.scrollLeft = tab.offsetLeft - (this.list.clientWidth - tab.offsetWidth) / 2; // on a phone
    }
    this.body.setAttribute("aria-labelledby", `tab-${store.view}`);
    remake(this.lead, store.view, () => [this.#current.lead]);
    this.look.update();
    if (store.problem) {
      this.#view = null;
      fill(this.body, problem(store.problem, () => store.load()));
    } else if (this.#view !== this.#current) {
      this.#view = this.#current;
      fill(this.body, this.#current.node);
    }
    this.#current.update();
    this.test.update();
    this.#want();
    this.#working();
  }

  #question() {
    const { store } = this;
    if (this.#current.title) return this.#current.title;
    const rather = store.contrast !== null && store.view !== "why"
      ? ` rather than “${store.label(store.contrast)}”`
      : "";
    const differs = store.view === "why" && store.target !== store.predicted.index;
    return differs ? `What speaks for “${store.label(store.target)}”?` : `Why “${store.label(store.target)}”${rather}?`;
  }

  #differs() {
    const { store } = this;
    const differ = store.prediction && store.target !== store.predicted.index;
    this.notice.hidden = !differ;
    const ask = () => button("ask about that", () => store.set({ target: null }), { class: "link" });
    if (differ) remake(this.notice, store.predicted, () => [`The model says “${store.predicted.label}”. `, ask()]);
  }

  /** All that the screen needs now, the view before its test: the chosen map is always made, for the test needs it. */
  #want() {
    const { store } = this;
    if (!store.prediction) return void store.answers.want([]);
    const wanted = [...this.#current.tasks()];
    if (!this.#current.tested) wanted.push(store.explain(store.chosen));
    wanted.push(...this.test.tasks(), ...(this.#current.later?.() ?? []));
    const keys = new Set();
    store.answers.want(wanted.filter(({ key }) => !keys.has(key) && keys.add(key)));
  }

  #working() {
    const { open } = this.store.answers;
    this.busy.hidden = open === 0;
    if (open === 0) return void fill(this.busy);
    if (!this.busy.firstChild) fill(
      this.busy,
      el("span", { class: "spin", "aria-hidden": "true" }),
      el("span", {}),
      button("cancel all", () => this.store.answers.cancel(), { class: "link" }),
    );
    this.busy.children[1].textContent = open === 1 ? "one answer on its way" : `${open} answers on their way`;
  }

  #bind(keys) {
    const { store } = this;
    const flip = (name) => () => store.state.picture && store.set({ [name]: !store.state[name] }, { replace: true });
    const step = (by) => () => store.state.picture && store.set(
      { k: Math.min(store.count, Math.max(0, store.k + by)), mask: null },
      { replace: true },
    );
    const opacity = (by) => () => store.set(
      { opacity: Math.min(1, Math.max(0, Math.round(20 * (store.state.opacity + by)) / 20)) },
      { replace: true },
    );
    keys.group(
      "image",
      "Views",
      VIEWS.map((view, place) => [String(place + 1), NAMES[view], () => store.state.picture && this.#open(view)]),
    );
    keys.group("image", "Maps", [
      ["ArrowUp ArrowDown ArrowLeft ArrowRight", "on a map: move from patch to patch and read it in every map", null],
      ["Enter", "on a map: put it to the test", null],
      ["S", "one scale for all maps, or each its own", flip("shared")],
      ["P", "signed, or only the positive part", flip("positive")],
      ["T", "smooth, or patch by patch", flip("patches")],
      ["[", "more of the picture", opacity(-0.05)],
      ["]", "more of the map", opacity(0.05)],
    ]);
    keys.group("image", "Test", [
      [",", "one patch less", step(-1)],
      [".", "one patch more", step(1)],
      ["K", "remove the strongest patches, or keep them alone", flip("keep")],
      ["D", "draw your own mask; arrows move, Space takes a patch, Shift with arrows paints", () => this.test.toggle()],
    ]);
    keys.group("image", "Ask", [
      ["O", "open a photograph", () => this.picture.pick()],
      ["N", "the next scene", () => this.picture.step(1)],
      ["B", "the scene before", () => this.picture.step(-1)],
      ["C", "search a class; Shift and Enter contrasts", () => this.classes.search.input.focus()],
      ["M", "compose a method", () => this.methods.composer.input.focus()],
      ["L", "list all methods", () => this.methods.browse()],
      ["W", "write it to a file, copy the lines", () => store.state.picture && this.downloads.open()],
      ["Escape", "cancel what is running", () => this.store.answers.cancel()],
      ["?", "this list", () => keys.show()],
    ]);
    keys.group("run", "Pictures of a run", [
      ["ArrowLeft ArrowRight", "before and after", null],
      ["Escape", "back", null],
      ["?", "this list", () => keys.show()],
    ]);
  }
}
