// The pictures behind one cell of the table: worst or best first, with the maps that were judged.

import { announce, el } from "./common.js";
import { problem } from "./parts.js";
import { filterBar } from "./runs_filters.js";
import { ask, chooser, digits, drawnPicture, methodOptions, metricOptions, nothing, refill } from "./runs_parts.js";
import { saidAbout, segments, shot } from "./runs_parts.js";
import { cellOf, filtersOf, moved, partOf, runAddress } from "./runs_state.js";

const ORDERS = [["worst", "worst first"], ["best", "best first"]];

export function cellView(context) {
  const { id, table, change, signal } = context;
  const controls = el("div", { class: "controls" });
  const filters = el("div", {});
  const line = el("p", { class: "note counted", role: "status" });
  const grid = el("div", { class: "shots" });
  const pager = el("nav", { class: "pager", "aria-label": "Pages" });
  const node = el("div", { class: "runcell" }, controls, filters, line, grid, pager);
  let asked = 0;
  let now = null;

  function show(state) {
    const part = partOf(table, state);
    if (!part.methods.length) {
      refill(grid, nothing(`Nothing of ${part.name} is finished yet.`));
      return;
    }
    now = { ...state, ...names(cellOf(part, state)) };
    refill(controls,
      segments("Order", ORDERS, state.order, (order) => change({ order, page: "0" })),
      chooser("method", methodOptions(part), now.method, (method) => change({ method, page: "0" }), "method"),
      chooser("metric", metricOptions(part), now.metric, (metric) => change({ metric, page: "0" }), "metric"));
    refill(filters, filterBar(part, state, change));
    fetchPage(part, now);
  }

  async function fetchPage(part, state) {
    const mine = ++asked;
    const { method, metric, order, page } = state;
    grid.setAttribute("aria-busy", "true");
    try {
      const query = { part: part.part, method, metric, order, page, ...filtersOf(state) };
      const found = await ask(id, "/cell", query, signal);
      if (mine === asked) drawPage(part, state, found);
    } catch (error) {
      const again = () => fetchPage(part, state);
      if (error.name !== "AbortError" && mine === asked) refill(grid, problem(error.message, again));
    } finally {
      if (mine === asked) grid.removeAttribute("aria-busy");
    }
  }

  function drawPage(part, state, found) {
    const { metric } = cellOf(part, state);
    const look = state.opacity === "" ? {} : { opacity: Number(state.opacity) };
    const shots = found.images.map((image) => {
      const [score, small] = [digits(image.score, metric.digits), saidAbout(image)];
      const words = `${image.name}: map of ${state.method}, score ${score}, ${small}`;
      const { canvas } = drawnPicture(id, part, image.picture, image.map, found.signed, words, look);
      const href = runAddress(id, moved(state, { view: "picture", picture: image.picture }));
      return shot(canvas, { href, key: image.picture, score, name: image.name, small, amiss: image.correct === false });
    });
    const none = found.of ? "No picture passes these filters." : "There are no pictures yet.";
    line.textContent = summary(found, metric);
    announce(line.textContent);
    refill(grid, shots.length ? shots : nothing(none));
    refill(pager, found.pages > 1 ? pages(found, state) : "");
  }

  function pages(found, state) {
    const link = (words, page, key) => {
      if (page < 0 || page >= found.pages) return el("span", { class: "dull" }, words);
      return el("a", { href: runAddress(id, moved(state, { page: String(page) })), dataset: { key } }, words);
    };
    return [
      link("← before", found.page - 1, "before"),
      el("span", {}, `page ${found.page + 1} of ${found.pages}`),
      link("after →", found.page + 1, "after"),
      link("last", found.pages - 1, "last"),
    ];
  }

  /** Where a key leads. */
  function key(name) {
    if (name === "Escape") return now && runAddress(id, moved(now, { view: "table", page: "0" }));
    const step = { ArrowLeft: "before", ArrowRight: "after" }[name];
    return step && pager.querySelector(`a[data-key=${step}]`)?.getAttribute("href");
  }

  return { node, show, key };
}

function names({ method, metric }) {
  return { method: method.name, metric: metric.name };
}

function summary(found, metric) {
  const passing = found.total === found.of ? `${found.of} pictures` : `${found.total} of ${found.of} pictures`;
  const mean = found.mean === null ? "" : `, mean ${digits(found.mean, metric.digits)}`;
  const without = found.without ? `; ${found.without} have no score and are not here` : "";
  return `${passing}${mean}${without}. Every map has its own scale.`;
}
