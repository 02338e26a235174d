// A benchmark run: the page, and its table.

import { announce, api, el, fill, svg } from "./common.js";
import { problem } from "./parts.js";
import {
  arrow, breakable, cellOf, digits, moved, nothing, partOf, readRun, refill, runAddress, tabs, UNFILTERED,
} from "./runs_parts.js";
import { cellView, pictureView } from "./runs_pictures.js";
import { scatterView } from "./runs_plot.js";

// -- the page

const VIEWS = { table: tableView, scatter: scatterView, cell: cellView, picture: pictureView };
const FRESH = 20000; // milliseconds for which a table is not asked for again
const AGAIN = 10000; // milliseconds between two looks at a run that is still going on

const TAKEN = "input, select, summary, .scroll, svg"; // where keys mean something else

let last = null; // the view that was shown before this one
const cache = new Map(); // tables by run: views follow each other quickly, and the table is the same

function tableOf(id, anew = false) {
  const cached = cache.get(id);
  if (!anew && cached && Date.now() - cached.since < FRESH) return cached.table;
  const table = api(`/api/runs/${encodeURIComponent(id)}`);
  cache.set(id, { table, since: Date.now() });
  table.catch(() => cache.delete(id));
  return table;
}

/** Show a run in an element; returns what ends it. `navigate(address)` goes to another view. */
export function mount(element, id, parameters, navigate) {
  const ended = new AbortController();
  const { signal } = ended;
  const open = (address) => navigate(address);
  let state = readRun(parameters);
  let view = null;
  let timer = 0;

  element.classList.add("runpage");
  fill(element, el("p", { class: "loading", role: "status" }, "Reading the run …"));
  document.addEventListener("keydown", key, { signal, capture: true }); // before the keys of the page of one image
  start();

  async function start() {
    try {
      const table = await tableOf(id);
      if (!signal.aborted) draw(table);
    } catch (error) {
      if (!signal.aborted) fill(element, el("h1", {}, id), problem(error.message, start));
    }
  }

  function draw(table) {
    view?.end?.();
    const context = { id, table, change: (changes, options) => change(table, changes, options), open, signal };
    view = VIEWS[state.view](context);
    const top = el("header", { class: "runhead" });
    head(top, table);
    fill(element, top, view.node);
    view.top = top;
    view.show(state);
    document.title = `${table.title} · Vitreous`;
    if (last !== null && last !== state.view) window.scrollTo(0, 0);
    const lost = last !== null && document.activeElement === document.body; // what had the focus is gone
    if (lost) top.querySelector("h1").focus({ preventScroll: true });
    last = state.view;
    if (table.state) timer = setTimeout(() => look(table), AGAIN);
  }

  /** Look whether a run that goes on has gone on. */
  async function look(before) {
    const table = await tableOf(id, true).catch(() => before);
    if (signal.aborted) return;
    const busy = state.view === "picture" || state.view === "cell"; // nobody wants pictures to jump
    if (JSON.stringify(table) !== JSON.stringify(before) && !busy) draw(table);
    else timer = setTimeout(() => look(before), AGAIN);
  }

  /** Change something of this view: the address follows, the history does not grow. `quiet`: it is drawn already. */
  function change(table, changes, { quiet = false } = {}) {
    state = moved(state, changes);
    history.replaceState(history.state, "", runAddress(id, state));
    if (quiet) return;
    head(view.top, table);
    view.show(state);
  }

  function head(top, table) {
    const part = partOf(table, state);
    const to = (changes) => runAddress(id, moved(state, { page: "0", picture: "", ...changes }));
    const afresh = { ...UNFILTERED, method: "", metric: "", view: state.view === "scatter" ? "scatter" : "table" };
    const parts = table.parts.map((item) => [item.name, to({ ...afresh, part: String(item.part) }), item === part]);
    const views = ["table", "scatter"].map((item) => [item, to({ view: item }), state.view === item]);
    const warnings = [table.state, ...table.notes].filter(Boolean);
    const blind = !part.pictures && state.view !== "scatter" && part.methods.length > 0;
    fill(top,
      el("h1", { tabindex: "-1" }, table.title),
      state.view === "table" && el("p", { class: "lead" }, table.lead),
      warnings.map((item) => el("p", { class: "note warn", role: "status" }, item)),
      parts.length > 1 && tabs("Model and data", parts),
      tabs("Views", [...views, ...crumbs(part, to)]),
      blind && el("p", { class: "note" }, `Pictures are not shown: ${part.why}.`));
  }

  function crumbs(part, to) {
    if (!part.methods.length || !["cell", "picture"].includes(state.view)) return [];
    const { method, metric } = cellOf(part, state);
    const words = `${method.title} · ${metric.name}`;
    const cell = [words, to({ view: "cell", page: state.page }), state.view === "cell"];
    return state.view === "cell" ? [cell] : [cell, ["one picture", to({ picture: state.picture }), true]];
  }

  /** Keys that turn pages, unless they mean something where the focus is. */
  function key(event) {
    const taken = event.target instanceof Element && event.target.closest(TAKEN);
    if (taken || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (document.querySelector("dialog[open]")) return;
    const address = view?.key?.(event.key);
    if (!address) return;
    event.preventDefault();
    open(address);
  }

  return () => {
    ended.abort();
    clearTimeout(timer);
    view?.end?.();
    document.title = "Vitreous";
  };
}

// -- its table

const TRIAL = { passes: "good", weak: "weak", fails: "bad", blind: "bad" };

export function tableView(context) {
  const { id, table, change } = context;
  const node = el("div", { class: "runtable" });

  function show(state) {
    const part = partOf(table, state);
    if (!part.methods.length) {
      refill(node, el("div", { class: "card" }, nothing(`Nothing of ${part.name} is finished yet.`)));
      return;
    }
    const strange = part.methods.some((item) => item.degenerate);
    const head = el("tr", {},
      headOf("method", ["method"], null, part, state),
      part.metrics.map((metric) => [
        headOf(metric.name, titleOf(metric), verdictOf(metric), part, state),
        several(part) && el("th", { scope: "col" }, "between seeds"),
      ]),
      strange && el("th", { scope: "col", class: "words" }, "degenerate maps"));
    const body = sorted(part, state).map((row) => el("tr", { class: part.methods[row].quiet ? "yardstick" : null },
      nameOf(part.methods[row]),
      part.metrics.map((metric, column) => [
        el("td", {}, cell(part, row, column, state)),
        several(part) && el("td", {}, deviation(part.cells[row][column], metric)),
      ]),
      strange && el("td", { class: "words" }, part.methods[row].degenerate)));
    const region = { class: "scroll", tabindex: "0", role: "region", "aria-label": `Scores of ${part.name}` };
    refill(node,
      el("div", { class: "card" },
        el("div", region, el("table", {}, el("thead", {}, head), el("tbody", {}, body))),
        legend(part).map((words) => el("p", { class: "note" }, words))),
      worth(part), leftOut(part));
  }

  function headOf(name, words, below, part, state) {
    const onclick = () => sort(name, part, state);
    return el("th", { scope: "col", "aria-sort": state.sort === name ? state.way : null },
      el("button", { type: "button", dataset: { key: `sort ${name}` }, onclick }, words), below);
  }

  function sort(name, part, state) {
    const metric = part.metrics.find((item) => item.name === name);
    const first = metric?.higher_is_better ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const way = state.sort === name && state.way === first ? other : first;
    announce(`Sorted by ${name}, ${way}`);
    change({ sort: name, way });
  }

  function cell(part, row, column, state) {
    const result = part.cells[row][column];
    if (!result) return "–";
    const [method, metric] = [part.methods[row], part.metrics[column]];
    const there = { ...UNFILTERED, view: "cell", method: method.name, metric: metric.name, page: "0", picture: "" };
    const mean = digits(result.mean, metric.digits);
    const [low, highest] = [result.lower, result.upper].map((item) => digits(item, metric.digits));
    const between = result.lower === null ? "" : `${low} to ${highest}`;
    const words = [
      `${method.title}, ${metric.name}: ${mean}`, between && `95 % interval ${between}`, compared(result),
      result.shared && `shares with the metric: ${result.shared}`, "show its pictures",
    ];
    const properties = {
      href: runAddress(id, moved(state, there)), class: "score", dataset: { key: `cell ${row} ${column}` },
      "aria-label": words.filter(Boolean).join("; "),
    };
    return el("a", properties,
      star(result), result.is_best ? el("b", {}, mean) : mean, result.letters && el("sup", {}, result.letters),
      result.shared && el("sup", { title: `shared with the metric: ${result.shared}` }, "◆"),
      between && el("small", {}, between),
      whisker(result, metric),
      result.images < part.images && el("small", {}, `${result.images} of ${part.images} pictures`),
      result.paper !== null && el("small", {}, `paper ${digits(result.paper, metric.digits)}`));
  }

  return { node, show };
}

/** The rows in the order that is asked for; what has no score comes last. */
export function sorted(part, state) {
  const rows = part.methods.map((_, row) => row);
  const column = part.metrics.findIndex((item) => item.name === state.sort);
  const sign = state.way === "descending" ? -1 : 1;
  const title = (row) => part.methods[row].title;
  if (state.sort === "method") return rows.sort((a, b) => sign * title(a).localeCompare(title(b)));
  if (column < 0) return rows;
  const value = (row) => part.cells[row][column]?.mean ?? null;
  return rows.sort((a, b) => {
    const [one, other] = [value(a), value(b)];
    if (one === null || other === null) return (one === null) - (other === null);
    return sign * (one - other);
  });
}

function several(part) {
  return part.seeds.length > 1;
}

/** How far the means of single seeds lie apart. */
function deviation(result, metric) {
  return result && result.seed_sd !== null ? digits(result.seed_sd, metric.digits + 1) : "–";
}

function titleOf(metric) {
  return [`${arrow(metric)}\u00a0`, breakable(metric.name)];
}

function verdictOf(metric) {
  const word = el("span", { class: TRIAL[metric.verdict] ?? null }, metric.verdict);
  return el("small", { title: metric.verdict_text }, "meta-evaluation: ", word);
}

function nameOf(method) {
  const small = method.reference && el("small", {}, "reference");
  return el("th", { scope: "row", title: method.spec }, breakable(method.title), small);
}

function compared(result) {
  if (!result.word) return "";
  if (result.word === "not told apart") return "not told apart from random";
  return `${result.word} than random${result.p === null ? "" : `, p = ${result.p.toPrecision(2)}`}`;
}

function star(result) {
  if (!result.word) return null;
  const sign = { better: result.stars, worse: `▾${result.stars}` }[result.word] ?? "≈";
  const kind = { better: "up", worse: "down" }[result.word] ?? null;
  return el("sup", { class: kind, title: compared(result) }, sign, " ");
}

/** A line from one end of the interval to the other, a dot for the mean, a tick for chance. */
function whisker(result, metric) {
  if (!metric.span || metric.span[0] === metric.span[1]) return null;
  const [low, highest] = metric.span;
  const at = (value) => (4 + (96 * (Math.min(Math.max(value, low), highest) - low)) / (highest - low)).toFixed(1);
  const line = (kind, from, to, y1, y2) => svg("line", { class: kind, x1: at(from), x2: at(to), y1, y2 });
  return svg("svg", { class: "whisker", viewBox: "0 0 104 10", "aria-hidden": "true" },
    result.lower !== null && line("reach", result.lower, result.upper, 5, 5),
    metric.chance !== null && line("tick", metric.chance, metric.chance, 0, 10),
    svg("circle", { class: "dot", cx: at(result.mean), cy: 5, r: 3 }));
}

function legend(part) {
  const all = part.cells.flat().filter(Boolean);
  const lines = [
    "Mean over the pictures, its 95 % bootstrap interval, and both drawn; the thin line is random’s mean. "
      + "Bold: the best. Arrow up: higher is better. A click on a head sorts, on a score shows its pictures.",
    "Red stars: better than random (* 5 %, ** 1 %, *** 0.1 %, Holm-corrected randomisation tests); "
      + "≈: not told apart from it; blue ▾: worse than it. "
      + "Methods that share a letter are not told apart by their mean ranks.",
  ];
  if (all.some((item) => item.shared)) {
    lines.push("◆ The method itself asks the model about pictures changed in the way that the metric changes them.");
  }
  const printed = all.some((item) => item.paper !== null);
  if (printed) lines.push("“Paper” is the printed number, in the metric’s own unit.");
  if (several(part)) {
    lines.push(`Every picture has the mean of its scores over ${part.seeds.length} seeds; “between seeds” is the `
      + "standard deviation of the means that each seed gives. Maps and what a click shows of them are those of "
      + `seed ${part.seeds[0]}.`);
  }
  return lines;
}

/** Marks and flags in words, and what could not be tested. */
function worth(part) {
  if (!part.flags.length && !part.notes.length) return null;
  const where = (item) => [item.method, item.metric].filter(Boolean).join(", ") || "all";
  const row = (item) => el("li", {}, el("b", {}, item.kind), el("span", {}, `${where(item)}: ${item.text}`));
  return el("details", { class: "card worth" },
    el("summary", {}, `Worth knowing (${part.flags.length})`),
    el("ul", {}, part.flags.map(row)),
    part.notes.map((item) => el("p", { class: "note" }, item)));
}

/** Pictures that could not be read, or of which the model was not sure enough. */
function leftOut(part) {
  if (!part.left_out_count) return null;
  const more = part.left_out_count - part.left_out.length;
  return el("details", { class: "card worth" },
    el("summary", {}, `${part.left_out_count} pictures are left out`),
    el("ul", {}, part.left_out.map((item) => el("li", {}, el("b", {}, item.name), el("span", {}, item.why)))),
    more > 0 && el("p", { class: "note" }, `And ${more} more.`));
}
