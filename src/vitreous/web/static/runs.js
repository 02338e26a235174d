// A benchmark run: its table, any metric against any other, the pictures behind a cell, one picture with all its maps.

import { api, el, fill } from "./common.js";
import { problem } from "./parts.js";
import { cellView } from "./runs_cell.js";
import { pictureView } from "./runs_picture.js";
import { scatterView } from "./runs_scatter.js";
import { cellOf, moved, partOf, readRun, runAddress, UNFILTERED } from "./runs_state.js";
import { tabs } from "./runs_parts.js";
import { tableView } from "./runs_table.js";

const VIEWS = { table: tableView, scatter: scatterView, cell: cellView, picture: pictureView };
const FRESH = 20000; // milliseconds for which a table is not asked for again
const AGAIN = 10000; // milliseconds between two looks at a run that is still going on

const TAKEN = "input, select, summary, .scroll, svg"; // where keys mean something else

let last = null; // the view that was shown before this one
const known = new Map(); // tables by run: views follow each other quickly, and the table is the same

function tableOf(id, anew = false) {
  const kept = known.get(id);
  if (!anew && kept && Date.now() - kept.since < FRESH) return kept.table;
  const table = api(`/api/runs/${encodeURIComponent(id)}`);
  known.set(id, { table, since: Date.now() });
  table.catch(() => known.delete(id));
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
    const context = { id, table, change: (changes, how) => change(table, changes, how), open, signal };
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
    const parts = table.parts.map((each) => [each.name, to({ ...afresh, part: String(each.part) }), each === part]);
    const views = ["table", "scatter"].map((each) => [each, to({ view: each }), state.view === each]);
    const warnings = [table.state, ...table.notes].filter(Boolean);
    const blind = !part.pictures && state.view !== "scatter" && part.methods.length > 0;
    fill(top,
      el("h1", { tabindex: "-1" }, table.title),
      state.view === "table" && el("p", { class: "lead" }, table.lead),
      warnings.map((each) => el("p", { class: "note warn", role: "status" }, each)),
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
